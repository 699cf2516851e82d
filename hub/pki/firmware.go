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

// firmwareKey is the file of the key that signs boot configurations. Like the hub's own
// key it is not under the passphrase: alone it is good for nothing, as a configuration
// reaches a device only over the connection to its hub.
const firmwareKey = "firmware.key"

// HasFirmwareKey tells whether there is a file for the key by which the hub signs boot
// configurations.
func (a *Authority) HasFirmwareKey() bool {
	_, err := os.Lstat(a.path(firmwareKey))
	return err == nil
}

// FirmwareKey reads the key by which the hub signs boot configurations, and makes one where
// there is none. Devices keep the first public half that they are told, so it is never
// made anew in the place of one that cannot be read.
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
			return fmt.Errorf("write the key that signs boot configurations: %w; free the disk and make %s writable", err, a.dir)
		}
		return nil
	})
	return key, err
}

// readFirmwareKey is os.ErrNotExist where there is none.
func (a *Authority) readFirmwareKey() (key ed25519.PrivateKey, err error) {
	text, err := os.ReadFile(a.path(firmwareKey))
	if err != nil {
		return nil, fmt.Errorf("read the key that signs boot configurations: %w", err)
	}
	if key, err = parseFirmwareKey(text); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w; restore it from a copy of the directory pki, for devices take no boot "+
			"configuration that another key has signed", a.path(firmwareKey), ErrKey, err)
	}
	return key, nil
}

func parseFirmwareKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it holds no PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it is a %T, not an Ed25519 key", parsed)
	}
	return key, nil
}
