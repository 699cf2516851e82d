package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/wire"
)

func must[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func open(t *testing.T, dir string) *Authority {
	t.Helper()
	return must(Open(dir))(t)
}

// request returns a certificate request signed by key.
func request(t *testing.T, key any) []byte {
	t.Helper()
	der := must(x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "admin", Organization: []string{"flotilla:admins"}}}, key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func chain(t *testing.T, text []byte) []*x509.Certificate {
	t.Helper()
	var all []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		all = append(all, must(x509.ParseCertificate(block.Bytes))(t))
	}
	return all
}

// device issues the certificate of a node.
func device(t *testing.T, a *Authority, node string) ([]*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := must(newKey())(t)
	r := must(ParseRequest(request(t, key)))(t)
	c := must(a.SignDevice(r, node))(t)
	certs := chain(t, c.ChainPEM)
	if KeyHash(certs[0]) != r.KeyHash() {
		t.Fatal("the request's key hash is not the certificate's")
	}
	return certs, key
}

func TestTheAuthorityIsCreatedOnceWithPrivateFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	a := open(t, dir)
	if len(a.Pin()) != 32 || a.Pin() != KeyHash(a.root.cert)[:32] {
		t.Fatal(a.Pin())
	}
	if b := open(t, dir); b.Pin() != a.Pin() || !b.intermediate.cert.Equal(a.intermediate.cert) {
		t.Fatal("the second start creates another authority")
	}
	if y := time.Until(a.root.cert.NotAfter).Hours() / 24 / 365; y < 9.9 || y > 10.1 {
		t.Fatalf("the root is valid for %v years", y)
	}
	if y := time.Until(a.intermediate.cert.NotAfter).Hours() / 24 / 365; y < 1.9 || y > 2.1 {
		t.Fatalf("the intermediate is valid for %v years", y)
	}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if info, _ := d.Info(); info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAnUnusableKeyIsRefusedInOneSentence(t *testing.T) {
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))(t)
	rsaText := must(encodeKey(rsaKey))(t)
	for _, c := range []struct {
		name  string
		spoil func(dir string) error
		says  string
	}{
		{"no root key", func(d string) error { return os.Remove(d + "/root.key") }, "root.key: certificate authority unusable: it is missing, but root.crt"},
		{"no root certificate", func(d string) error { return os.Remove(d + "/root.crt") }, "a new root would lock every device out"},
		{"another authority's root key", func(d string) error { return os.Rename(d+"/intermediate.key", d+"/root.key") }, "it is not the key of root.crt"},
		{"an empty key", func(d string) error { return os.WriteFile(d+"/root.key", nil, 0o600) }, "not a PEM key"},
		{"an RSA key", func(d string) error { return os.WriteFile(d+"/root.key", rsaText, 0o600) }, "not ECDSA P-256"},
		{"a key that other users may read", func(d string) error { return os.Chmod(d+"/root.key", 0o640) }, "chmod 600"},
		{"a cut certificate", func(d string) error { return os.Truncate(d+"/root.crt", 100) }, "not a PEM certificate"},
		{"an intermediate of another authority", func(d string) error {
			other := t.TempDir()
			if _, err := Open(other); err != nil {
				return err
			}
			return errors.Join(os.Rename(other+"/intermediate.key", d+"/intermediate.key"), os.Rename(other+"/intermediate.crt",
				d+"/intermediate.crt"))
		}, "not signed by root.crt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			open(t, dir)
			if err := c.spoil(dir); err != nil {
				t.Fatal(err)
			}
			_, err := Open(dir)
			if !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("no %q in %v", c.says, err)
			}
		})
	}
}

func TestADeviceCertificateHasOnlyTheHubsNames(t *testing.T) {
	a := open(t, t.TempDir())
	certs, _ := device(t, a, "pi-1.oslo")
	leaf := certs[0]
	if leaf.Subject.CommonName != "pi-1.oslo" || !slices.Equal(leaf.Subject.Organization, []string{"flotilla:devices"}) ||
		len(leaf.URIs) != 1 || leaf.URIs[0].String() != "fleet://node/pi-1.oslo" || leaf.IsCA {
		t.Fatalf("the certificate's subject is %v, its URIs are %v; want those of pi-1.oslo", leaf.Subject, leaf.URIs)
	}
	if d := time.Until(leaf.NotAfter); d < 364*24*time.Hour || d > 366*24*time.Hour {
		t.Fatal(d)
	}
	if d := time.Since(leaf.NotBefore); d < 23*time.Hour || d > 25*time.Hour {
		t.Fatal(d)
	}
	if d := time.Since(IssuedAt(leaf)); d < 0 || d > time.Minute {
		t.Fatalf("IssuedAt is %v ago", d)
	}
	h := must(a.Verify(certs))(t)
	if h.Role != Device || h.Name != "pi-1.oslo" {
		t.Fatalf("the holder is %+v, want device pi-1.oslo", h)
	}
	for _, node := range []string{"", "Pi", "pi_1", "../x", "a b", strings.Repeat("a", 254)} {
		key := must(newKey())(t)
		if _, err := a.SignDevice(must(ParseRequest(request(t, key)))(t), node); err == nil {
			t.Errorf("a certificate is signed for the node name %q", node)
		}
	}
}

