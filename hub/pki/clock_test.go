package pki

import (
	"crypto/x509"
	"log/slog"
	"testing"
	"time"
)

// A hub that began with a wrong time keeps it when the machine's is set right. What
// it issues is valid by both, and it believes what it issued.
func TestCertificatesAreValidByTheHubsTimeAndByTheMachines(t *testing.T) {
	for name, off := range map[string]time.Duration{"behind by months": -200 * 24 * time.Hour, "the same": 0, "ahead by months": 200 * 24 * time.Hour} {
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
						t.Errorf("%s certificate, from %s until %s, is not valid by the %s's time %s", what, c.NotBefore, c.NotAfter, clock, now)
					}
				}
			}
		})
	}
}

// Of whose certificate another intermediate has come, its end tells, also where that was reckoned by a clock
// in the future.
func TestWhoHasACertificateOfAFormerIntermediate(t *testing.T) {
	now := time.Date(2027, 6, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		olds   int
		signed time.Time
		end    time.Time
		want   bool
	}{
		"none before it":                       {0, now.AddDate(0, -1, 0), now.AddDate(-1, 0, 0), false},
		"made before it":                       {1, now.AddDate(0, -1, 0), now.AddDate(0, 10, 0), true},
		"made by it":                           {1, now.AddDate(0, -1, 0), now.AddDate(1, 0, -7), false},
		"made by it just now":                  {1, now.AddDate(0, -1, 0), now.Add(leafLife), false},
		"made while the clock stood in 2040":   {1, now.AddDate(0, -1, 0), now.AddDate(9, 0, 0), true},
		"made by one of when it stood in 1970": {1, time.Unix(600, 0), now.Add(leafLife), false},
	} {
		if s := (Status{Olds: c.olds, Signed: c.signed, now: now}); s.Outdated(c.end) != c.want {
			t.Errorf("%s: outdated: %v", name, !c.want)
		}
	}
}
