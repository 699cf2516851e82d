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
	setupKey    = "setup-link" // in the store's meta: "<hash> <end>"

	// Cookie is the session's. Browsers send one with this prefix only over TLS
	// and only to the very host that set it.
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

// SetupSecret makes the secret of the one-time link by which the first
// administrator comes in: it works once, for 30 minutes, and takes the place of
// any before it. "" when there is a user already.
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

// A NewUser is somebody who is given a password.
type NewUser struct {
	Name     string
	Password string
	Role     Role
}

// Setup makes the first administrator, for whoever holds the setup secret.
func (g *Guard) Setup(ctx context.Context, secret string, u NewUser, source string) error {
	now := g.Now()
	keys := tries("setup", source)
	giveBack, err := g.failures.try(now, keys...)
	if err != nil {
		g.Note(store.Audit{Via: "setup link", Source: source, Verb: "create", Resource: "users", Name: clip(u.Name),
			Code: http.StatusTooManyRequests, Message: err.Error()})
		return err
	}
	refused := fmt.Errorf("%w: this setup link was used, has ended, or is not the newest; restart the hub for "+
		"another, or run `flotilla-hub user create`", ErrForbidden)
	stored, err := g.Store.Meta(ctx, setupKey)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	sum, end, _ := strings.Cut(stored, " ")
	want, _ := hex.DecodeString(sum)
	until, _ := time.Parse(time.RFC3339, end)
	if !same(hash(secret), want) || now.After(until) {
		g.Record(ctx, store.Audit{Via: "setup link", Source: source, Verb: "create", Resource: "users", Name: clip(u.Name),
			Code: http.StatusForbidden, Message: "wrong or ended setup link"})
		return refused
	}
	giveBack()
	row, err := g.newUser(ctx, NewUser{u.Name, u.Password, Admin}, now)
	if err != nil {
		return err
	}
	err = g.Store.AddFirstUser(ctx, row, setupKey, stored)
	if errors.Is(err, store.ErrExists) || errors.Is(err, store.ErrNotFound) { // somebody was faster
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

// CreateUser adds a person.
func (g *Guard) CreateUser(ctx context.Context, u NewUser) error {
	row, err := g.newUser(ctx, u, g.Now())
	if err != nil {
		return err
	}
	err = g.Store.AddUser(ctx, row)
	if errors.Is(err, store.ErrExists) {
		return fmt.Errorf("%w: user %s exists already; choose another name or change it with `flotilla-hub user passwd`",
			ErrConflict, u.Name)
	}
	return err
}

// SetPassword gives a person a new password and ends their sessions.
func (g *Guard) SetPassword(ctx context.Context, name, password string) error {
	if err := checkStrength(password, name); err != nil {
		return err
	}
	phc, err := g.hashPassword(ctx, password)
	if err != nil {
		return err
	}
	return g.known.taken(g.Store.SetPassword(ctx, name, phc))
}

// SetRole changes what a person may do, from their next request on. Their client
// certificates, in which the role stands, end now.
func (g *Guard) SetRole(ctx context.Context, name string, role Role) error {
	if _, err := ParseRole(string(role)); err != nil {
		return err
	}
	return g.known.taken(g.Store.SetRole(ctx, name, string(role), g.Now()))
}

// DeleteUser removes a person: their sessions, API tokens and client certificates end now.
func (g *Guard) DeleteUser(ctx context.Context, name string) error {
	return g.known.taken(g.Store.DeleteUser(ctx, name, g.Now()))
}

// RevokeKubeconfigs ends all client certificates of a name that were issued until now. The name
// need be no user's: kubeconfigs are made for anybody.
func (g *Guard) RevokeKubeconfigs(ctx context.Context, name string) error {
	if name == "" {
		return fmt.Errorf("%w: say whose kubeconfigs end: the name that they were made for with --user", ErrInvalid)
	}
	return g.known.taken(g.Store.RevokeClients(ctx, name, g.Now()))
}

// RoleOf is the role of the person of a name, "" for nobody.
func (g *Guard) RoleOf(ctx context.Context, name string) (Role, error) {
	u, err := g.Store.User(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	return Role(u.Role), err
}

// Users lists them by name, without what concerns only their password.
func (g *Guard) Users(ctx context.Context) ([]store.User, error) {
	users, err := g.Store.Users(ctx)
	for i := range users {
		users[i].Password = ""
	}
	return users, err
}

// strangersStrikes is how many passwords of one person are tried within a quarter of an
// hour from all the addresses together that the person has never come from. From
// those that they have, only an address's own attempts count: nobody elsewhere can
// lock a person out.
const strangersStrikes = 30

// Login checks a password and returns the cookie of a new session, good for 24 hours.
func (g *Guard) Login(ctx context.Context, name, password, source string) (*http.Cookie, error) {
	if password == "" { // a form that is not filled in: there is nothing to look at
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
		keys = append(keys, allowance{"strangers to " + name, strangersStrikes})
	}
	giveBack, err := g.failures.try(now, keys...)
	if err != nil {
		g.Note(store.Audit{Who: name, Via: "password", Source: source, Verb: "create", Resource: "sessions",
			Code: http.StatusTooManyRequests, Message: err.Error()})
		return nil, err
	}
	stored, known, err := g.knows(ctx, name, password, familiar)
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

const maxLogins = 8 // networks of a person

// addressesOf are the networks from which a person has logged in, the newest last.
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

// knows tells whether somebody knows a person's password, and how that was stored when it was
// looked at: until it is known, others may wait to be looked at for seconds. For an unknown person
// it takes as long.
func (g *Guard) knows(ctx context.Context, name, password string,
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

// newSession returns the cookie of a new session, good for 24 hours, as long as the user's password
// is stored as it was when it was looked at: store.ErrNotFound.
func (g *Guard) newSession(ctx context.Context, s store.Session, stored string) (*http.Cookie, error) {
	secret := newSecret()
	s.Hash, s.CSRF, s.Expires = hash(secret), newSecret(), s.Created.Add(sessionLife)
	err := g.Store.AddSession(ctx, s, stored)
	if err != nil {
		return nil, err
	}
	return cookie(secret, int(sessionLife/time.Second)), nil
}

// Logout ends the session of a request, if it has one, and returns the cookie that makes the
// browser forget it.
func (g *Guard) Logout(ctx context.Context, r *http.Request) (*http.Cookie, error) {
	var err error
	if c, cerr := r.Cookie(Cookie); cerr == nil {
		s, serr := g.Store.Session(ctx, hash(c.Value))
		if err = g.Store.DeleteSession(ctx, hash(c.Value)); err == nil && serr == nil {
			_ = g.known.taken(nil)
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

// clip keeps a name that somebody typed from filling the audit.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 64)], "?") }
