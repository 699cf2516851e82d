// Package access says who may come in and what they may do: devices that join
// with a token, people with a password, a session, an API token or a client
// certificate, and the roles of all of them.
//
// It keeps hashes, never secrets, and it asks for every single request: nothing
// is cached, so what is revoked is revoked at once, by a command beside the
// running hub too. It serves no page and knows no object: package kube and
// package admin ask Authenticate and Allow, the broker asks May, and the hub
// mounts the handlers of joining. Certificates are signed by package pki, and
// everything is remembered by package store.
package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// Sentinels, by what the caller has to do about them.
var (
	ErrUnauthenticated = errors.New("not logged in")             // 401
	ErrForbidden       = errors.New("not allowed")               // 403
	ErrInvalid         = errors.New("invalid")                   // 400: the sender has to change something
	ErrConflict        = errors.New("conflict")                  // 409
	ErrTooMany         = errors.New("too many failed attempts")  // 429
	ErrRefused         = errors.New("refused")                   // an Enroller's no; its text is told to the device
	errUnavailable     = errors.New("the hub cannot answer now") // 503
)

// An Enrolment is a device that is about to become a node's.
type Enrolment struct {
	Node      string
	MachineID string // "": not known
	Site      string
	Labels    map[string]string // the token's: an administrator's word
	Token     string            // id
	Replaces  bool              // another key spoke for the node until now: new hardware, or a fresh installation
	At        time.Time
}

// An Enroller is the hub, which learns of every device before it gets its
// certificate. An error that is ErrRefused is told to the device.
type Enroller interface {
	Enroll(ctx context.Context, e Enrolment) error
}

// Options say what a Guard works with.
type Options struct {
	Store     *store.Store
	Authority *pki.Authority
	Log       *slog.Logger // nil: slog.Default()

	// The following are for joining; a command beside the hub leaves them out.
	Enroller      Enroller
	Hub           string        // identity
	MQTT          string        // host:port of the TLS listener; without a host devices use the one that they joined through
	LeaseInterval time.Duration // whole seconds
}

// A Guard answers who may. Its methods may be called from any goroutine.
type Guard struct {
	Options
	failures lockout
	joins    *rate.Limiter
	joining  sync.Mutex    // one join is decided at a time
	hashing  chan struct{} // argon2id costs 19 MiB: so many at once
}

// New returns a guard.
func New(o Options) *Guard {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return &Guard{Options: o, joins: rate.NewLimiter(20, 100), hashing: make(chan struct{}, 2)}
}

// Record remembers who did what. A record that cannot be kept is logged, and
// stops nobody: the change itself was remembered before.
func (g *Guard) Record(ctx context.Context, a store.Audit) {
	if a.At.IsZero() {
		a.At = time.Now()
	}
	if err := g.Store.AddAudit(context.WithoutCancel(ctx), a); err != nil {
		g.Log.Error("cannot keep an audit record", "who", a.Who, "verb", a.Verb, "resource", a.Resource, "name", a.Name, "err", err)
	}
}

// newSecret is 130 random bits as 26 letters and digits.
func newSecret() string { return strings.ToLower(rand.Text()) }

// newID is 50 random bits: a name for a secret, which may be shown.
func newID() string { return strings.ToLower(rand.Text()[:10]) }

// hash is how a secret of newSecret is kept. It has no salt and no cost: nobody guesses 130 bits.
func hash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

func same(a, b []byte) bool { return subtle.ConstantTimeCompare(a, b) == 1 }

// Source is the address that a request comes from. Headers of proxies are not
// believed: anybody can send them.
func Source(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// network is whom a source's failures are counted for: an IPv6 customer has a whole /64.
func network(source string) string {
	a, err := netip.ParseAddr(source)
	if err != nil {
		return source
	}
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a.String()
	}
	p, _ := a.Prefix(64)
	return p.String()
}
