package access

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/store"
)

const (
	setupLife   = 30 * time.Minute
	sessionLife = 24 * time.Hour
	setupKey    = "setup-link" // key in the store's meta; its value is "<hash> <expiry>"

	// Cookie is the name of the session cookie. The prefix restricts it to TLS and to this host.
	Cookie = "__Host-flotilla"
)

var userForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._@-]{0,62}$`)

func checkUser(name string) error {
	if !userForm.MatchString(name) {
		return fmt.Errorf("%w: user name %.64q; use lower-case letters, digits, '.', '-', '_' and '@', at most 63",
			ErrInvalid, name)
	}
	return nil
}

// SetupSecret creates the secret of the one-time link for the first administrator. The link is
// valid once, for 30 minutes, and replaces an earlier one. SetupSecret returns "" if a user exists.
func (g *Guard) SetupSecret(ctx context.Context) (string, error) {
	users, err := g.Store.Users(ctx)
	if err != nil || len(users) > 0 {
		return "", err
	}
	secret := newSecret()
	err = g.Store.SetMeta(ctx, setupKey, hex.EncodeToString(hash(secret))+" "+
		g.Now().Add(setupLife).UTC().Format(time.RFC3339))
	return secret, err
}

// A NewUser is a user to create.
type NewUser struct {
	Name     string
	Password string
	Role     Role
}

// Setup creates the first administrator for the sender of the setup secret.
func (g *Guard) Setup(ctx context.Context, secret string, u NewUser, source string) error {
	now := g.Now()
	keys := tries("setup", source)
	giveBack, err := g.failures.try(now, keys...)
	if err != nil {
		g.Note(store.Audit{Via: "setup link", Source: source, Verb: "create", Resource: "users", Name: clip(u.Name),
			Code: http.StatusTooManyRequests, Message: err.Error()})
		return err
	}
	refused := fmt.Errorf("%w: this setup link was used, has expired, or was replaced; restart the hub for "+
		"a new one, or run `flotilla-hub user create`", ErrForbidden)
	stored, err := g.Store.Meta(ctx, setupKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	sum, end, _ := strings.Cut(stored, " ")
	want, _ := hex.DecodeString(sum)
	until, _ := time.Parse(time.RFC3339, end)
	if !same(hash(secret), want) || now.After(until) {
		g.Record(ctx, store.Audit{Via: "setup link", Source: source, Verb: "create", Resource: "users", Name: clip(u.Name),
			Code: http.StatusForbidden, Message: "wrong or expired setup link"})
		return refused
	}
	giveBack()
	row, err := g.newUser(ctx, NewUser{u.Name, u.Password, Admin}, now)
	if err != nil {
		return err
	}
	err = g.Store.AddFirstUser(ctx, row, setupKey, stored)
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrNotFound) { // another request was faster
		return refused
	}
	if err == nil {
		g.Record(ctx, store.Audit{Who: u.Name, Via: "setup link", Source: source, Verb: "create", Resource: "users",
			Name: u.Name, Code: http.StatusCreated})
	}
	return err
}

func (g *Guard) newUser(ctx context.Context, u NewUser, now time.Time) (store.User, error) {
	if err := checkUser(u.Name); err != nil {
		return store.User{}, err
	}
	if _, err := ParseRole(string(u.Role)); err != nil {
		return store.User{}, err
	}
	if err := checkStrength(u.Password, u.Name); err != nil {
		return store.User{}, err
	}
	phc, err := g.hashPassword(ctx, u.Password)
	return store.User{Name: u.Name, Role: string(u.Role), Password: phc, Created: now}, err
}

// CreateUser creates a user.
func (g *Guard) CreateUser(ctx context.Context, u NewUser) error {
	row, err := g.newUser(ctx, u, g.Now())
	if err != nil {
		return err
	}
	err = g.Store.AddUser(ctx, row)
	if errors.Is(err, store.ErrExists) {
		return fmt.Errorf("%w: user %s exists; choose another name, or change the password with `flotilla-hub user passwd`",
			ErrConflict, u.Name)
	}
	return err
}

// SetPassword sets a user's password and ends its sessions.
func (g *Guard) SetPassword(ctx context.Context, name, password string) error {
	if err := checkStrength(password, name); err != nil {
		return err
	}
	phc, err := g.hashPassword(ctx, password)
	if err != nil {
		return err
	}
	return g.callers.clearAfter(g.Store.SetPassword(ctx, name, phc))
}

// SetRole changes a user's role from the next request on. It revokes the user's client
// certificates, because they contain the role.
func (g *Guard) SetRole(ctx context.Context, name string, role Role) error {
	if _, err := ParseRole(string(role)); err != nil {
		return err
	}
	return g.callers.clearAfter(g.Store.SetRole(ctx, name, string(role), g.Now()))
}

// DeleteUser deletes a user and ends its sessions, API tokens and client certificates.
func (g *Guard) DeleteUser(ctx context.Context, name string) error {
	return g.callers.clearAfter(g.Store.DeleteUser(ctx, name, g.Now()))
}

// RevokeKubeconfigs revokes all client certificates of a name that have been issued. The name in a
// kubeconfig need not be a user of the page.
func (g *Guard) RevokeKubeconfigs(ctx context.Context, name string) error {
	if name == "" {
		return fmt.Errorf("%w: the user name is empty; write the name that was used with --user", ErrInvalid)
	}
	return g.callers.clearAfter(g.Store.RevokeClients(ctx, name, g.Now()))
}

// RoleOf returns a user's role, or "" for an unknown name.
func (g *Guard) RoleOf(ctx context.Context, name string) (Role, error) {
	u, err := g.Store.User(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	return Role(u.Role), err
}

// Users lists the users by name, without their password hashes.
func (g *Guard) Users(ctx context.Context) ([]store.User, error) {
	users, err := g.Store.Users(ctx)
	for i := range users {
		users[i].Password = ""
	}
	return users, err
}

// maxUnknownAttempts limits the attempts on one user's password within a quarter of an hour, from
// all networks together from which the user never logged in. A known network has its own limit, so
// that other networks cannot lock the user out.
const maxUnknownAttempts = 30

// Login checks a password and returns the cookie of a new session, valid for 24 hours.
func (g *Guard) Login(ctx context.Context, name, password, source string) (*http.Cookie, error) {
	if password == "" { // nothing to check in an empty form
		return nil, fmt.Errorf("%w: wrong name or password", ErrUnauthenticated)
	}
	now, name := g.Now(), clip(name)
	keys := tries("login", source)
	at, err := g.addressesOf(ctx, name)
	if err != nil {
		return nil, err
	}
	familiar := slices.Contains(at, network(source))
	if !familiar {
		keys = append(keys, allowance{"strangers to " + name, maxUnknownAttempts})
	}
	giveBack, err := g.failures.try(now, keys...)
	if err != nil {
		g.Note(store.Audit{Who: name, Via: "password", Source: source, Verb: "create", Resource: "sessions",
			Code: http.StatusTooManyRequests, Message: err.Error()})
		return nil, err
	}
	stored, known, err := g.verifyPassword(ctx, name, password, familiar)
	if err != nil {
		giveBack()
		return nil, err
	}
	var c *http.Cookie
	if known {
		c, err = g.newSession(ctx, store.Session{User: name, Source: source, Created: now}, stored)
		known = !errors.Is(err, store.ErrNotFound)
	}
	if !known {
		g.Record(ctx, store.Audit{Who: name, Via: "password", Source: source, Verb: "create", Resource: "sessions",
			Code: http.StatusUnauthorized, Message: "wrong name or password"})
		return nil, fmt.Errorf("%w: wrong name or password", ErrUnauthenticated)
	}
	giveBack()
	if err == nil && !familiar {
		err = g.cameFrom(ctx, name, append(at, network(source)))
	}
	if err != nil {
		return nil, err
	}
	g.Record(ctx, store.Audit{Who: name, Via: "password", Source: source, Verb: "create", Resource: "sessions",
		Code: http.StatusCreated})
	return c, nil
}

const maxLogins = 8 // stored networks per user

// addressesOf returns the networks from which a user has logged in, the newest last.
func (g *Guard) addressesOf(ctx context.Context, name string) ([]string, error) {
	text, err := g.Store.Meta(ctx, store.LoginsOf(name))
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	return strings.Fields(text), nil
}

func (g *Guard) cameFrom(ctx context.Context, name string, networks []string) error {
	return g.Store.SetMeta(ctx, store.LoginsOf(name), strings.Join(networks[max(0, len(networks)-maxLogins):], " "))
}

// verifyPassword reports whether a password is right. It also returns the hash that it was compared
// with, because the stored hash may change while the check waits. An unknown user takes as long.
func (g *Guard) verifyPassword(ctx context.Context, name, password string,
	familiar bool) (stored string, known bool, err error) {
	user, err := g.Store.User(ctx, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return "", false, err
	}
	if len(password) > maxPassword {
		password = ""
	}
	known, err = g.checkPassword(ctx, password, user.Password, familiar)
	return user.Password, known, err
}

// newSession returns the cookie of a new session, valid for 24 hours. It returns store.ErrNotFound
// if the stored hash is no longer the hash that was checked.
func (g *Guard) newSession(ctx context.Context, s store.Session, stored string) (*http.Cookie, error) {
	secret := newSecret()
	s.Hash, s.CSRF, s.Expires = hash(secret), newSecret(), s.Created.Add(sessionLife)
	err := g.Store.AddSession(ctx, s, stored)
	if err != nil {
		return nil, err
	}
	return cookie(secret, int(sessionLife/time.Second)), nil
}

// Logout ends the session of a request and returns a cookie that deletes the browser's cookie.
func (g *Guard) Logout(ctx context.Context, r *http.Request) (*http.Cookie, error) {
	var err error
	if c, cerr := r.Cookie(Cookie); cerr == nil {
		s, serr := g.Store.Session(ctx, hash(c.Value))
		if err = g.Store.DeleteSession(ctx, hash(c.Value)); err == nil && serr == nil {
			_ = g.callers.clearAfter(nil)
			g.Note(store.Audit{Who: s.User, Via: "page", Source: Source(r), Verb: "delete", Resource: "sessions",
				Code: http.StatusOK})
		}
	}
	return cookie("", -1), err
}

func cookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{Name: Cookie, Value: value, Path: "/", MaxAge: maxAge, Secure: true, HttpOnly: true,
		SameSite: http.SameSiteStrictMode}
}

// clip shortens a typed name for the audit.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 64)], "?") }
