package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// A User is the authenticated sender of a request.
type User struct {
	Name   string
	Role   Role
	Via    string // session, token, certificate
	Source string // address
	CSRF   string // CSRF token of a session; else ""
}

// ViaPage marks changes through the page in the audit. It is not a value of User.Via.
const ViaPage = "page"

type viaKey struct{}

// Through marks a request that the hub makes for a user, for example by the page.
func Through(ctx context.Context, via string) context.Context {
	return context.WithValue(ctx, viaKey{}, via)
}

// Via returns the mark that Through has set, or "".
func Via(ctx context.Context) string {
	via, _ := ctx.Value(viaKey{}).(string)
	return via
}

// apiTokenVersion is the prefix of API tokens: FLA1.<id>.<secret>.
const apiTokenVersion = "FLA1"

// Authenticate returns the sender of a request by its bearer token, else its client certificate,
// else its session cookie. It refuses the request if the first of these is invalid, even if another
// one is valid, so that a client never acts as an unexpected user. Its errors are
// ErrUnauthenticated.
func (g *Guard) Authenticate(r *http.Request) (User, error) {
	c, err := credentialOf(r)
	var u User
	if err == nil {
		u, err = g.ownerOf(r.Context(), c)
	}
	u.Source = Source(r)
	if err == nil {
		err = g.bind(r.Context(), c, u)
	}
	return u, err
}

// credentialOf returns the credential of a request with the highest priority.
func credentialOf(r *http.Request) (credential, error) {
	if header, given := r.Header["Authorization"]; given {
		scheme, token, _ := strings.Cut(header[0], " ")
		if len(header) != 1 || !strings.EqualFold(scheme, "Bearer") {
			return credential{}, fmt.Errorf("%w: use `Authorization: Bearer <API token>`", ErrUnauthenticated)
		}
		return credential{kind: "token", secret: strings.TrimSpace(token)}, nil
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return credential{kind: "certificate", chain: r.TLS.PeerCertificates}, nil
	}
	if c, err := r.Cookie(Cookie); err == nil {
		return credential{kind: "session", secret: c.Value}, nil
	}
	return credential{}, ErrUnauthenticated
}

// ownerOf returns the current owner of a credential.
func (g *Guard) ownerOf(ctx context.Context, c credential) (User, error) {
	switch c.kind {
	case "token":
		return g.lookUp(ctx, c, func(ctx context.Context) (User, time.Time, error) { return g.byToken(ctx, c.secret) })
	case "session":
		return g.lookUp(ctx, c, func(ctx context.Context) (User, time.Time, error) { return g.bySession(ctx, c.secret) })
	}
	h, err := g.Authority.Verify(c.chain) // needs no database
	if err != nil {
		return User{}, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	if h.Role == pki.Device { // needs no database
		return g.byCertificate(ctx, h)
	}
	return g.lookUp(ctx, c, func(ctx context.Context) (User, time.Time, error) {
		u, err := g.byCertificate(ctx, h)
		return u, time.Time{}, err
	})
}

// byToken has no lockout, because 130 bits cannot be guessed and comparing hashes is cheap.
func (g *Guard) byToken(ctx context.Context, token string) (User, time.Time, error) {
	wrong := fmt.Errorf("%w: the API token is wrong, revoked or expired", ErrUnauthenticated)
	parts := strings.Split(token, ".")
	if len(parts) != 3 || parts[0] != apiTokenVersion {
		return User{}, time.Time{}, wrong
	}
	t, err := g.Store.APIToken(ctx, parts[1])
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return User{}, time.Time{}, err
	}
	if !same(hash(parts[2]), t.Hash) || !g.Now().Before(t.Expires) {
		return User{}, time.Time{}, wrong
	}
	return User{Name: t.User, Role: Role(t.Role), Via: "token"}, t.Expires, nil
}

func (g *Guard) byCertificate(ctx context.Context, h pki.Holder) (User, error) {
	u := User{Name: h.Name, Role: Role(h.Role), Via: "certificate"}
	if h.Role == pki.Device {
		if err := g.May(h); err != nil {
			return User{}, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
		}
		return u, nil
	}
	if h.Role == pki.Observer {
		return User{}, fmt.Errorf(
			"%w: the certificate of %s is for MQTT tools only; get one for kubectl with `flotilla-hub kubeconfig`",
			ErrUnauthenticated, h.Name)
	}
	if h.Role == pki.Peer {
		return User{}, fmt.Errorf("%w: the certificate of hub %s is for the peer listener of another hub only",
			ErrUnauthenticated, h.Name)
	}
	before, err := g.Store.ClientsRevokedBefore(ctx, h.Name)
	if err != nil {
		return User{}, err
	}
	if !before.IsZero() && !pki.IssuedAt(h.Leaf).After(before) {
		return User{}, fmt.Errorf("%w: the certificates of %s were revoked; get a new one with `flotilla-hub kubeconfig`",
			ErrUnauthenticated, h.Name)
	}
	return u, nil
}

