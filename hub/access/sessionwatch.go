package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"maps"
	"net/http"
	"sync"
	"time"

	"flotilla.dev/hub/panics"
)

// ErrEnded is the cause of a request's context that ends because the sender's rights have ended.
var ErrEnded = errors.New(
	"the session, token or certificate of this request was logged out, revoked or has expired, or its role changed")

// recheck is the interval at which the credential of a running request is checked again.
const recheck = 1500 * time.Millisecond

// sessionWatches are the running requests by credential. One check of a credential serves all of
// its requests.
type sessionWatches struct {
	mu sync.Mutex
	by map[[sha256.Size]byte]*watchedCredential
}

// A watchedCredential is a credential with its running requests.
type watchedCredential struct {
	credential
	timer *time.Timer
	ends  map[*sessionWatch]User
}

// A sessionWatch is one running request. It is bound to the first user that Authenticate returns
// for it.
type sessionWatch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	found  func(User) error
	guard  *Guard

	mu    sync.Mutex
	key   [sha256.Size]byte
	bound bool
	ended bool
}

type sessionWatchKey struct{}

// WatchSession returns a request whose context ends, with ErrEnded as its cause, within two seconds
// after the sender's rights end: after a logout, a changed password or role, a revoked or expired
// credential, or a deleted user. This is the only place of that rule, for every kind of request.
// found is called with the user that Authenticate returns, and may refuse the user. Call end when
// the request has been served.
func (g *Guard) WatchSession(r *http.Request, found func(User) error) (watched *http.Request, end func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	t := &sessionWatch{ctx: ctx, cancel: cancel, found: found, guard: g}
	return r.WithContext(context.WithValue(ctx, sessionWatchKey{}, t)), t.end
}

// bind binds the request of a context to its credential.
func (g *Guard) bind(ctx context.Context, c credential, u User) error {
	t, _ := ctx.Value(sessionWatchKey{}).(*sessionWatch)
	if t == nil || t.guard != g {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bound || t.ended {
		return nil
	}
	if err := t.found(u); err != nil {
		return err
	}
	t.bound, t.key = true, c.key()
	g.watches.mu.Lock()
	defer g.watches.mu.Unlock()
	if g.watches.by == nil {
		g.watches.by = map[[sha256.Size]byte]*watchedCredential{}
	}
	e := g.watches.by[t.key]
	if e == nil {
		e = &watchedCredential{credential: c, ends: map[*sessionWatch]User{}}
		key := t.key
		e.timer = time.AfterFunc(recheck, func() { g.recheck(key, e) })
		g.watches.by[t.key] = e
	}
	e.ends[t] = u
	return nil
}

func (t *sessionWatch) end() {
	t.mu.Lock()
	t.ended = true
	if watches := &t.guard.watches; t.bound {
		watches.mu.Lock()
		if e := watches.by[t.key]; e != nil {
			if delete(e.ends, t); len(e.ends) == 0 {
				e.timer.Stop()
				delete(watches.by, t.key)
			}
		}
		watches.mu.Unlock()
	}
	t.mu.Unlock()
	t.cancel(nil)
}

// recheck ends the requests of a credential that is no longer valid. It ends none while the
// database is unreachable.
func (g *Guard) recheck(key [sha256.Size]byte, e *watchedCredential) {
	defer panics.CatchThen("session", func(error) { e.timer.Reset(recheck) })
	g.watches.mu.Lock()
	before := maps.Clone(e.ends) // a request that begins during the check is checked later
	g.watches.mu.Unlock()
	maps.DeleteFunc(before, func(t *sessionWatch, _ User) bool { return t.ctx.Err() != nil })
	var now User
	err := errUnavailable
	if len(before) > 0 { // without requests the hub may be stopping, with its store closed
		now, err = g.ownerOf(context.Background(), e.credential)
	}
	g.watches.mu.Lock()
	defer g.watches.mu.Unlock()
	if g.watches.by[key] != e {
		return // no requests are left
	}
	for t, was := range before {
		if errors.Is(err, ErrUnauthenticated) || err == nil && (now.Name != was.Name || now.Role != was.Role) {
			t.cancel(ErrEnded)
		}
	}
	e.timer.Reset(recheck)
}

// A credential is the part of a request that identifies its sender.
type credential struct {
	kind   string // token, certificate, session
	secret string
	chain  []*x509.Certificate
}

// key identifies a credential without a copy of its secret.
func (c credential) key() [sha256.Size]byte {
	text := c.kind + " " + c.secret
	for _, cert := range c.chain {
		text += string(cert.Raw)
	}
	return sha256.Sum256([]byte(text))
}
