package serve

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// keptAuthority is the name under which the hubs of a database keep their authority.
const keptAuthority = "authority"

// authorityOf reads it; nil: nobody has made one.
func authorityOf(ctx context.Context, from interface {
	Kept(ctx context.Context, name string) ([]byte, error)
}) (files map[string][]byte, err error) {
	text, err := from.Kept(ctx, keptAuthority)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &files)
	}
	if err != nil {
		return nil, fmt.Errorf("read the database's certificate authority: %w", err)
	}
	return files, nil
}

// openAuthority opens that of the database's hubs, or the hub's own. A fleet's is made once: where it
// is missing each device would have to join another one by hand.
func (h *Hub) openAuthority(ctx context.Context, fleet state.Snapshot) error {
	shared, err := authorityOf(ctx, h.Store)
	if err == nil && shared == nil && !pki.Made(h.cfg.DataDir) {
		err = lostAuthority(h.cfg.DataDir, fleet)
	}
	switch {
	case err != nil:
	case shared != nil, h.Store.Leads(): // it may be alone now, and not have been
		err = h.shareAuthority(ctx, shared)
	default:
		h.authority, err = pki.OpenWith(h.cfg.DataDir, h.cfg.CAPassphraseFile)
	}
	if err == nil && h.authority.Sealed() {
		err = fmt.Errorf("%w: start the hub with --ca-passphrase-file, or give it the systemd credential %s", pki.ErrSealed, pki.Credential)
	}
	return err
}

// joinedOf is how many devices of a fleet have an identity.
func joinedOf(fleet state.Snapshot) (joined int) {
	for rec := range state.Each[*state.Record](fleet, state.Records, "") {
		if rec.Key != "" {
			joined++
		}
	}
	return joined
}

func lostAuthority(dataDir string, fleet state.Snapshot) error {
	joined := joinedOf(fleet)
	if joined == 0 {
		return nil
	}
	return fmt.Errorf("open the certificate authority: %w: %s is missing, through which the devices of this fleet (%d) have joined; put back your copy of it, as backups of the database do not hold it. "+
		"To begin with a new one, which each of them has to join by hand, make an empty file %s", pki.ErrKey, filepath.Join(dataDir, "pki"), joined, filepath.Join(dataDir, "pki", pki.BeginAnew))
}

// firmwareKey is the key that signs boot configurations. Unlike the authority it is made anew where it is
// missing: without it devices lack nothing but new boot configurations.
func (h *Hub) firmwareKey(fleet state.Snapshot) (ed25519.PrivateKey, error) {
	had := h.authority.HasFirmwareKey()
	key, err := h.authority.FirmwareKey()
	if joined := joinedOf(fleet); err == nil && !had && joined > 0 {
		h.log.Warn("the key that signs boot configurations was missing, and another one was made: boards that know the former take no boot configuration of this hub until `flotilla-device boot-helper --forget` on each. Put the former back if you have a copy, and start the hub again",
			"file", filepath.Join(h.cfg.DataDir, "pki", "firmware.key"), "joined", joined)
	}
	return key, err
}

// shareAuthority opens the authority that the hubs of the database have, and has them know of
// every change. The first hub gives them its own.
func (h *Hub) shareAuthority(ctx context.Context, files map[string][]byte) error {
	id, err := h.Store.HubID(ctx)
	if err != nil {
		return err
	}
	keep := func(all map[string][]byte) error {
		text, err := json.Marshal(all)
		if err == nil {
			err = h.Store.Keep(context.WithoutCancel(ctx), keptAuthority, text)
		}
		return err
	}
	if files == nil {
		first, err := pki.OpenWith(h.cfg.DataDir, h.cfg.CAPassphraseFile)
		if err == nil {
			_, err = first.FirmwareKey()
		}
		if err == nil {
			files, err = first.Files()
		}
		if err == nil {
			err = keep(files)
		}
		if err != nil {
			return fmt.Errorf("give the other hubs the certificate authority: %w", err)
		}
	}
	if err := pki.Install(h.cfg.DataDir, id, files); err != nil {
		return err
	}
	if h.authority, err = pki.OpenWith(h.cfg.DataDir, h.cfg.CAPassphraseFile); err == nil {
		h.authority.Keep = keep
	}
	return err
}