func (g *Guard) bySession(ctx context.Context, secret string) (User, time.Time, error) {
	s, err := g.Store.Session(ctx, hash(secret))
	if errors.Is(err, store.ErrNotFound) || err == nil && !g.Now().Before(s.Expires) {
		return User{}, time.Time{}, fmt.Errorf("%w: the session has expired", ErrUnauthenticated)
	}
	return User{Name: s.User, Role: Role(s.Role), Via: "session", CSRF: s.CSRF}, s.Expires, err
}

// May reports whether a device's verified certificate has the key of its node's enrolment.
func (g *Guard) May(h pki.Holder) error {
	if e, ok := g.Fleet.Enrolment(h.Name); ok && e.Key == pki.KeyHash(h.Leaf) {
		return nil
	}
	return fmt.Errorf("%w: node %s was removed from this hub or is another device now; join again with a new token",
		ErrForbidden, h.Name)
}

// MayConnect is May for the TLS handshake of MQTT. It also accepts a device with a former
// enrolment; the broker sends only a dismissal notice to it.
func (g *Guard) MayConnect(h pki.Holder) error {
	if g.Fleet.Dismissed(pki.KeyHash(h.Leaf)) != nil {
		return nil
	}
	return g.May(h)
}

// CheckForm protects against cross-site requests. A request of a session must come from the hub's
// page and have the session's CSRF token, in the header X-CSRF-Token or the form field csrf. A
// request with an API token passes, because browsers never send one by themselves. With a client
// certificate or without a login, only the origin is checked.
func (g *Guard) CheckForm(r *http.Request, u User) error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead || u.Via == "token" {
		return nil
	}
	var protection http.CrossOriginProtection
	if err := protection.Check(r); err != nil {
		return fmt.Errorf("%w: the request comes from another site", ErrForbidden)
	}
	if u.Via != "session" {
		return nil
	}
	token := r.Header.Get("X-CSRF-Token")
	if token == "" {
		token = r.PostFormValue("csrf")
	}
	if !same([]byte(token), []byte(u.CSRF)) {
		return fmt.Errorf("%w: the form is from an earlier session; reload the page", ErrForbidden)
	}
	return nil
}

// A NewAPIToken is a request for an API token.
type NewAPIToken struct {
	User string
	Note string // its purpose
	Life time.Duration
}

const maxAPITokenLife = 366 * 24 * time.Hour

// CreateAPIToken returns a new API token. It is shown only once. A user has at most 50.
func (g *Guard) CreateAPIToken(ctx context.Context, n NewAPIToken) (token string, err error) {
	if n.Life <= 0 || n.Life > maxAPITokenLife {
		return "", fmt.Errorf("%w: an API token cannot be valid for %s; use up to a year, such as 2160h", ErrInvalid, n.Life)
	}
	own, err := g.APITokensOf(ctx, n.User)
	if err != nil {
		return "", err
	}
	if len(own) >= maxAPITokens {
		return "", fmt.Errorf("%w: %s has %d API tokens, the limit; revoke an unused one",
			ErrConflict, n.User, len(own))
	}
	now := g.Now()
	t := store.APIToken{ID: newID(), User: n.User, Note: clip(n.Note), Created: now, Expires: now.Add(n.Life)}
	secret := newSecret()
	t.Hash = hash(secret)
	if err := g.Store.AddAPIToken(ctx, t); err != nil {
		return "", fmt.Errorf("create API token: %w", err)
	}
	return strings.Join([]string{apiTokenVersion, t.ID, secret}, "."), nil
}

// APITokens lists every API token, without secrets.
func (g *Guard) APITokens(ctx context.Context) ([]store.APIToken, error) {
	return g.Store.APITokens(ctx)
}

// RevokeAPIToken revokes an API token.
func (g *Guard) RevokeAPIToken(ctx context.Context, id string) error {
	return g.callers.clearAfter(g.Store.DeleteAPIToken(ctx, id))
}