func TestBadRequestsAreNotSigned(t *testing.T) {
	small := must(rsa.GenerateKey(rand.Reader, 1024))(t)
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))(t)
	good := request(t, must(newKey())(t))
	forged, _ := pem.Decode(good)
	forged.Bytes[len(forged.Bytes)-1] ^= 1
	for name, text := range map[string][]byte{
		"nothing":           nil,
		"text":              []byte("hello"),
		"a certificate":     open(t, t.TempDir()).RootPEM(),
		"a small RSA key":   request(t, small),
		"a weak curve":      request(t, p224),
		"a wrong signature": pem.EncodeToMemory(forged),
		"cut":               good[:len(good)/2],
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := ParseRequest(text); !errors.Is(err, ErrRequest) {
				t.Fatal(err)
			}
		})
	}
}

func FuzzParseRequest(f *testing.F) {
	key, err := newKey()
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := ParseRequest(text); err == nil && (len(r.KeyHash()) != 64 || r.key == nil) {
			t.Fatal("a request without a key is accepted")
		}
	})
}

func TestRefusedCertificates(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := open(t, dir)
		other := open(t, t.TempDir())
		mine, key := device(t, a, "pi-1")
		foreign, _ := device(t, other, "pi-1")
		server := must(a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler)))(t)
		own := must(x509.ParseCertificate(server.current.Certificate[0]))(t)
		forger := must(newKey())(t)
		// A device's certificate is not a CA, so it cannot sign another certificate.
		der := must(x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: serial(time.Now()),
			Subject:   pkix.Name{CommonName: "root", Organization: []string{"flotilla:admins"}},
			NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, mine[0], forger.Public(), key))(t)
		forged := must(x509.ParseCertificate(der))(t)

		if _, err := a.Verify(nil); !errors.Is(err, ErrNoCertificate) {
			t.Error("no certificate, want ErrNoCertificate:", err)
		}
		for name, shown := range map[string][]*x509.Certificate{
			"another authority's":                          foreign,
			"the hub's server certificate":                 {own, mine[1]},
			"the intermediate itself":                      {mine[1]},
			"a certificate that a device signed":           {forged, mine[0], mine[1]},
			"a certificate with another authority's chain": {foreign[0], mine[1]},
		} {
			if h, err := a.Verify(shown); !errors.Is(err, ErrUntrusted) {
				t.Errorf("%s: %+v %v, want ErrUntrusted", name, h, err)
			}
		}
		if _, err := a.Verify(mine[:1]); err != nil {
			t.Error("a leaf of the current intermediate without its chain:", err)
		}

		time.Sleep(LeafLife + time.Hour)
		if _, err := a.Verify(mine); !errors.Is(err, ErrUntrusted) {
			t.Error("an expired certificate, want ErrUntrusted:", err)
		}
		if h, err := a.VerifyForRenewal(mine); err != nil || h.Name != "pi-1" {
			t.Error("a renewal with an expired certificate:", err)
		}
		if _, err := a.VerifyForRenewal(foreign); !errors.Is(err, ErrUntrusted) {
			t.Error("a renewal with another authority's certificate, want ErrUntrusted:", err)
		}
		time.Sleep(RenewalGrace)
		if _, err := a.VerifyForRenewal(mine); !errors.Is(err, ErrUntrusted) {
			t.Error("a renewal after the grace period, want ErrUntrusted:", err)
		}
	})
}

