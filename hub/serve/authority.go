package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"flotilla.dev/hub/pki"
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
