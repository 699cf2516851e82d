package cli

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// A thinker is a standard input that calls meanwhile before it returns the password.
type thinker struct{ meanwhile func() }

func (p thinker) Read([]byte) (int, error) {
	p.meanwhile()
	return 0, io.EOF
}

// The hub can replace its database while a command waits for a password.
func TestTheDatabaseIsClosedWhileAPasswordIsTyped(t *testing.T) {
	dir := t.TempDir()
	backup := filepath.Join(t.TempDir(), "backup.db")
	s, err := store.Open(t.Context(), store.Options{Dir: dir})
	if err == nil {
		err = errors.Join(s.SetMeta(t.Context(), store.MetaURL, "https://127.0.0.1:8443"),
			s.Backup(t.Context(), backup), s.Close())
	}
	if err == nil {
		_, err = pki.Open(filepath.Join(dir, "pki"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"create", "passwd"} {
		asked := false
		root := Program{Stdout: io.Discard, Stderr: io.Discard}.Command()
		root.SetArgs([]string{"user", command, "kim", "--data-dir", dir})
		root.SetIn(thinker{func() {
			asked = true
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := store.Restore(ctx, store.Options{Dir: dir}, backup); err != nil {
				t.Errorf("user %s: a restore while it waits for the password: %v", command, err)
			}
		}})
		if err := root.Execute(); !errors.As(err, new(ErrUsage)) || !asked {
			t.Errorf("user %s without a password: %v, want ErrUsage after a question", command, err)
		}
	}
}
