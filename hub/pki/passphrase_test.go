package pki

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const horse = "correct horse battery"

// protected returns the data directory of a hub with encrypted keys, and its pki directory.
func protected(t *testing.T) (data, dir string) {
	t.Helper()
	data = t.TempDir()
	dir = filepath.Join(data, "pki")
	if err := open(t, dir).Protect([]byte(horse)); err != nil {
		t.Fatal(err)
	}
	return data, dir
}

func write(t *testing.T, file, text string) string {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAPassphraseIsTheFirstLineAndLongEnough(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passphrase")
	for _, tt := range []struct{ name, text, want string }{
		{"one line", horse, horse},
		{"with a line feed", horse + "\n", horse},
		{"with a carriage return", horse + "\r\n", horse},
		{"with more lines", horse + "\nkept in the safe\n", horse},
		{"with spaces", " " + horse + " \n", " " + horse + " "},
		{"nothing", "", ""},
		{"after an empty line", "\n" + horse, ""},
		{"too short", strings.Repeat("x", minPassphrase-1) + "\n" + horse, ""},
		{"the shortest", strings.Repeat("x", minPassphrase), strings.Repeat("x", minPassphrase)},
		{"the longest", strings.Repeat("x", maxPassphrase) + "\n", strings.Repeat("x", maxPassphrase)},
		{"too long", strings.Repeat("x", maxPassphrase+1), ""},
		{"much too long", strings.Repeat("x", 1<<20), ""},
	} {
		got, err := ReadPassphrase(write(t, file, tt.text))
		if string(got) != tt.want || (err == nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %d bytes, want %d: %v", tt.name, len(got), len(tt.want), err)
		}
	}
	if _, err := ReadPassphrase(file + ".missing"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestSourcesOfThePassphrase(t *testing.T) {
	data, _ := protected(t)
	credentials, files := t.TempDir(), t.TempDir()
	right, wrong := write(t, filepath.Join(files, "right"), horse), write(t, filepath.Join(files, "wrong"),
		"another good passphrase")
	for _, tt := range []struct {
		name, file, credential string
		sealed, fails          bool
	}{
		{name: "nowhere", sealed: true},
		{name: "a file", file: right},
		{name: "a file with a wrong passphrase", file: wrong, sealed: true, fails: true},
		{name: "a missing file", file: right + ".missing", sealed: true, fails: true},
		{name: "systemd", credential: horse},
		{name: "systemd's credential with a wrong passphrase", credential: "another good passphrase", sealed: true, fails: true},
		{name: "a file takes precedence over systemd's credential", file: right, credential: "another good passphrase"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("CREDENTIALS_DIRECTORY", credentials)
			_ = os.Remove(filepath.Join(credentials, Credential))
			if tt.credential != "" {
				write(t, filepath.Join(credentials, Credential), tt.credential)
			}
			a, err := OpenWith(data, tt.file)
			if (err != nil) != tt.fails || a == nil || a.Sealed() != tt.sealed {
				t.Errorf("OpenWith returned %v, want failure: %t, sealed: %t", err, tt.fails, tt.sealed)
			}
		})
	}
	plain := t.TempDir()
	open(t, filepath.Join(plain, "pki"))
	if a, err := OpenWith(plain, right+".missing"); err != nil || a.Sealed() {
		t.Errorf("a key without a passphrase does not open: %v", err)
	}
}

// The costs in a key file are checked before the key is derived.
func TestTheCostsOfAnEncryptedKeyAreLimited(t *testing.T) {
	good, err := seal([]byte(horse), []byte("key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ header, value, want string }{
		{"KDF", "scrypt", "unknown encryption"},
		{"KDF", "", "unknown encryption"},
		{"Version", "0", "unknown encryption"},
		{"Time", "17", "out of bounds"},
		{"Time", "-1", "out of bounds"},
		{"Memory-KiB", "8191", "out of bounds"},
		{"Memory-KiB", "524289", "out of bounds"},
		{"Threads", "0", "out of bounds"},
		{"Threads", "9", "out of bounds"},
		{"Threads", "257", "out of bounds"},
		{"Salt", strings.Repeat("00", 15), "out of bounds"},
		{"Salt", strings.Repeat("00", 65), "out of bounds"},
		{"Salt", "no hex", "out of bounds"},
		{"Salt", strings.Repeat("00", 16), "wrong, or the file was changed"},
		{"Time", "1", "wrong, or the file was changed"},
	} {
		b, _ := pem.Decode(good)
		b.Headers[tt.header] = tt.value
		if _, err := unseal([]byte(horse), b); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %s: %v, want %q", tt.header, tt.value, err, tt.want)
		}
	}
	b, _ := pem.Decode(good)
	if text, err := unseal([]byte(horse), b); err != nil || string(text) != "key" {
		t.Errorf("the unchanged key opens as %q, want key: %v", text, err)
	}
	b.Bytes = b.Bytes[:5]
	if _, err := unseal([]byte(horse), b); err == nil {
		t.Error("a truncated key opens")
	}
	again, err := seal([]byte(horse), []byte("key"))
	if err != nil {
		t.Fatal(err)
	}
	first, _ := pem.Decode(good)
	second, _ := pem.Decode(again)
	if first.Headers["Salt"] == second.Headers["Salt"] || string(first.Bytes[:12]) == string(second.Bytes[:12]) {
		t.Error("two encryptions of one key have the same salt or nonce")
	}
	if first.Headers["Time"] != "3" || first.Headers["Memory-KiB"] != "65536" {
		t.Errorf("the headers are %v", first.Headers)
	}
}

// Two encrypted keys cannot be swapped.
func TestAnEncryptedKeyMatchesItsCertificate(t *testing.T) {
	data, dir := protected(t)
	root, intermediate := filepath.Join(dir, "root.key"), filepath.Join(dir, "intermediate.key")
	if err := errors.Join(os.Rename(root, root+".x"), os.Rename(intermediate, root),
		os.Rename(root+".x", intermediate)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenWith(data, write(t, filepath.Join(data, "passphrase"), horse)); !errors.Is(err, ErrKey) ||
		!strings.Contains(err.Error(), "not the key of the certificate beside it") {
		t.Error(err)
	}
}

// If Protect cannot write the keys, it does not encrypt later keys with the new passphrase either.
func TestAFailedProtectChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	a := open(t, dir)
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	if err := a.Protect([]byte(horse)); err == nil {
		t.Fatal("Protect succeeds without writing the keys")
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := a.RotateIntermediate(); err != nil {
		t.Fatal(err)
	}
	if a.Status().Protected || open(t, dir).Sealed() {
		t.Error("a later key is encrypted")
	}
}

// Keys that are created after Unlock are encrypted too.
func TestKeysCreatedAfterUnlockAreEncrypted(t *testing.T) {
	data, dir := protected(t)
	a, err := OpenWith(data, write(t, filepath.Join(data, "passphrase"), horse))
	if err != nil {
		t.Fatal(err)
	}
	if err := a.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	if err := a.RotateIntermediate(); err != nil {
		t.Fatal(err)
	}
	for _, name := range keyNames {
		if text := must(os.ReadFile(filepath.Join(dir, name+".key")))(t); !strings.Contains(string(text), sealedType) {
			t.Errorf("%s.key is not encrypted", name)
		}
	}
	closed := open(t, dir)
	if err := closed.RotateIntermediate(); !errors.Is(err, ErrSealed) {
		t.Error("rotation without the passphrase, want ErrSealed:", err)
	}
}
