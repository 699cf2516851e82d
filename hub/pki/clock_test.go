package pki

import (
	"crypto/x509"
	"log/slog"
	"testing"
	"time"
)

// A hub that starts with a wrong time keeps that time when the machine's clock is set. Its
// certificates are valid by both clocks, and it accepts them.
func TestCertificatesAreValidByBothClocks(t *testing.T) {
	for name, off := range map[string]time.Duration{"behind by months": -200 * 24 * time.Hour, "the same": 0,
		"ahead by months": 200 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			a, err := Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			a.Now = func() time.Time { return time.Now().Add(off) }
			text, _, err := a.IssueClient(Admin, "kari", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			leaf := chain(t, text)[0]
			server, err := a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			own, err := server.GetCertificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			for what, c := range map[string]*x509.Certificate{"kari's": leaf, "the hub's": own.Leaf} {
				for clock, now := range map[string]time.Time{"hub": a.Now(), "machine": time.Now()} {
					if now.Before(c.NotBefore) || now.After(c.NotAfter) {
						t.Errorf("%s certificate, from %s until %s, is not valid by the %s's time %s", what, c.NotBefore, c.NotAfter,
							clock, now)
					}
				}
			}
		})
	}
}
