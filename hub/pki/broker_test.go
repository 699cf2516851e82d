package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"flotilla.dev/shared/wire"
)

func TestADeviceSignsItsBoot(t *testing.T) {
	ec, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"ECDSA": ec, "Ed25519": ed, "RSA": rs} {
		t.Run(name, func(t *testing.T) {
			spki, err := x509.MarshalPKIXPublicKey(key.Public())
			if err != nil {
				t.Fatal(err)
			}
			text, hash := wire.ProofText("h1", "pi-1", "b1"), crypto.Hash(0)
			if name != "Ed25519" {
				sum := sha256.Sum256(text)
				text, hash = sum[:], crypto.SHA256
			}
			signature, err := key.Sign(rand.Reader, text, hash)
			if err != nil {
				t.Fatal(err)
			}
			p := &wire.Proof{Key: spki, Signature: signature}
			if got, err := Proved("h1", "pi-1", "b1", p); err != nil ||
				got != KeyHash(&x509.Certificate{RawSubjectPublicKeyInfo: spki}) {
				t.Errorf("%s, %v", got, err)
			}
			for what, wrong := range map[string]func() (string, error){
				"another boot": func() (string, error) { return Proved("h1", "pi-1", "b2", p) },
				"another node": func() (string, error) { return Proved("h1", "pi-2", "b1", p) },
				"another hub":  func() (string, error) { return Proved("h2", "pi-1", "b1", p) },
				"no signature": func() (string, error) { return Proved("h1", "pi-1", "b1", &wire.Proof{Key: spki}) },
				"no key":       func() (string, error) { return Proved("h1", "pi-1", "b1", &wire.Proof{Signature: signature}) },
				"none":         func() (string, error) { return Proved("h1", "pi-1", "b1", nil) },
			} {
				if got, err := wrong(); !errors.Is(err, ErrProof) || got != "" {
					t.Errorf("%s: %q, %v; want ErrProof", what, got, err)
				}
			}
		})
	}
}

func TestTheHubAndABrokerAuthenticateEachOther(t *testing.T) {
	a, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	other, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	serverOf := func(a *Authority, names ...string) *tls.Config {
		chain, key, err := a.IssueServer(names)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs: a.rootPool()}
	}
	shake := func(server *tls.Config, name string) (tls.ConnectionState, error) {
		near, far := net.Pipe()
		defer near.Close()
		conf := a.AtBroker()
		verify := conf.VerifyConnection
		conf.ServerName, conf.VerifyConnection = name,
			func(s tls.ConnectionState) error { s.ServerName = name; return verify(s) }
		s := tls.Server(far, server)
		done := make(chan error, 1)
		go func() { err := s.Handshake(); done <- err; far.Close() }()
		err := tls.Client(near, conf).Handshake()
		near.Close()
		<-done
		return s.ConnectionState(), err
	}
	state, err := shake(serverOf(a, "broker.example", "192.0.2.1"), "192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	leaf := state.PeerCertificates[0]
	if leaf.Subject.CommonName != HubName || !slices.Equal(leaf.Subject.Organization, []string{HubOrganization}) ||
		wire.ValidNode(leaf.Subject.CommonName) == nil {
		t.Errorf("the hub's certificate has the subject %s", leaf.Subject)
	}
	for what, c := range map[string]struct {
		server *tls.Config
		name   string
	}{"another name": {serverOf(a, "broker.example"), "other.example"},
		"another authority": {serverOf(other, "broker.example"), "broker.example"}, "no name": {serverOf(a, "broker.example"), ""}} {
		if _, err := shake(c.server, c.name); err == nil {
			t.Errorf("%s: the hub accepts the broker", what)
		}
	}
	// The hub refuses a broker's certificate as a client, and never issues a certificate with its
	// own role to a user.
	chain, _, err := a.IssueServer([]string{"broker.example"})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(chain)
	cert, _ := x509.ParseCertificate(block.Bytes)
	if h, err := a.Verify([]*x509.Certificate{cert}); err == nil {
		t.Errorf("a broker's certificate is accepted as %+v", h)
	}
	if _, _, err := a.IssueClient(Hub, "me", LeafLife); err == nil || !strings.Contains(err.Error(),
		"not a role of a person") {
		t.Errorf("a user gets a certificate with the role of the hub: %v", err)
	}
}
