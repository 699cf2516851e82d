package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// keptAuthority is the name of the shared authority in the database.
const keptAuthority = "authority"

// Authority reads the certificate authority that the hubs of a database share. It returns nil if
// the database has none.
func Authority(ctx context.Context, from interface {
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

// ShareAuthority opens the shared authority from files, and stores each change in the database. If
// files is nil, this is the first hub, and shares its own authority.
func ShareAuthority(
	ctx context.Context, st *store.Store, cfg config.Config, files map[string][]byte,
) (*pki.Authority, error) {
	id, err := st.HubID(ctx)
	if err != nil {
		return nil, err
	}
	keep := func(all map[string][]byte) error {
		text, err := json.Marshal(all)
		if err == nil {
			err = st.Keep(context.WithoutCancel(ctx), keptAuthority, text)
		}
		return err
	}
	if files == nil {
		first, err := pki.OpenWith(cfg.DataDir, cfg.CAPassphraseFile)
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
			return nil, fmt.Errorf("share the certificate authority: %w", err)
		}
	}
	if err := pki.Install(cfg.DataDir, id, files); err != nil {
		return nil, err
	}
	authority, err := pki.OpenWith(cfg.DataDir, cfg.CAPassphraseFile)
	if err == nil {
		authority.Keep = keep
	}
	return authority, err
}
