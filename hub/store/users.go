package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A User is a person with a password.
type User struct {
	Name     string
	Role     string
	Password string // argon2id, PHC string
	Created  time.Time
}

// A Session is one login on the page. The store keeps only the hash of its cookie.
type Session struct {
	Hash    []byte // sha256 of the cookie
	User    string
	Role    string // the user's role, set when the session is read
	CSRF    string
	Source  string // client address
	Created time.Time
	Expires time.Time
}

// An APIToken authenticates a program as its user. The store keeps only the hash of its secret.
type APIToken struct {
	ID      string
	Hash    []byte // sha256 of the secret
	User    string
	Role    string // the user's role, set when the token is read
	Note    string
	Created time.Time
	Expires time.Time
}

// metaTaken is the key of the number of rights that any hub or command has revoked.
const metaTaken = "rights-taken"

// countTaken counts a revoked right in the same transaction, so that caches of rights see it in
// RightsTaken.
func countTaken(ctx context.Context, c *conn) error {
	_, err := c.ExecContext(ctx, "INSERT INTO meta (key, value) VALUES (?, '1') ON CONFLICT (key) DO UPDATE SET value "+
		"= CAST(CAST(meta.value AS BIGINT) + 1 AS TEXT)", metaTaken)
	return err
}

// deleteRights deletes sessions or tokens, and returns their number.
func (s *Store) deleteRights(ctx context.Context, query string, arg any) (n int64, err error) {
	err = s.tx(ctx, func(ctx context.Context, c *conn) error {
		r, err := c.ExecContext(ctx, query, arg)
		if err == nil {
			n, err = r.RowsAffected()
		}
		if err != nil {
			return err
		}
		return countTaken(ctx, c)
	})
	return n, err
}

// RightsTaken returns a text that changes each time a right is revoked.
func (s *Store) RightsTaken(ctx context.Context) (string, error) {
	v, err := s.Meta(ctx, metaTaken)
	if errors.Is(err, ErrNotFound) {
		return "0", nil
	}
	return v, err
}

// AddUser stores a new user; ErrExists: the name is taken.
func (s *Store) AddUser(ctx context.Context, u User) error {
	n, err := s.exec(ctx, "INSERT INTO users (name, role, password, created) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
		u.Name, u.Role, u.Password, stamp(u.Created))
	if err == nil && n == 0 {
		err = fmt.Errorf("user %s: %w", u.Name, ErrExists)
	}
	return err
}

// AddFirstUser stores a user if there is no user, and consumes the setup secret, both or neither.
// ErrNotFound: the secret is wrong or was already used.
func (s *Store) AddFirstUser(ctx context.Context, u User, metaKey, secret string) error {
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		var users int
		if err := c.QueryRowContext(ctx, "SELECT count(*) FROM users").Scan(&users); err != nil {
			return err
		}
		if users > 0 {
			return fmt.Errorf("a first user: %w", ErrExists)
		}
		r, err := c.ExecContext(ctx, "DELETE FROM meta WHERE key = ? AND value = ?", metaKey, secret)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n != 1 {
			return errors.Join(err, ErrNotFound)
		}
		_, err = c.ExecContext(ctx, "INSERT INTO users (name, role, password, created) VALUES (?, ?, ?, ?)", u.Name, u.Role,
			u.Password, stamp(u.Created))
		return err
	})
}

const selectUsers = "SELECT name, role, password, created FROM users"

// User returns a user, or ErrNotFound.
func (s *Store) User(ctx context.Context, name string) (User, error) {
	return one(s.users(ctx, selectUsers+" WHERE name = ?", name))
}

// Users lists all users by name.
func (s *Store) Users(ctx context.Context) ([]User, error) {
	return s.users(ctx, selectUsers+" ORDER BY name")
}

func (s *Store) users(ctx context.Context, query string, args ...any) ([]User, error) {
	return list(ctx, s, func(scan func(...any) error) (User, error) {
		var u User
		var created string
		err := scan(&u.Name, &u.Role, &u.Password, &created)
		u.Created = moment(created)
		return u, err
	}, query, args...)
}

// SetPassword replaces a user's password, and ends all sessions of that user.
func (s *Store) SetPassword(ctx context.Context, name, password string) error {
	return s.setPassword(ctx, name, "UPDATE users SET password = ? WHERE name = ?", password, name)
}

