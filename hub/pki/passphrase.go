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
func OpenWith(dir, file string) (*Authority, error) { return openWith(dir, file, false) }

// OpenShared is OpenWith for a command, which may work beside the hub: it signs, and makes no
// intermediate. The hub would know nothing of that, and never revoke it.
func OpenShared(dir, file string) (*Authority, error) { return openWith(dir, file, true) }

func openWith(dir, file string, signsOnly bool) (*Authority, error) {
	a, err := Open(filepath.Join(dir, "pki"))
	if err != nil {
		return a, err
	}
	a.signsOnly = signsOnly
	if !a.Sealed() {
		return a, nil
	}
	secret, err := passphrase(file)
	if err != nil || secret == nil {
		return a, err
	}
	return a, a.Unlock(secret)
}
