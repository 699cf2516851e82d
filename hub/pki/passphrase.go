package pki

import (
	"os"
	"path/filepath"
)

// Credential is the name of the systemd credential with the passphrase.
const Credential = "flotilla-ca-passphrase"

// passphrase reads the passphrase from a file or from systemd's credential, nil if there is
// neither.
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

// OpenWith opens the authority of a data directory, and unlocks it with the passphrase of the file
// or of systemd's credential, if there is one.
func OpenWith(dir, file string) (*Authority, error) { return openWith(dir, file, false) }

// OpenShared is OpenWith for a command beside a running hub. It signs, but issues no intermediate,
// because the hub would not know the intermediate and could not revoke it.
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