// ReplacePassword is SetPassword if the stored password hash is still before. Otherwise it returns
// ErrNotFound.
func (s *Store) ReplacePassword(ctx context.Context, name, before, password string) error {
	return s.setPassword(ctx, name, "UPDATE users SET password = ? WHERE name = ? AND password = ?", password, name,
		before)
}

func (s *Store) setPassword(ctx context.Context, name, update string, args ...any) error {
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		r, err := c.ExecContext(ctx, update, args...)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("user %s: %w", name, ErrNotFound))
		}
		if _, err = c.ExecContext(ctx, "DELETE FROM sessions WHERE \"user\" = ?", name); err != nil {
			return err
		}
		return countTaken(ctx, c)
	})
}

// SetRole changes a user's role from the next request on. It revokes the certificates issued
// before, because they contain the role.
func (s *Store) SetRole(ctx context.Context, name, role string, now time.Time) error {
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		r, err := c.ExecContext(ctx, "UPDATE users SET role = ? WHERE name = ?", role, name)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("user %s: %w", name, ErrNotFound))
		}
		return revokeClients(ctx, c, name, now)
	})
}

func revokeClients(ctx context.Context, c *conn, name string, now time.Time) error {
	if _, err := c.ExecContext(ctx, "INSERT INTO revoked_clients (name, before) VALUES (?, ?) ON CONFLICT (name) DO "+
		"UPDATE SET before = excluded.before", name, stamp(now)); err != nil {
		return err
	}
	return countTaken(ctx, c)
}

// DeleteUser removes a user with all sessions, API tokens and saved views, and revokes the
// certificates issued before.
func (s *Store) DeleteUser(ctx context.Context, name string, now time.Time) error {
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		r, err := c.ExecContext(ctx, "DELETE FROM users WHERE name = ?", name)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("user %s: %w", name, ErrNotFound))
		}
		if _, err := c.ExecContext(ctx, "DELETE FROM meta WHERE key IN (?, ?)", viewsOf(name), LoginsOf(name)); err != nil {
			return err
		}
		return revokeClients(ctx, c, name, now)
	})
}

// RevokeClients revokes the certificates of a user that were issued before now.
func (s *Store) RevokeClients(ctx context.Context, name string, now time.Time) error {
	return s.tx(ctx, func(ctx context.Context, c *conn) error { return revokeClients(ctx, c, name, now) })
}

// ClientsRevokedBefore returns the time up to which a user's certificates are revoked; zero: no
// certificate is revoked.
func (s *Store) ClientsRevokedBefore(ctx context.Context, name string) (time.Time, error) {
	var before string
	err := s.row(ctx, []any{&before}, "SELECT before FROM revoked_clients WHERE name = ?", name)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	return moment(before), err
}

// AddSession stores a login, and deletes expired logins. ErrNotFound: password is no longer the
// user's stored hash.
func (s *Store) AddSession(ctx context.Context, v Session, password string) error {
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		if _, err := c.ExecContext(ctx, "DELETE FROM sessions WHERE expires < ?", stamp(v.Created)); err != nil {
			return err
		}
		r, err := c.ExecContext(ctx, "INSERT INTO sessions (hash, \"user\", csrf, source, created, expires) SELECT ?, "+
			"name, ?, ?, ?, ? FROM users WHERE name = ? AND password = ?",
			v.Hash, v.CSRF, v.Source, stamp(v.Created), stamp(v.Expires), v.User, password)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("user %s with that password: %w", v.User, ErrNotFound))
		}
		return nil
	})
}

// Session returns a login by the hash of its cookie, or ErrNotFound.
func (s *Store) Session(ctx context.Context, hash []byte) (Session, error) {
	return one(list(ctx, s, func(scan func(...any) error) (Session, error) {
		var v Session
		var created, expires string
		err := scan(&v.Hash, &v.User, &v.Role, &v.CSRF, &v.Source, &created, &expires)
		v.Created, v.Expires = moment(created), moment(expires)
		return v, err
	}, `SELECT s.hash, s.user, u.role, s.csrf, s.source, s.created, s.expires FROM sessions s JOIN users u ON u.name = s.user WHERE s.hash = ?`, hash))
}