func TestCertificatesOfUsers(t *testing.T) {
	a := open(t, t.TempDir())
	for _, role := range []Role{Admin, Operator, Viewer} {
		cert, key, err := a.IssueClient(role, "anna", 90*24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tls.X509KeyPair(cert, key); err != nil {
			t.Fatal(err)
		}
		if h := must(a.Verify(chain(t, cert)))(t); h.Role != role || h.Name != "anna" {
			t.Fatalf("the holder is %+v, want anna with the role %s", h, role)
		}
		if _, err := a.VerifyForRenewal(chain(t, cert)); !errors.Is(err, ErrUntrusted) {
			t.Fatal("a renewal with a user's certificate", err)
		}
	}
	for name, c := range map[string]struct {
		role Role
		user string
		life time.Duration
	}{"a device": {Device, "pi", time.Hour}, "no role": {"", "anna", time.Hour}, "nobody": {Admin, "", time.Hour},
		"for ever": {Admin, "anna", 20 * LeafLife}} {
		if _, _, err := a.IssueClient(c.role, c.user, c.life); err == nil {
			t.Errorf("a certificate is issued for %s", name)
		}
	}
}

// An external broker identifies clients only by their common names.
func TestOnlyANodeHasANodesCommonName(t *testing.T) {
	a := open(t, t.TempDir())
	for role := range organizations {
		if role == Device || role == Hub || role == Peer {
			continue
		}
		for _, name := range []string{"pi-1", HubName, "a"} {
			cert, _, err := a.IssueClient(role, name, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			all := chain(t, cert)
			if common := all[0].Subject.CommonName; wire.ValidNode(common) == nil || common == HubName || common == name {
				t.Errorf("the certificate of %s %s has the name %q", role, name, common)
			}
			if h := must(a.Verify(all))(t); h.Role != role || h.Name != name {
				t.Errorf("the hub verifies %s %s as %+v", role, name, h)
			}
		}
		// Certificates of older hubs stay valid.
		cert, _, err := a.issueClient(organizations[role], "pi-1", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if h := must(a.Verify(chain(t, cert)))(t); h.Role != role || h.Name != "pi-1" {
			t.Errorf("the hub verifies an older certificate of %s as %+v", role, h)
		}
	}
	if wire.ValidNode(UserPrefix+"x") == nil || wire.ValidNode(ObserverPrefix+"x") == nil {
		t.Error("a node may have a name with a prefix")
	}
}

// During nine years of a hub that restarts each month, a client that renews in time is always
// accepted.
func TestAuthoritiesAndCertificatesRenewThemselves(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		certs, _ := device(t, open(t, dir), "pi-1")
		middles := map[string]bool{}
		for month := range 9 * 12 {
			a := open(t, dir)
			middles[KeyHash(a.intermediate.cert)] = true
			if _, err := a.Verify(certs); err != nil {
				t.Fatalf("month %d: %v", month, err)
			}
			server := must(a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler)))(t)
			roots := x509.NewCertPool()
			roots.AddCert(a.root.cert)
			between := x509.NewCertPool()
			between.AddCert(must(x509.ParseCertificate(server.current.Certificate[1]))(t))
			if _, err := server.current.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between,
				DNSName: "hub"}); err != nil {
				t.Fatalf("month %d: server: %v", month, err)
			}
			if time.Until(certs[0].NotAfter) < LeafLife/2 {
				certs, _ = device(t, a, "pi-1")
			}
			time.Sleep(30 * 24 * time.Hour)
		}
		if len(middles) < 8 || len(middles) > 12 {
			t.Fatalf("%d intermediates in nine years, want 8 to 12", len(middles))
		}
	})
}

func TestTheHubsCertificateFollowsItsNames(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		names := []string{"gateway", "192.168.1.10"}
		s := must(open(t, dir).NewServer(func() []string { return names }, slog.New(slog.DiscardHandler)))(t)
		first := s.current
		get := func() *tls.Certificate { return must(s.GetCertificate(nil))(t) }
		if err := first.Leaf.VerifyHostname("192.168.1.10"); err != nil {
			t.Fatal(err)
		}
		names = []string{"gateway"} // the current certificate covers a smaller list of names
		time.Sleep(2 * compareEvery)
		if get() != first {
			t.Fatal("the certificate is renewed although it has all names")
		}
		names = []string{"gateway", "10.0.0.7"}
		time.Sleep(2 * compareEvery)
		second := get()
		if second == first || second.Leaf.VerifyHostname("10.0.0.7") != nil || !slices.Equal(s.Names(), names) {
			t.Fatalf("the certificate lacks the new address: %v", s.Names())
		}
		again := must(open(t, dir).NewServer(func() []string { return names }, slog.New(slog.DiscardHandler)))(t)
		if !again.current.Leaf.Equal(second.Leaf) {
			t.Fatal("a restart issues another certificate")
		}
		time.Sleep(LeafLife - serverRenew + time.Hour)
		if third := get(); third.Leaf.Equal(second.Leaf) {
			t.Fatal("the certificate is not renewed in time")
		}
	})
}

// handshake connects a client to a server configuration in memory.
func handshake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	c, s := net.Pipe()
	defer c.Close()
	defer s.Close()
	done := make(chan error, 1)
	go func() {
		conn := tls.Server(s, server)
		err := conn.Handshake()
		if err != nil {
			_ = s.Close()
		}
		done <- err
	}()
	conn := tls.Client(c, client)
	if err := conn.Handshake(); err != nil {
		_ = c.Close()
		<-done
		return err
	}
	return <-done
}

