package pki

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Devices pin the first key, so the hub never replaces it.
func TestTheFirmwareKeyIsNeverReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	a, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	first, err := a.FirmwareKey()
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.FirmwareKey(); err != nil || !again.Equal(first) {
		t.Fatalf("after a restart the key is different: %v", err)
	}
	file := filepath.Join(dir, firmwareKey)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file has the mode %v, want 0600: %v", info.Mode(), err)
	}
	other, err := os.ReadFile(filepath.Join(dir, "root.key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range [][]byte{nil, []byte("x"), other} {
		if err := os.WriteFile(file, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := b.FirmwareKey(); !errors.Is(err, ErrKey) {
			t.Errorf("%.20q: %v, want ErrKey", broken, err)
		}
		if now, _ := os.ReadFile(file); string(now) != string(broken) {
			t.Errorf("%.20q was overwritten", broken)
		}
	}
}
