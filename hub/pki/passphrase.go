package pki

import (
	"os"
	"path/filepath"
)

// Credential is the name of the systemd credential that holds the passphrase.
const Credential = "flotilla-ca-passphrase"

// passphrase reads the one of a file, or systemd's credential; nil: there is none.
func passphrase(file string) ([]byte, error) {
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); file == "" && dir != "" {
		if _, err := os.Stat(filepath.Join(dir, Credential)); err == nil {
			file = filepath.Join(dir, Credential)
		}
	}
	if file == "" {
		return nil, nil
	}
	return ReadPassphrase(file)
}

// OpenWith reads the certificate authority of a data directory, and opens its keys
// where there is a passphrase for them: in the file, or as systemd's credential.
func OpenWith(dir, file string) (*Authority, error) {
	a, err := Open(filepath.Join(dir, "pki"))
	if err != nil || !a.Sealed() {
		return a, err
	}
	secret, err := passphrase(file)
	if err != nil || secret == nil {
		return a, err
	}
	return a, a.Unlock(secret)
}
