package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// shown returns a chain that the authority signed, with a leaf that edit changes.
func shown(t *testing.T, a *Authority, edit func(*x509.Certificate)) []*x509.Certificate {
	t.Helper()
	now := time.Now()
	c := &x509.Certificate{
		Subject:   pkix.Name{Organization: []string{organizations[Device]}, CommonName: "pi-1"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	edit(c)
	key := must(newKey())(t)
	leaf, by, err := a.sign(c, key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	return []*x509.Certificate{leaf, by}
}

// The hub accepts a certificate of the authority only with one role, one name and the intended use.
func TestACertificateHasOneRoleAndOneUse(t *testing.T) {
	a := open(t, t.TempDir())
	for _, tt := range []struct {
		name string
		edit func(*x509.Certificate)
		ok   bool
	}{
		{"a device's", func(*x509.Certificate) {}, true},
		{"two roles", func(c *x509.Certificate) {
			c.Subject.Organization = []string{organizations[Device], organizations[Admin]}
		}, false},
		{"a role and another organization", func(c *x509.Certificate) {
			c.Subject.Organization = []string{organizations[Admin], "Flotilla"}
		}, false},
		{"no role", func(c *x509.Certificate) { c.Subject.Organization = nil }, false},
		{"an unknown role", func(c *x509.Certificate) { c.Subject.Organization = []string{"flotilla:gods"} }, false},
		{"no name", func(c *x509.Certificate) { c.Subject.CommonName = "" }, false},
		{"a server's certificate", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, false},
		{"not valid yet", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }, false},
		{"ended", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }, false},
	} {
		if h, err := a.Verify(shown(t, a, tt.edit)); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %+v %v, want accepted: %t", tt.name, h, err, tt.ok)
		}
	}
}

// Only a device's expired certificate may be renewed late. A certificate that is not valid yet or
// was revoked is refused.
func TestOnlyADevicesExpiredCertificateMayBeRenewed(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := open(t, dir)
		person, _, err := a.IssueClient(Operator, "anna", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		anna := chain(t, person)
		if _, err := a.VerifyForRenewal(anna); !errors.Is(err, ErrUntrusted) {
			t.Error("a renewal with a user's certificate, want ErrUntrusted:", err)
		}
		early := shown(t, a, func(c *x509.Certificate) {
			c.NotBefore = time.Now().Add(time.Hour)
			c.NotAfter = time.Now().Add(2 * time.Hour)
		})
		if _, err := a.VerifyForRenewal(early); !errors.Is(err, ErrUntrusted) {
			t.Error("a renewal with a certificate that is not valid yet, want ErrUntrusted:", err)
		}
		mine, _ := device(t, a, "pi-1")
		time.Sleep(2 * time.Hour)
		if _, err := a.VerifyForRenewal(anna); !errors.Is(err, ErrUntrusted) {
			t.Error("a renewal with a user's expired certificate, want ErrUntrusted:", err)
		}
		if err := errors.Join(a.RotateIntermediate(), a.Revoke()); err != nil {
			t.Fatal(err)
		}
		if _, err := a.VerifyForRenewal(mine); !errors.Is(err, ErrUntrusted) {
			t.Error("a renewal with a revoked certificate, want ErrUntrusted:", err)
		}
		time.Sleep(LeafLife)
		if _, err := a.VerifyForRenewal(mine); !errors.Is(err, ErrUntrusted) {
			t.Error("a renewal with an expired revoked certificate, want ErrUntrusted:", err)
		}
	})
}

// Revoked keys stay revoked after further rotations and restarts.
func TestRevokedKeysStayRevoked(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	var all [][]*x509.Certificate
	change := func(do ...func() error) {
		t.Helper()
		c, _ := device(t, a, "pi-1")
		all = append(all, c)
		for _, f := range do {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
	}
	look := func() {
		t.Helper()
		for what, a := range map[string]*Authority{"running": a, "after a restart": open(t, dir)} {
			for i, c := range all {
				if _, err := a.Verify(c); !errors.Is(err, ErrUntrusted) {
					t.Errorf("%s: the certificate of generation %d of %d is valid: %v", what, i+1, len(all), err)
				}
			}
			now, _ := device(t, a, "pi-1")
			if _, err := a.Verify(now); err != nil {
				t.Errorf("%s: a new certificate is refused: %v", what, err)
			}
		}
	}
	change(a.RotateIntermediate)
	change(a.RotateIntermediate, a.Revoke) // both at the same time
	look()
	change(a.RotateIntermediate, a.Revoke)
	look()
	change(a.RotateRoot)
	change(a.RotateIntermediate, a.Revoke)
	look()
	if err := os.Chmod(filepath.Join(dir, revokedFile), 0); err != nil ||
		os.Remove(filepath.Join(dir, revokedFile)) != nil || os.Mkdir(filepath.Join(dir, revokedFile), 0o700) != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrKey) {
		t.Error("a start with a damaged list of revoked keys, want ErrKey:", err)
	}
}

