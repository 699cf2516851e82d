package admin

import (
	"log/slog"
	"path/filepath"
	"testing"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// guarded returns a page with the real guard, and the secret of its setup link.
func guarded(t testing.TB, m frame.Fleet) (c frame.Config, secret string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	st, err := store.Open(t.Context(), store.Options{Dir: dir, Version: "test", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	authority, err := pki.Open(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	g := access.New(access.Options{Store: st, Authority: authority, Log: log})
	if secret, err = g.SetupSecret(t.Context()); err != nil {
		t.Fatal(err)
	}
	c = configOf(m)
	c.Sessions, c.Logins, c.People, c.Tokens, c.Accounts, c.Archive, c.Views = g, g, g, g, g, st, g
	return c, secret
}
