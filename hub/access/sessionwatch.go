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

// ErrEnded is why a request's context ends whose sender may no longer do what they
// were let in for.
var ErrEnded = errors.New(
	"what this was opened with has ended: it was logged out, revoked or has expired, or its role was changed")

// recheck is how often a credential is looked at again while requests go on that were
// let in by it.
const recheck = 1500 * time.Millisecond

// sessionWatches are the requests under way, by the credential that let each of them in. One
// look at a credential serves all of its requests.
type sessionWatches struct {
	mu sync.Mutex
	by map[[sha256.Size]byte]*watchedCredential
}

// A watchedCredential credential, and what it let in.
type watchedCredential struct {
	credential
	timer *time.Timer
	ends  map[*sessionWatch]User
}

// A sessionWatch is a request's, from its beginning to its end. Whoever Authenticate finds in it
// first is who it is tied to.
type sessionWatch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	found  func(User) error
	guard  *Guard

	mu   sync.Mutex
	key  [sha256.Size]byte
	to   bool // is tied
	over bool
}

type sessionWatchKey struct{}

// WatchSession makes the context of a request end, with ErrEnded as its cause, within two
// seconds after the right ends of whoever Authenticate finds to have sent it: the session was
// logged out, the password changed, the token or certificate revoked or expired, the
// person deleted, the role changed. So does everything that lives by the context,
// whatever it is: this is the one place for it. found is told who it is,
// and may say that they may not now, which Authenticate returns. end must be called when the
// request has been served.
func (g *Guard) WatchSession(r *http.Request, found func(User) error) (tiedRequest *http.Request, end func()) {
	ctx, cancel := context.WithCancelCause(r.Context())
	t := &sessionWatch{ctx: ctx, cancel: cancel, found: found, guard: g}
	return r.WithContext(context.WithValue(ctx, sessionWatchKey{}, t)), t.end
}

// bind ties the request of a context to the credential that let it in.
func (g *Guard) bind(ctx context.Context, c credential, u User) error {
	t, _ := ctx.Value(sessionWatchKey{}).(*sessionWatch)
	if t == nil || t.guard != g {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to || t.over {
		return nil
	}
	if err := t.found(u); err != nil {
		return err
	}
	t.to, t.key = true, c.key()
	g.ties.mu.Lock()
	defer g.ties.mu.Unlock()
	if g.ties.by == nil {
		g.ties.by = map[[sha256.Size]byte]*watchedCredential{}
	}
	e := g.ties.by[t.key]
	if e == nil {
		e = &watchedCredential{credential: c, ends: map[*sessionWatch]User{}}
		key := t.key
		e.timer = time.AfterFunc(recheck, func() { g.recheck(key, e) })
		g.ties.by[t.key] = e
	}
	e.ends[t] = u
	return nil
}

func (t *sessionWatch) end() {
	t.mu.Lock()
	t.over = true
	if ties := &t.guard.ties; t.to {
		ties.mu.Lock()
		if e := ties.by[t.key]; e != nil {
			if delete(e.ends, t); len(e.ends) == 0 {
				e.timer.Stop()
				delete(ties.by, t.key)
			}
		}
		ties.mu.Unlock()
	}
	t.mu.Unlock()
	t.cancel(nil)
}

// recheck ends what a credential let in that is not good for it any more. That the hub
// cannot look now ends nothing.
func (g *Guard) recheck(key [sha256.Size]byte, e *watchedCredential) {
	defer panics.CatchThen("session", func(error) { e.timer.Reset(recheck) })
	g.ties.mu.Lock()
	before := maps.Clone(e.ends) // who comes while we look was looked at later
	g.ties.mu.Unlock()
	maps.DeleteFunc(before, func(t *sessionWatch, _ User) bool { return t.ctx.Err() != nil })
	var now User
	err := errUnavailable
	if len(before) > 0 { // else the hub stops, and there may be nowhere to look any more
		now, err = g.who(context.Background(), e.credential)
	}
	g.ties.mu.Lock()
	defer g.ties.mu.Unlock()
	if g.ties.by[key] != e {
		return // nobody is left
	}
	for t, was := range before {
		if errors.Is(err, ErrUnauthenticated) || err == nil && (now.Name != was.Name || now.Role != was.Role) {
			t.cancel(ErrEnded)
		}
	}
	e.timer.Reset(recheck)
}

// A credential is what a request shows of who sends it.
type credential struct {
	kind   string // token, certificate, session
	secret string
	chain  []*x509.Certificate
}

// key names a credential without keeping its secret twice.
func (c credential) key() [sha256.Size]byte {
	text := c.kind + " " + c.secret
	for _, cert := range c.chain {
		text += string(cert.Raw)
	}
	return sha256.Sum256([]byte(text))
}
