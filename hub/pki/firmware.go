package pki

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"flotilla.dev/hub/owner"
	"flotilla.dev/shared/fsync"
)

// firmwareKey is the file with the key that signs boot configurations. The passphrase does not
// encrypt it: a device accepts a configuration only over the connection to its hub, so the key
// alone is useless.
const firmwareKey = "firmware.key"

// HasFirmwareKey reports whether the file of the key exists.
func (a *Authority) HasFirmwareKey() bool {
	_, err := os.Lstat(a.path(firmwareKey))
	return err == nil
}

// FirmwareKey returns the key that signs boot configurations. It creates the first key, but never
// replaces an unreadable one, because devices pin the first public key.
func (a *Authority) FirmwareKey() (key ed25519.PrivateKey, err error) {
	err = a.locked(func() error {
		if key, err = a.readFirmwareKey(); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if _, key, err = ed25519.GenerateKey(rand.Reader); err != nil {
			return err
		}
		text, err := encodeKey(key)
		if err == nil {
			err = owner.WriteFile(a.path(firmwareKey), text)
		}
		if err == nil {
			err = fsync.Dir(a.dir)
		}
		if err != nil {
			return fmt.Errorf("write the key that signs boot configurations: %w; free disk space or make %s writable", err, a.dir)
		}
		return nil
	})
	return key, err
}

// readFirmwareKey returns the stored key. Without a key it returns os.ErrNotExist.
func (a *Authority) readFirmwareKey() (key ed25519.PrivateKey, err error) {
	text, err := os.ReadFile(a.path(firmwareKey))
	if err != nil {
		return nil, fmt.Errorf("read the key that signs boot configurations: %w", err)
	}
	if key, err = parseFirmwareKey(text); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w; restore it from a copy of the directory pki: devices refuse boot "+
			"configurations that another key signed", a.path(firmwareKey), ErrKey, err)
	}
	return key, nil
}

func parseFirmwareKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("not PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("its type is %T, not Ed25519", parsed)
	}
	return key, nil
}
