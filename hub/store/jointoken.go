package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// A JoinToken lets devices join one site. The store keeps only the hash of its secret.
type JoinToken struct {
	ID        string
	Hash      []byte // sha256 of the secret
	Site      string
	Node      string // "": any name
	Names     DeviceNames
	Labels    map[string]string
	Uses      int // allowed uses
	Used      int
	Created   time.Time
	CreatedBy string
	Expires   time.Time
	Revoked   time.Time // zero: not revoked
	Approval  bool      // devices that join with the token wait for approval
}

// DeviceNames gives devices their node names by serial number. A device without a serial number is
// named by its machine ID.
type DeviceNames struct {
	// BySerial has node names by serial number in lower case. Other devices may not join, unless
	// there is a Prefix.
	BySerial map[string]string `json:"bySerial,omitempty"`
	// Prefix begins the name of each other device; the end of its serial number follows.
	Prefix string `json:"prefix,omitempty"`
}

// A Use is a device's use of a join token. The current key of the node is in the node's record.
type Use struct {
	Node    string
	Key     string // sha256 of the public key, hex
	Machine string
	Site    string
	Labels  map[string]string
	Token   string // ID of the token
	At      time.Time
	Expires time.Time // when the certificate expires
}

// AddJoinToken stores a new token, and deletes tokens that expired a month ago.
func (s *Store) AddJoinToken(ctx context.Context, t JoinToken) error {
	labels, err := json.Marshal(t.Labels)
	if err != nil {
		return err
	}
	names, err := json.Marshal(t.Names)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		if _, err := c.ExecContext(ctx, "DELETE FROM join_tokens WHERE expires < ?",
			stamp(t.Created.AddDate(0, -1, 0))); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx,
			`INSERT INTO join_tokens
			(id, hash, site, node, names, labels, uses, used, created, created_by, expires, revoked, approval)
			VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, '', ?)`,
			t.ID, t.Hash, t.Site, t.Node, string(names), string(labels), t.Uses, stamp(t.Created), t.CreatedBy,
			stamp(t.Expires), number(t.Approval))
		return err
	})
}

const selectTokens = "SELECT id, hash, site, node, names, labels, uses, used, created, created_by, expires, " +
	"revoked, approval FROM join_tokens"

// JoinToken returns a token, or ErrNotFound.
func (s *Store) JoinToken(ctx context.Context, id string) (JoinToken, error) {
	return one(s.joinTokens(ctx, selectTokens+" WHERE id = ?", id))
}

// JoinTokens lists all tokens, oldest first, including expired ones.
func (s *Store) JoinTokens(ctx context.Context) ([]JoinToken, error) {
	return s.joinTokens(ctx, selectTokens+" ORDER BY created, id")
}

func (s *Store) joinTokens(ctx context.Context, query string, args ...any) ([]JoinToken, error) {
	return list(ctx, s, func(scan func(...any) error) (JoinToken, error) {
		var t JoinToken
		var names, labels, created, expires, revoked string
		err := scan(&t.ID, &t.Hash, &t.Site, &t.Node, &names, &labels, &t.Uses, &t.Used, &created, &t.CreatedBy, &expires,
			&revoked, &t.Approval)
		if err == nil {
			err = errors.Join(json.Unmarshal([]byte(names), &t.Names), json.Unmarshal([]byte(labels), &t.Labels))
		}
		t.Created, t.Expires, t.Revoked = moment(created), moment(expires), moment(revoked)
		return t, err
	}, query, args...)
}

// RevokeJoinToken revokes a token now.
func (s *Store) RevokeJoinToken(ctx context.Context, id string, now time.Time) error {
	n, err := s.exec(ctx, "UPDATE join_tokens SET revoked = ? WHERE id = ? AND revoked = ''", stamp(now), id)
	if err == nil && n == 0 {
		if _, err := s.JoinToken(ctx, id); err != nil {
			return err
		}
	}
	return err
}

// ErrUsedUp: the token has no uses left, has expired or was revoked.
var ErrUsedUp = errors.New("used up")

// TakeUse takes one use of a token for a device. The same key for the same node takes no second
// use, because a device repeats a join whose response was lost.
func (s *Store) TakeUse(ctx context.Context, e Use) error {
	labels, err := json.Marshal(e.Labels)
	if err != nil {
		return err
	}
	return s.tx(ctx, func(ctx context.Context, c *conn) error {
		var again int
		if err := c.QueryRowContext(ctx, "SELECT count(*) FROM enrolments WHERE node = ? AND key = ? AND token = ?", e.Node,
			e.Key, e.Token).Scan(&again); err != nil {
			return err
		}
		if again == 0 {
			r, err := c.ExecContext(ctx, "UPDATE join_tokens SET used = used + 1 WHERE id = ? AND used < uses AND revoked = "+
				"'' AND expires > ?", e.Token, stamp(e.At))
			if err != nil {
				return err
			}
			if n, err := r.RowsAffected(); err != nil || n != 1 {
				return errors.Join(err, fmt.Errorf("token %s: %w", e.Token, ErrUsedUp))
			}
		}
		_, err := c.ExecContext(ctx,
			`INSERT INTO enrolments (node, key, machine, site, labels, token, enrolled, expires) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (node) DO UPDATE SET key = excluded.key, machine = excluded.machine, site = excluded.site, labels = excluded.labels,
			token = excluded.token, enrolled = excluded.enrolled, expires = excluded.expires`,
			e.Node, e.Key, e.Machine, e.Site, string(labels), e.Token, stamp(e.At), stamp(e.Expires))
		return err
	})
}

const selectEnrolments = "SELECT node, key, machine, site, labels, token, enrolled, expires FROM enrolments"

// Enrolments lists the newest use of each node. In a database of an earlier version that use has
// the node's key.
func (s *Store) Enrolments(ctx context.Context) ([]Use, error) {
	return list(ctx, s, func(scan func(...any) error) (Use, error) {
		var e Use
		var labels, at, expires string
		err := scan(&e.Node, &e.Key, &e.Machine, &e.Site, &labels, &e.Token, &at, &expires)
		if err == nil {
			err = json.Unmarshal([]byte(labels), &e.Labels)
		}
		e.At, e.Expires = moment(at), moment(expires)
		return e, err
	}, selectEnrolments+" ORDER BY node")
}

// list runs a query and scans each row.
func list[T any](
	ctx context.Context, s *Store, scan func(func(...any) error) (T, error), query string, args ...any,
) (all []T, err error) {
	err = s.reading(func() error {
		rows, err := s.read.QueryContext(ctx, query, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		all = nil
		for rows.Next() {
			v, err := scan(rows.Scan)
			if err != nil {
				return err
			}
			all = append(all, v)
		}
		return rows.Err()
	})
	return all, err
}

// reading runs a read, and repeats it if its connection was lost. After a restart of the server
// every connection in the pool is lost.
func (s *Store) reading(do func() error) error {
	for try := 0; ; try++ {
		err := do()
		if s.pg == nil || try > readers || !isLost(err) {
			return s.explain(err)
		}
	}
}

// row reads one row.
func (s *Store) row(ctx context.Context, into []any, query string, args ...any) error {
	return s.reading(func() error { return s.read.QueryRowContext(ctx, query, args...).Scan(into...) })
}

func one[T any](all []T, err error) (T, error) {
	var none T
	switch {
	case err != nil:
		return none, err
	case len(all) == 0:
		return none, ErrNotFound
	}
	return all[0], nil
}