// An intermediate cannot sign an authority, and no certificate outlives its issuer.
func TestSignedCertificatesAreLimited(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := open(t, dir)
		if c := a.intermediate.cert; !c.IsCA || c.MaxPathLen != 0 || !c.MaxPathLenZero {
			t.Errorf("an intermediate may sign %d levels of authorities, want none", c.MaxPathLen)
		}
		if c := a.root.cert; c.MaxPathLen != 1 {
			t.Errorf("a root may sign %d levels of authorities, want 1", c.MaxPathLen)
		}
		time.Sleep(rootLife - LeafLife/2)
		c, _ := device(t, a, "pi-1")
		if c[0].NotAfter.After(a.root.cert.NotAfter) || a.intermediate.cert.NotAfter.After(a.root.cert.NotAfter) {
			t.Errorf("the root expires %s, its intermediate %s, a device's certificate %s", a.root.cert.NotAfter,
				a.intermediate.cert.NotAfter, c[0].NotAfter)
		}
	})
	for _, life := range []time.Duration{0, -time.Hour, LeafLife + time.Second} {
		if _, _, err := open(t, dir).IssueClient(Viewer, "anna", life); err == nil {
			t.Errorf("a certificate with the lifetime %s is issued", life)
		}
	}
	for _, role := range []Role{Device, "god", ""} {
		if _, _, err := open(t, dir).IssueClient(role, "anna", time.Hour); err == nil {
			t.Errorf("a user's certificate with the role %q is issued", role)
		}
	}
	if _, _, err := open(t, dir).IssueClient(Viewer, "", time.Hour); err == nil {
		t.Error("a certificate for a user without a name is issued")
	}
}

// TLS configurations use the current roots and the hub's time. The lock file must not be a symbolic
// link.
func TestTLSUsesTheCurrentRoots(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	server := must(a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler)))(t)
	for what, c := range map[string]*tls.Config{"HTTPS": a.HTTPS(server), "MQTT": a.MQTT(server,
		func(Holder) error { return nil })} {
		if c.MinVersion != tls.VersionTLS12 || c.Time == nil {
			t.Errorf("%s has no TLS 1.2 minimum (%x) or not the hub's time", what, c.MinVersion)
		}
	}
	mqtt := a.MQTT(server, func(Holder) error { return nil })
	if mqtt.ClientAuth != tls.RequireAndVerifyClientCert {
		t.Errorf("the MQTT configuration has the client auth %v", mqtt.ClientAuth)
	}
	first := must(mqtt.GetConfigForClient(nil))(t)
	if before := must(mqtt.GetConfigForClient(nil))(t); before != first {
		t.Error("connections do not share their roots")
	}
	before := first.ClientCAs
	if err := a.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	after := must(mqtt.GetConfigForClient(nil))(t).ClientCAs
	if after.Equal(before) || !after.Equal(a.rootPool()) {
		t.Error("after a rotation a handshake still uses the former roots")
	}
	if leaf := must(server.GetCertificate(nil))(t).Leaf; leaf.CheckSignatureFrom(a.intermediate.cert) != nil {
		t.Error("after a rotation the hub sends a certificate of the former intermediate")
	}
	lock := filepath.Join(dir, lockFile)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := errors.Join(os.Remove(lock), os.Symlink(victim, lock)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil {
		t.Error("the lock follows a symbolic link")
	}
	if _, err := os.Stat(victim); err == nil {
		t.Error("the lock creates the target of the link")
	}
}

// After a revocation the files of the former root are removed. The list of revoked keys has the
// former root's key, so that a restored file does not restore trust.
func TestRevokeRemovesTheFormerRoot(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	former := KeyHash(a.root.cert)
	if err := errors.Join(a.RotateRoot(), a.Revoke()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{formerRoot + ".crt", formerRoot + ".key", formerIntermediateFile, crossFile} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s exists: %v", name, err)
		}
	}
	if !slices.Contains(open(t, dir).revoked, former) {
		t.Error("the list of revoked keys lacks the former root's key")
	}
}

// Devices whose certificate was issued before a rotation have to renew it.
func TestOutdatedCertificates(t *testing.T) {
	at := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	since := at.AddDate(0, 1, 0)
	for _, tt := range []struct {
		formerIntermediates int
		signed, now         time.Time
		end                 time.Time
		want                bool
	}{
		{1, at, at, at.Add(LeafLife), true}, {1, at, at, at.Add(LeafLife - time.Hour), true}, {1, at, at, at.Add(LeafLife + time.Second), false}, {0, at, at, at, false},
		{1, at, since, since.Add(LeafLife), false},                // issued now by the current intermediate
		{1, at, since, at.AddDate(9, 0, 0), true},                 // issued by a former intermediate while the clock was in 2035
		{0, at, since, at.AddDate(9, 0, 0), false},                // there is no former intermediate
		{1, time.Unix(600, 0), since, since.Add(LeafLife), false}, // the current intermediate was issued in 1970
	} {
		intermediate := &x509.Certificate{NotAfter: tt.signed.Add(intermediateLife)}
		if got := (Status{Intermediate: intermediate, Signed: tt.signed, FormerIntermediates: tt.formerIntermediates,
			now: tt.now}).Outdated(tt.end); got != tt.want {
			t.Errorf("%+v: %t", tt, got)
		}
	}
}

// The list of files to remove can name only files of the authority's directory.
func TestAnUnfinishedChangeRemovesOnlyItsFiles(t *testing.T) {
	data := t.TempDir()
	dir := filepath.Join(data, "pki")
	open(t, dir)
	victim := filepath.Join(data, "hub.db")
	next := filepath.Join(dir, nextDir)
	if err := errors.Join(os.WriteFile(victim, []byte("all"), 0o600), os.Mkdir(next, 0o700),
		os.WriteFile(filepath.Join(next, removalFile), []byte("../hub.db\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
}

// If a hub has too many names, its certificate has only the first names.
func TestTheNamesInACertificateAreLimited(t *testing.T) {
	a := open(t, t.TempDir())
	names := []string{"hub"}
	for i := range 3 * maxNames {
		names = append(names, fmt.Sprintf("n%d.example", i))
	}
	server := must(a.NewServer(func() []string { return names }, slog.New(slog.DiscardHandler)))(t)
	if got := server.Names(); len(got) != maxNames || got[0] != "hub" {
		t.Errorf("the certificate has %d names", len(got))
	}
}