func TestMQTTAcceptsOnlyAllowedDevices(t *testing.T) {
	a := open(t, t.TempDir())
	server := must(a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler)))(t)
	revoked := errors.New("revoked")
	mqtt := a.MQTT(server, func(h Holder) error {
		if h.Name == "thief" {
			return revoked
		}
		return nil
	})
	roots := x509.NewCertPool()
	roots.AddCert(a.root.cert)
	of := func(certs []*x509.Certificate, key any) []tls.Certificate {
		c := tls.Certificate{PrivateKey: key}
		for _, x := range certs {
			c.Certificate = append(c.Certificate, x.Raw)
		}
		return []tls.Certificate{c}
	}
	person := func() []tls.Certificate {
		cert, key, err := a.IssueClient(Admin, "anna", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{must(tls.X509KeyPair(cert, key))(t)}
	}
	for _, c := range []struct {
		name string
		with []tls.Certificate
		want error // nil: accepted
		out  bool
	}{
		{"a device", of(device(t, a, "pi-1")), nil, false},
		{"nobody", nil, nil, true},
		{"a revoked device", of(device(t, a, "thief")), revoked, true},
		{"an administrator", person(), ErrUntrusted, true},
		{"a device of another hub", of(device(t, open(t, t.TempDir()), "pi-1")), nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen error
			server := must(mqtt.GetConfigForClient(nil))(t).Clone() // as crypto/tls does for each handshake
			verify := server.VerifyConnection
			server.VerifyConnection = func(s tls.ConnectionState) error { seen = verify(s); return seen }
			client := &tls.Config{RootCAs: roots, ServerName: "hub", MaxVersion: tls.VersionTLS12}
			if len(c.with) > 0 { // sends the certificate even if the hub's hint excludes it
				client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c.with[0], nil }
			}
			err := handshake(t, server, client)
			if (err != nil) != c.out || c.want != nil && !errors.Is(seen, c.want) {
				t.Fatalf("handshake %v, verification %v; want %v", err, seen, c.want)
			}
		})
	}
	if mqtt.MinVersion < tls.VersionTLS12 {
		t.Fatal("a handshake with old TLS succeeds")
	}
}

func TestCBCSuitesAreRefused(t *testing.T) {
	a := open(t, t.TempDir())
	server := must(a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler)))(t)
	for name, side := range map[string]*tls.Config{"HTTPS": a.HTTPS(server), "MQTT": a.MQTT(server,
		func(Holder) error { return nil })} {
		for suite, spoken := range map[uint16]bool{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA: false, tls.TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA: false,
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256: true,
		} {
			client := trusting(t, a.RootPEM(), keyed(t, a, "pi-1"))
			client.MaxVersion, client.CipherSuites = tls.VersionTLS12, []uint16{suite}
			if err := handshake(t, side, client); (err == nil) != spoken {
				t.Errorf("%s by %s: %v, want accepted: %v", name, tls.CipherSuiteName(suite), err, spoken)
			}
		}
	}
}

// With a session ticket, a certificate that was revoked in the meantime would be accepted.
func TestTLSSessionsAreNotResumed(t *testing.T) {
	a := open(t, t.TempDir())
	server := must(a.NewServer(func() []string { return []string{"hub"} }, slog.New(slog.DiscardHandler)))(t)
	var resumed []bool
	mqtt := a.MQTT(server, func(Holder) error { return nil })
	verify := mqtt.VerifyConnection
	mqtt.VerifyConnection = func(s tls.ConnectionState) error {
		resumed = append(resumed, s.DidResume)
		return verify(s)
	}
	client := trusting(t, a.RootPEM(), keyed(t, a, "pi-1"))
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	for range 2 {
		if err := handshake(t, mqtt, client); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(resumed, []bool{false, false}) {
		t.Errorf("a session is resumed: %v", resumed)
	}
}

// A key is written only into its directory, also as a temporary file, so that a killed hub leaves
// no key elsewhere.
func TestAKeyIsWrittenOnlyIntoItsDirectory(t *testing.T) {
	elsewhere, old := t.TempDir(), time.Unix(1, 0)
	t.Setenv("TMPDIR", elsewhere)
	if err := os.Chtimes(elsewhere, old, old); err != nil {
		t.Fatal(err)
	}
	a, err := Open(filepath.Join(t.TempDir(), "hub"))
	if err == nil {
		_, err = a.FirmwareKey()
	}
	if err == nil {
		_, err = a.NewServer(func() []string { return []string{"localhost"} }, slog.New(slog.DiscardHandler))
	}
	if err == nil {
		err = a.RotateIntermediate()
	}
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(elsewhere); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("a file is written into $TMPDIR: %v", err)
	}
}
