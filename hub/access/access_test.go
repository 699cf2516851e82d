package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// fleet is a fake Fleet. It records the devices that join.
type fleet struct {
	mu     sync.Mutex
	joined []Enrolment
	by     map[string]Enrolment
	ended  map[string]wire.Dismissed // dismissal notices by key
	refuse error

	await     func(Applicant) (Verdict, error) // nil: approval is off
	applied   []Applicant
	withdrawn []string
}

func (f *fleet) Enrolment(node string) (Enrolment, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.by[node]
	return e, ok
}

func (f *fleet) all() map[string]Enrolment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.by)
}

func (f *fleet) Enrol(_ context.Context, n Enrolment) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse == nil {
		f.joined = append(f.joined, n)
		f.by[n.Node] = n
	}
	return f.refuse
}

func (f *fleet) Await(_ context.Context, a Applicant) (Verdict, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.applied = append(f.applied, a)
	if f.await == nil {
		return Verdict{}, errors.New("approval is off")
	}
	return f.await(a)
}

func (f *fleet) Withdraw(_ context.Context, key, token, why string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.withdrawn = append(f.withdrawn, token+": "+why)
	return nil
}

func (f *fleet) Renewed(_ context.Context, node, key string, expires time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.by[node]
	e.Expires = expires
	f.by[node] = e
	return nil
}

func (f *fleet) Dismissed(key string) *wire.Dismissed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d, ok := f.ended[key]; ok {
		return &d
	}
	return nil
}

// expel ends an enrolment, as when its Node is deleted.
func (f *fleet) expel(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[f.by[node].Key] = wire.Dismissed{Time: time.Now(), By: "anna", Reason: "Node " + node + " was deleted"}
	delete(f.by, node)
}

type fixture struct {
	*Guard
	hub *fleet
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
	f := fixture{hub: &fleet{by: map[string]Enrolment{}, ended: map[string]wire.Dismissed{}}, log: &strings.Builder{}}
	f.Guard = New(Options{Store: s, Authority: ca,
		Log:   slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Fleet: f.hub, Hub: "h1", MQTT: []string{":8883"}, LeaseInterval: 10 * time.Second})
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

// from returns an API request with a client certificate.
func from(certs []*x509.Certificate) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://hub/api/v1/nodes", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: certs}
	return r
}

const goodPassword = "correct horse battery"

// anna creates an administrator and returns the cookie of a session.
func anna(t *testing.T, g fixture) *http.Cookie {
	t.Helper()
	must(t, g.CreateUser(t.Context(), NewUser{"anna", goodPassword, Admin}))
	c, err := g.Login(t.Context(), "anna", goodPassword, "10.0.0.1")
	must(t, err)
	return c
}
