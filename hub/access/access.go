// Package access authenticates and authorizes. Devices join with a token. Users have a password, a
// session, an API token or a client certificate, and a role.
//
// It stores hashes, never secrets. It checks every request against the database, so a revocation
// applies at once, also one by a command beside the running hub. It serves no page and never reads
// objects. Packages kube and admin call Authenticate and Allow, the broker calls May, and serve
// mounts the handler of joining. Package pki signs the certificates.
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

// Errors by the caller's next step.
var (
	ErrUnauthenticated = errors.New("not logged in")             // 401
	ErrForbidden       = errors.New("not allowed")               // 403
	ErrInvalid         = errors.New("invalid")                   // 400: the client has to change the request
	ErrConflict        = errors.New("conflict")                  // 409
	ErrTooMany         = errors.New("too many failed attempts")  // 429
	ErrBusy            = errors.New("too many at once")          // 429: try again a little later
	ErrRefused         = errors.New("refused")                   // refused by the Fleet; the device receives the text
	errUnavailable     = errors.New("the hub cannot answer now") // 503
)

// An Enrolment is the only key that may act for a node. A node without an enrolment cannot connect.
type Enrolment struct {
	Node      string
	Key       string // SHA-256 of the public key, hex
	MachineID string // "": unknown
	Site      string
	Labels    map[string]string // labels of the token, set by an administrator
	Token     string            // id of the join token
	At        time.Time
	Expires   time.Time // of the newest certificate

	// Request is the approved certificate request, or "". Its Certificate (PEM) is stored in the
	// same transaction.
	Request     string
	Certificate []byte
}

// A Fleet stores each enrolment in one transaction with its Node.
type Fleet interface {
	Enrolment(node string) (Enrolment, bool)
	// Enrol makes a key the only one that may act for a node. When Enrol returns, the enrolment is
	// durable, and the session of the former key is closed. The device receives the text of an
	// ErrRefused.
	Enrol(ctx context.Context, e Enrolment) error
	// Await requests an administrator's approval of a device, or returns the decision. The device
	// receives the text of an ErrRefused or ErrBusy.
	Await(ctx context.Context, a Applicant) (Verdict, error)
	// Withdraw ends the request of a device that may no longer join.
	Withdraw(ctx context.Context, key, token, why string) error
	// Renewed records the expiry of a node's new certificate.
	Renewed(ctx context.Context, node, key string, expires time.Time) error
	// Dismissed returns the dismissal notice for a key with a former enrolment, or nil for an
	// unknown key.
	Dismissed(key string) *wire.Dismissed
}

// Options are the dependencies and settings of a Guard.
type Options struct {
	Store     *store.Store
	Authority *pki.Authority
	Log       *slog.Logger // nil: slog.Default()
	// Now is the hub's time. Nil: the machine's.
	Now func() time.Time

	// The fields below are needed for joining. Commands leave them empty.
	Fleet Fleet
	// RequireApproval makes every device wait for approval, whatever its token says.
	RequireApproval bool
	Hub             string // the hub's identity
	// MQTT is the host:port of the TLS listener or of each broker. Without a host, devices use the
	// host of the URL with which they joined.
	MQTT          []string
	Hubs          []string      // host:port of the HTTPS listener of each hub
	External      bool          // MQTT has the addresses of an external broker
	Prefix        string        // prefix of all topics; empty: wire.DefaultPrefix
	LeaseInterval time.Duration // whole seconds
	FirmwareKey   []byte        // public Ed25519 key of boot configurations
}

// A Guard authenticates and authorizes. Its methods may be called concurrently.
type Guard struct {
	Options
	failures lockout
	watches  sessionWatches
	callers  callerCache   // recent callers, used while the database is unreachable
	joining  chan struct{} // one slot: joins are decided one at a time
	renewals allowances    // by node: renewals of its certificate
	requests allowances    // by token: requests for approval
	hashing  chan struct{} // slots of unknown clients, because each argon2id needs 19 MiB
	settled  chan struct{} // slots of clients whose network has logged in before
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

// Record writes an audit record before the response. It logs a record that cannot be stored, but
// returns no error, because the change is stored already.
func (g *Guard) Record(ctx context.Context, a store.Audit) {
	if a.Code >= http.StatusBadRequest { // do not wait: a flood of refused requests could block the hub
		g.Note(a)
		return
	}
	a = g.stamped(a)
	if err := g.Store.AddAudit(context.WithoutCancel(ctx), a); err != nil {
		g.Log.Error("cannot store an audit record", "who", a.Who, "verb", a.Verb, "resource", a.Resource, "name", a.Name,
			"err", err)
	}
}

// Note writes an audit record within a second, or together with the next write. It is for refused
// requests, and for changes whose own write is durable.
func (g *Guard) Note(a store.Audit) { g.Store.NoteAudit(g.stamped(a)) }

func (g *Guard) stamped(a store.Audit) store.Audit {
	if a.At.IsZero() {
		a.At = g.Now()
	}
	a.Origin = network(a.Source)
	return a
}

// newSecret returns 130 random bits as 26 letters and digits.
func newSecret() string { return strings.ToLower(rand.Text()) }

// newID returns 50 random bits: the public name of a secret.
func newID() string { return strings.ToLower(rand.Text()[:10]) }

// hash is the stored form of a newSecret. It needs no salt and no cost, because 130 bits cannot be
// guessed.
func hash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

func same(a, b []byte) bool { return subtle.ConstantTimeCompare(a, b) == 1 }

// Source is the client's address. It ignores proxy headers, because any client can send them.
func Source(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// network is the unit for counting failures. For IPv6 it is a /64, because a single customer gets a
// whole /64.
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
