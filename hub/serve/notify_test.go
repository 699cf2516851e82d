package serve

import (
	"os"
	"path/filepath"
	"testing"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/notify"
)

func TestSecretsAreReadFromTheirFiles(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	cfg := config.Default()
	if all, err := targets(cfg); err != nil || len(all) != 0 {
		t.Errorf("by default the recipients are %v (%v)", all, err)
	}
	cfg.IncidentWebhook, cfg.IncidentWebhookSecretFile = "https://alerts.example.org/x", file("key \nmore\n")
	cfg.IncidentMailServer, cfg.IncidentMailUser, cfg.IncidentMailPasswordFile = "smtp://mail.example.org:587", "hub",
		file("word")
	all, err := targets(cfg)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if got := string(all[0].(*notify.Webhook).Secret); got != "key" {
		t.Errorf("the webhook's secret is %q", got)
	}
	if got := all[1].(*notify.Mail).Password; got != "word" {
		t.Errorf("the password is %q", got)
	}
	for _, bad := range []string{file(""), "/nowhere"} {
		cfg.IncidentWebhookSecretFile = bad
		if _, err := targets(cfg); err == nil {
			t.Errorf("%s is accepted as a secret", bad)
		}
	}
}
