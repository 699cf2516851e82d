package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// enroller is the hub: it notes who joins.
type enroller struct {
	joined []Enrolment
	refuse error
}

func (e *enroller) Enroll(_ context.Context, n Enrolment) error {
	if e.refuse == nil {
		e.joined = append(e.joined, n)
	}
	return e.refuse
}

type fixture struct {
	*Guard
	hub *enroller
	log *strings.Builder
}

func guard(t *testing.T, dir string) fixture {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ca, err := pki.Open(dir + "/pki")
	if err != nil {
		t.Fatal(err)
	}
	f := fixture{hub: &enroller{}, log: &strings.Builder{}}
	f.Guard = New(Options{Store: s, Authority: ca, Log: slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Enroller: f.hub, Hub: "h1", MQTT: ":8883", LeaseInterval: 10 * time.Second})
	return f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A machine is a device with a key.
type machine struct{ key *ecdsa.PrivateKey }

func newMachine(t *testing.T) machine {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return machine{key}
}

func (m machine) csr(t *testing.T) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, m.key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

func certificates(t *testing.T, text string) []*x509.Certificate {
	t.Helper()
	var all []*x509.Certificate
	for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		must(t, err)
		all = append(all, c)
	}
	return all
}

// from is a request of the API that comes with a client certificate.
func from(certs []*x509.Certificate) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://hub/api/v1/nodes", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: certs}
	return r
}

const goodPassword = "correct horse battery"

// anna is an administrator with a session.
func anna(t *testing.T, g fixture) *http.Cookie {
	t.Helper()
	must(t, g.CreateUser(t.Context(), NewUser{"anna", goodPassword, Admin}))
	c, err := g.Login(t.Context(), "anna", goodPassword, "10.0.0.1")
	must(t, err)
	return c
}