// DeleteSession deletes a login.
func (s *Store) DeleteSession(ctx context.Context, hash []byte) error {
	_, err := s.deleteRights(ctx, "DELETE FROM sessions WHERE hash = ?", hash)
	return err
}

// AddAPIToken stores a token of an existing user, and deletes tokens that expired a month ago.
func (s *Store) AddAPIToken(ctx context.Context, t APIToken) error {
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		if _, err := c.ExecContext(ctx, "DELETE FROM api_tokens WHERE expires < ?",
			stamp(t.Created.AddDate(0, -1, 0))); err != nil {
			return err
		}
		r, err := c.ExecContext(ctx, "INSERT INTO api_tokens (id, hash, \"user\", note, created, expires) SELECT ?, ?, "+
			"name, ?, ?, ? FROM users WHERE name = ?",
			t.ID, t.Hash, t.Note, stamp(t.Created), stamp(t.Expires), t.User)
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, fmt.Errorf("user %s: %w", t.User, ErrNotFound))
		}
		return nil
	})
}

const selectAPITokens = "SELECT t.id, t.hash, t.user, u.role, t.note, t.created, t.expires FROM api_tokens t JOIN " +
	"users u ON u.name = t.user"

// APIToken returns a token with its user's role, or ErrNotFound.
func (s *Store) APIToken(ctx context.Context, id string) (APIToken, error) {
	return one(s.apiTokens(ctx, selectAPITokens+" WHERE t.id = ?", id))
}

// APITokens lists all tokens, oldest first.
func (s *Store) APITokens(ctx context.Context) ([]APIToken, error) {
	return s.apiTokens(ctx, selectAPITokens+" ORDER BY t.created, t.id")
}

func (s *Store) apiTokens(ctx context.Context, query string, args ...any) ([]APIToken, error) {
	return list(ctx, s, func(scan func(...any) error) (APIToken, error) {
		var t APIToken
		var created, expires string
		err := scan(&t.ID, &t.Hash, &t.User, &t.Role, &t.Note, &created, &expires)
		t.Created, t.Expires = moment(created), moment(expires)
		return t, err
	}, query, args...)
}

// DeleteAPIToken deletes a token; ErrNotFound: the token does not exist.
func (s *Store) DeleteAPIToken(ctx context.Context, id string) error {
	n, err := s.deleteRights(ctx, "DELETE FROM api_tokens WHERE id = ?", id)
	if err == nil && n == 0 {
		err = fmt.Errorf("API token %s: %w", id, ErrNotFound)
	}
	return err
}

// A View is a saved address of the page with a name.
type View struct {
	Name string `json:"name"`
	Href string `json:"href"`
}

// viewsOf is the meta key of a user's views.
func viewsOf(user string) string { return "views of " + user }

// LoginsOf is the meta key of the networks from which a user has logged in.
func LoginsOf(user string) string { return "logins " + user }

// Views returns a user's saved views.
func (s *Store) Views(ctx context.Context, user string) (views []View, err error) {
	text, err := s.Meta(ctx, viewsOf(user))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &views)
	}
	if err != nil {
		return nil, fmt.Errorf("read the saved views of %s: %w", user, err)
	}
	return views, nil
}

// ChangeViews replaces a user's views by the result of change, or returns its error. ErrNotFound:
// the user does not exist. DeleteUser deletes the views.
func (s *Store) ChangeViews(ctx context.Context, user string, change func([]View) ([]View, error)) error {
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		var text sql.NullString
		err := c.QueryRowContext(ctx, "SELECT m.value FROM users u LEFT JOIN meta m ON m.key = ? WHERE u.name = ?",
			viewsOf(user), user).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("user %s: %w", user, ErrNotFound)
		}
		if err != nil {
			return err
		}
		var views []View
		if text.Valid {
			if err := json.Unmarshal([]byte(text.String), &views); err != nil {
				return fmt.Errorf("read the saved views of %s: %w", user, err)
			}
		}
		if views, err = change(views); err != nil {
			return err
		}
		now, err := json.Marshal(views)
		if err != nil {
			return err
		}
		_, err = c.ExecContext(ctx, setMeta, viewsOf(user), string(now))
		return err
	})
}
