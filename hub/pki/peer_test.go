package pki

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// shake runs a handshake and returns the server's error.
func shake(t *testing.T, server, client *tls.Config) error {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() {
		c := tls.Client(b, client)
		if c.Handshake() == nil {
			_, _ = c.Read(make([]byte, 1))
		}
		_ = b.Close()
	}()
	return tls.Server(a, server).Handshake()
}

// A peer certificate is valid only at the peer listener.
func TestOnlyHubsOfTheFleetConnectToThePeerListener(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	a, err := Open(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.NewServer(func() []string { return []string{"hub.example"} }, log)
	if err != nil {
		t.Fatal(err)
	}
	peers := a.Peers(server)
	client := a.NewPeerClient("hub-b").Config("hub.example")
	if err := shake(t, peers, client); err != nil {
		t.Fatalf("a hub of the fleet is refused: %v", err)
	}
	if err := a.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	p := a.NewPeerClient("hub-b")
	if err := shake(t, peers, p.Config("hub.example")); err != nil {
		t.Fatalf("after a rotation the hub is refused: %v", err)
	}
	if err := a.Revoke(); err != nil {
		t.Fatal(err)
	}
	if err := shake(t, peers, p.Config("hub.example")); err != nil {
		t.Fatalf("after the revocation the hub is refused: %v", err)
	}
	other, err := Open(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	strange := other.NewPeerClient("hub-b").Config("hub.example")
	strange.RootCAs = a.rootPool()
	if err := shake(t, peers, strange); err == nil {
		t.Error("a hub of another fleet is accepted")
	}
	nobody := &tls.Config{RootCAs: a.rootPool(), ServerName: "hub.example", Time: a.now}
	if err := shake(t, peers, nobody); err == nil {
		t.Error("a client without a certificate is accepted")
	}
	for _, role := range []Role{Admin, Operator, Viewer, Observer} {
		chain, key, err := a.IssueClient(role, "kari", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		c := nobody.Clone()
		c.Certificates = []tls.Certificate{pair}
		if err := shake(t, peers, c); err == nil {
			t.Errorf("the role %s is accepted", role)
		}
	}
	if _, _, err := a.IssueClient(Peer, "kari", time.Hour); err == nil {
		t.Error("a user gets the certificate of a hub")
	}
	mqtt := a.MQTT(server, func(Holder) error { return nil })
	if err := shake(t, mqtt, p.Config("hub.example")); err == nil {
		t.Error("a hub is accepted as a device")
	}
}

// A copy of the authority signs and verifies like the original, and follows its changes. An
// authority that devices may trust is not overwritten by another one.
func TestHubsOfOneDatabaseShareTheAuthority(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	a, err := OpenWith(first, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.FirmwareKey(); err != nil {
		t.Fatal(err)
	}
	files, err := a.Files()
	if err != nil {
		t.Fatal(err)
	}
	if err := Install(second, "db-1", files); err != nil {
		t.Fatal(err)
	}
	b, err := OpenWith(second, "")
	if err != nil {
		t.Fatal(err)
	}
	if a.Pin() != b.Pin() || KeyHash(a.intermediate.cert) != KeyHash(b.intermediate.cert) {
		t.Fatal("the copy is a different authority")
	}
	var kept map[string][]byte
	a.Keep = func(all map[string][]byte) error { kept = maps.Clone(all); return nil }
	if err := a.RotateRoot(); err != nil {
		t.Fatal(err)
	}
	if files, err = a.Files(); err != nil || !maps.EqualFunc(files, kept, slices.Equal) {
		t.Fatalf("the stored files differ from those of the authority: %v", err)
	}
	if err := Install(second, "db-1", kept); err != nil {
		t.Fatal(err)
	}
	if b, err = OpenWith(second, ""); err != nil || b.Pin() != a.Pin() || b.former.cert == nil {
		t.Fatalf("the copy does not follow a rotation: %v", err)
	}
	if err := a.Revoke(); err != nil {
		t.Fatal(err)
	}
	if err := Install(second, "db-1", kept); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(second, "pki", "former-root.key")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the copy has the former root's key after its revocation")
	}
	if err := Install(second, "db-2", map[string][]byte{"root.crt": []byte("x")}); !errors.Is(err, ErrKey) {
		t.Errorf("another database's authority replaces the copy: %v", err)
	}
	if err := Install(first, "db-1", kept); err != nil {
		t.Errorf("Install fails at the hub with the original authority: %v", err)
	}
	own := t.TempDir()
	if _, err := OpenWith(own, ""); err != nil {
		t.Fatal(err)
	}
	if err := Install(own, "db-1", kept); !errors.Is(err, ErrKey) {
		t.Errorf("Install overwrites a hub's own authority: %v", err)
	}
	if b, err = OpenWith(second, ""); err != nil {
		t.Fatal(err)
	}
	if err := b.Protect([]byte("a long passphrase")); !errors.Is(err, ErrKey) {
		t.Errorf("a copy is changed, which the next start would undo: %v", err)
	}
	no := errors.New("no")
	a.Keep = func(map[string][]byte) error { return no }
	pin := a.Pin()
	if err := a.RotateRoot(); !errors.Is(err, no) || a.Pin() != pin {
		t.Errorf("the authority changes although Keep fails: %v", err)
	}
}
