// Package access says who may come in and what they may do: devices that join
// with a token, people with a password, a session, an API token or a client
// certificate, and the roles of all of them.
//
// It keeps hashes, never secrets, and it asks for every single request: nothing
// is cached, so what is revoked is revoked at once, by a command next to the
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
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// Sentinels, by what the caller has to do about them.
var (
	ErrUnauthenticated = errors.New("not logged in")             // 401
	ErrForbidden       = errors.New("not allowed")               // 403
	ErrInvalid         = errors.New("invalid")                   // 400: the sender has to change something
	ErrConflict        = errors.New("conflict")                  // 409
	ErrTooMany         = errors.New("too many failed attempts")  // 429
	ErrBusy            = errors.New("too many at once")          // 429: the same again, a little later
	ErrRefused         = errors.New("refused")                   // the Fleet's no; its text is told to the device
	errUnavailable     = errors.New("the hub cannot answer now") // 503
)

// An Enrolment is the one key that speaks for a node. A node without one is not let in.
type Enrolment struct {
	Node      string
	Key       string // sha256 of the public key, hex
	MachineID string // "": not known
	Site      string
	Labels    map[string]string // the token's: an administrator's word
	Token     string            // id of the one that it joined with
	At        time.Time
	Expires   time.Time // of the newest certificate

	// Request is the one by which it was approved of, "" where nobody was asked; in the
	// same transaction Certificate (PEM) is noted there.
	Request     string
	Certificate []byte
}

// A Fleet keeps the enrolments, in one transaction with the Nodes that they are of.
type Fleet interface {
	Enrolment(node string) (Enrolment, bool)
	// Enrol makes a key the one that speaks for a node. When it returns, that is
	// durable, and the session of whoever spoke for it before is closed. An error
	// that is ErrRefused is told to the device.
	Enrol(ctx context.Context, e Enrolment) error
	// Await asks for an administrator's word about a device with a right token, or
	// says what it was. An error that is ErrRefused or ErrBusy is told to the device.
	Await(ctx context.Context, a Applicant) (Verdict, error)
	// Withdraw ends the request of a device that may not join any more.
	Withdraw(ctx context.Context, key, token, why string) error
	// Renewed notes that the key of a node has a newer certificate.
	Renewed(ctx context.Context, node, key string, expires time.Time) error
	// Dismissed returns what is told to the holder of a key whose enrolment has
	// ended, nil for one that nobody knows.
	Dismissed(key string) *wire.Dismissed
}

// Options say what a Guard works with.
type Options struct {
	Store     *store.Store
	Authority *pki.Authority
	Log       *slog.Logger // nil: slog.Default()
	// Now is the hub's time, by which everything here begins and ends; nil: the machine's.
	Now func() time.Time

	// The following are for joining; a command of the machine leaves them out.
	Fleet Fleet
	// RequireApproval makes every device that joins wait for approval, not only those
	// whose token says so.
	RequireApproval bool
	Hub             string // identity
	// host:port of the TLS listener or of each broker; without a host devices use the one that they joined through
	MQTT          []string
	Hubs          []string      // host:port of the HTTPS listener of each of several hubs
	External      bool          // MQTT are a broker's
	Prefix        string        // of all topics; empty: wire.DefaultPrefix
	LeaseInterval time.Duration // whole seconds
	FirmwareKey   []byte        // by which devices know boot configurations: Ed25519, public
}

// A Guard answers who may. Its methods may be called from any goroutine.
type Guard struct {
	Options
	failures lockout
	ties     sessionWatches
	known    known         // for as long as the database does not answer
	joining  chan struct{} // one join is decided at a time
	renewals allowances    // of each node's certificate
	requests allowances    // to wait for approval, with each token
	hashing  chan struct{} // argon2id costs 19 MiB: so many strangers' at once
	settled  chan struct{} // and so many of those who were here before
}

// New returns a guard.
func New(o Options) *Guard {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Guard{Options: o, joining: make(chan struct{}, 1),
		renewals: allowances{every: renewEvery, burst: renewBurst},
		requests: allowances{every: requestEvery, burst: requestBurst}, hashing: make(chan struct{}, 2),
		settled: make(chan struct{}, 1)}
}

// Record remembers who did what, before it is answered. A record that cannot be
// kept is logged, and stops nobody: the change itself was remembered before.
func (g *Guard) Record(ctx context.Context, a store.Audit) {
	if a.Code >= http.StatusBadRequest { // nobody got anything: a flood of it must not be one of waiting
		g.Note(a)
		return
	}
	a = g.stamped(a)
	if err := g.Store.AddAudit(context.WithoutCancel(ctx), a); err != nil {
		g.Log.Error("cannot keep an audit record", "who", a.Who, "verb", a.Verb, "resource", a.Resource, "name", a.Name,
			"err", err)
	}
}

// Note remembers within a second, or with what is written before that: for what
// got nobody anything, and for changes, which are remembered by themselves.
func (g *Guard) Note(a store.Audit) { g.Store.NoteAudit(g.stamped(a)) }

func (g *Guard) stamped(a store.Audit) store.Audit {
	if a.At.IsZero() {
		a.At = g.Now()
	}
	a.Origin = network(a.Source)
	return a
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
