package serve

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"path/filepath"

	"flotilla.dev/hub/cluster"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
)

// openAuthority opens the authority that the hubs of the database share, or the hub's own. It
// creates a new one only for a fleet without devices, because each device would have to join again
// by hand.
func (h *Hub) openAuthority(ctx context.Context, fleet state.Snapshot) error {
	shared, err := cluster.Authority(ctx, h.Store)
	if err == nil && shared == nil && !pki.Made(h.cfg.DataDir) {
		err = lostAuthority(h.cfg.DataDir, fleet)
	}
	switch {
	case err != nil:
	case shared != nil, h.Store.Leads(): // a single hub may have shared its database earlier
		h.authority, err = cluster.ShareAuthority(ctx, h.Store, h.cfg, shared)
	default:
		h.authority, err = pki.OpenWith(h.cfg.DataDir, h.cfg.CAPassphraseFile)
	}
	if err == nil && h.authority.Sealed() {
		err = fmt.Errorf("%w: start the hub with --ca-passphrase-file, or give it the systemd credential %s", pki.ErrSealed,
			pki.Credential)
	}
	return err
}

// joinedOf returns how many devices of a fleet have joined.
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
	return fmt.Errorf("open the certificate authority: %w: %s is missing, and devices of this fleet (%d) have joined with it; "+
		"restore your copy, which backups of the database do not contain. "+
		"For a new authority, which each device must join by hand, create an empty file %s", pki.ErrKey,
		filepath.Join(dataDir, "pki"), joined, filepath.Join(dataDir, "pki", pki.BeginAnew))
}

// firmwareKey returns the key that signs boot configurations. It creates a missing key, because
// without the former key devices only miss new boot configurations.
func (h *Hub) firmwareKey(fleet state.Snapshot) (ed25519.PrivateKey, error) {
	had := h.authority.HasFirmwareKey()
	key, err := h.authority.FirmwareKey()
	if joined := joinedOf(fleet); err == nil && !had && joined > 0 {
		h.log.Warn("the key that signs boot configurations was missing, and a new one was made: boards that know the "+
			"former one refuse boot configurations of this hub until `flotilla-device boot-helper --forget` on each. Restore "+
			"the former one if you have a copy, and restart the hub",
			"file", filepath.Join(h.cfg.DataDir, "pki", "firmware.key"), "joined", joined)
	}
	return key, err
}
