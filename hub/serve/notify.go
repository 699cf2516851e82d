package serve

import (
	"bytes"
	"fmt"
	"os"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/notify"
)

// maxSecret is the limit in bytes of a file with a secret.
const maxSecret = 4 << 10

// newNotifier returns the notifier of incidents that the configuration describes.
func (h *Hub) newNotifier() (*notify.Notifier, error) {
	n := &notify.Notifier{Fleet: h.Loop, Hub: h.url, Now: h.Loop.Now, Log: h.log}
	var err error
	if n.Targets, err = targets(h.cfg); err != nil {
		return nil, err
	}
	return n, nil
}

// recipients lists the recipients of incidents, for the page's settings.
func (h *Hub) recipients() (all []frame.Told) {
	for _, t := range h.notifier.Targets {
		all = append(all, frame.Told{Name: t.Name(), To: t.To()})
	}
	return all
}

func targets(cfg config.Config) (all []notify.Target, err error) {
	if cfg.IncidentWebhook != "" {
		var secret []byte
		if cfg.IncidentWebhookSecretFile != "" {
			if secret, err = firstLine(cfg.IncidentWebhookSecretFile); err != nil {
				return nil, fmt.Errorf("incident-webhook-secret-file: %w", err)
			}
		}
		all = append(all, notify.NewWebhook(cfg.IncidentWebhook, secret))
	}
	if cfg.IncidentMailServer != "" {
		m := &notify.Mail{
			Server: cfg.IncidentMailServer, From: cfg.IncidentMailFrom, Whom: cfg.IncidentMailTo, User: cfg.IncidentMailUser,
		}
		if cfg.IncidentMailPasswordFile != "" {
			password, err := firstLine(cfg.IncidentMailPasswordFile)
			if err != nil {
				return nil, fmt.Errorf("incident-mail-password-file: %w", err)
			}
			m.Password = string(password)
		}
		all = append(all, m)
	}
	return all, nil
}

// firstLine returns the first line of a file, which is a secret and must not be empty.
func firstLine(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	if line = bytes.TrimSpace(line); len(line) == 0 || len(line) > maxSecret {
		return nil, fmt.Errorf("the first line of %s is empty or longer than %d bytes: write the secret there", file,
			maxSecret)
	}
	return line, nil
}
