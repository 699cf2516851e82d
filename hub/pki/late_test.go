package pki

import (
	"crypto/x509"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func keep(t *testing.T, is bool) {
	was := kept
	kept = func() bool { return is }
	t.Cleanup(func() { kept = was })
}

// In the last year of a root a new certificate would not last longer than the current one. So the
// hub does not replace its intermediate and its certificate, and devices do not renew repeatedly.
func TestNothingIsReplacedInTheLastYearOfARoot(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := open(t, dir)
		time.Sleep(rootLife - 390*24*time.Hour)
		_, _ = device(t, a, "pi-1")
		time.Sleep(time.Hour)
		first := a.Status()
		server := must(a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler)))(t)
		made, last := 0, server.current.Leaf
		for left := 380; left > 0; left-- {
			for range 3 {
				certs, _ := device(t, a, "pi-1")
				if _, err := a.Verify(certs); err != nil {
					t.Fatalf("%d days before the end: %v", left, err)
				}
				if a.Status().Outdated(certs[0].NotAfter) {
					t.Fatalf("%d days before the end a new certificate is outdated", left)
				}
				if now := must(server.GetCertificate(nil))(t).Leaf; !now.Equal(last) {
					made, last = made+1, now
				}
				time.Sleep(8 * time.Hour)
			}
		}
		if now := a.Status(); now.FormerIntermediates != first.FormerIntermediates || now.Generation != first.Generation {
			t.Errorf("%d intermediates are issued in the last year, want none", now.FormerIntermediates-first.FormerIntermediates)
		}
		if made > int(serverRenew/renewPause)+4 {
			t.Errorf("the hub gets %d certificates in the last year, want at most %d", made, int(serverRenew/renewPause)+4)
		}
		if err := a.RotateIntermediate(); err != nil {
			t.Fatal(err)
		}
		if certs, _ := device(t, a, "pi-1"); a.Status().Outdated(certs[0].NotAfter) {
			t.Error("after a manual rotation a new certificate is outdated")
		}
	})
}

// Certificates that were issued while the machine's clock was ahead are replaced once a time
// service has corrected the clock.
func TestCertificatesOfAFastClockAreReplaced(t *testing.T) {
	dir := t.TempDir()
	names := func() []string { return []string{"hub"} }
	var ahead *x509.Certificate
	synctest.Test(t, func(t *testing.T) {
		a := open(t, dir)
		time.Sleep(400 * 24 * time.Hour) // further than an intermediate outlives its leaves
		ahead = must(a.NewServer(names, slog.New(slog.DiscardHandler)))(t).current.Leaf
	})
	for _, c := range []struct{ synchronized, replaced bool }{{false, false}, {true, true}} {
		keep(t, c.synchronized)
		synctest.Test(t, func(t *testing.T) {
			a := open(t, dir)
			a.Now = func() time.Time { return time.Now().Add(400 * 24 * time.Hour) } // the hub continues with its last stored time
			s := must(a.NewServer(names, slog.New(slog.DiscardHandler)))(t)
			leaf := s.current.Leaf
			if leaf.Equal(ahead) == c.replaced {
				t.Fatalf("synchronized %v: the hub's future certificate is replaced: %v", c.synchronized, !c.replaced)
			}
			if !c.replaced {
				return
			}
			roots, between := x509.NewCertPool(), x509.NewCertPool()
			roots.AddCert(a.root.cert)
			between.AddCert(a.intermediate.cert)
			for clock, now := range map[string]time.Time{"a device": time.Now(), "the hub": a.Now()} {
				if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: "hub",
					CurrentTime: now}); err != nil {
					t.Errorf("the certificate is invalid by the time of %s: %v", clock, err)
				}
			}
			certs, _ := device(t, a, "pi-1")
			if generation := a.Status().Generation; generation != 1 {
				t.Errorf("the authority has changed %d times", generation)
			}
			if now := time.Now(); now.Before(certs[0].NotBefore) {
				t.Error("a device's certificate is not valid yet")
			}
		})
	}
}

// If the machine's clock is years ahead, the hub's time ignores it, and the hub issues no new
// intermediate.
func TestAClockYearsAheadIssuesNoIntermediates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := open(t, t.TempDir())
		began := time.Now()
		time.Sleep(5 * 365 * 24 * time.Hour)
		moved := time.Now()
		a.Now = func() time.Time { return began.Add(time.Since(moved)) }
		s := must(a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler)))(t)
		peer := a.NewPeerClient("hub-b")
		made, last := 0, s.current.Leaf
		for range 72 {
			if now := must(s.GetCertificate(nil))(t).Leaf; !now.Equal(last) {
				made, last = made+1, now
			}
			if _, err := peer.certificate(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour)
		}
		if generation := a.Status().Generation; generation != 0 {
			t.Errorf("%d intermediates in three days, want none", generation)
		}
		if made > 3 {
			t.Errorf("%d certificates of the hub in three days, want at most 3", made)
		}
	})
}

// If the hub's certificate cannot be renewed after a rotation, the hub retries a minute later.
func TestTheHubsCertificateIsRetriedAfterARotation(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := open(t, dir)
		s := must(a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler)))(t)
		if err := a.RotateRoot(); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(a.path("server.key")); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(a.path("server.key/full"), 0o700); err != nil { // makes the renaming fail
			t.Fatal(err)
		}
		before := must(s.GetCertificate(nil))(t)
		if before.Leaf.CheckSignatureFrom(a.intermediate.cert) == nil {
			t.Fatal("the certificate is written despite the directory")
		}
		if err := os.RemoveAll(a.path("server.key")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(compareEvery + time.Second)
		if now := must(s.GetCertificate(nil))(t); now.Leaf.CheckSignatureFrom(a.intermediate.cert) != nil {
			t.Error("the hub's certificate still has the former issuer")
		}
	})
}
