package store

import (
	"context"
	"database/sql"
	"time"
)

// auditKept is how long it is remembered who did what.
const auditKept = 90 * 24 * time.Hour

// An Audit is one change that somebody made or was refused.
type Audit struct {
	At        time.Time
	Who       string // "": nobody that is known
	Via       string // session, token, certificate, join token, command line
	Source    string // address
	Verb      string
	Resource  string
	Namespace string
	Name      string
	Code      int // as HTTP's
	Message   string
}

// AddAudit remembers a change, and forgets those of 90 days ago. While the disk
// is full it keeps the ballast for what makes room, and returns ErrFull.
func (s *Store) AddAudit(ctx context.Context, a Audit) error {
	if s.Full() {
		return ErrFull
	}
	return s.tx(ctx, func(ctx context.Context, c *sql.Conn) error {
		if _, err := c.ExecContext(ctx, "DELETE FROM audit WHERE at < ?", stamp(a.At.Add(-auditKept))); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, "INSERT INTO audit (at, who, via, source, verb, resource, namespace, name, code, message) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			stamp(a.At), a.Who, a.Via, a.Source, a.Verb, a.Resource, a.Namespace, a.Name, a.Code, a.Message)
		return err
	})
}

// Audits lists the newest changes, newest first, at most limit.
func (s *Store) Audits(ctx context.Context, limit int) ([]Audit, error) {
	return list(ctx, s, func(scan func(...any) error) (Audit, error) {
		var a Audit
		var at string
		err := scan(&at, &a.Who, &a.Via, &a.Source, &a.Verb, &a.Resource, &a.Namespace, &a.Name, &a.Code, &a.Message)
		a.At = moment(at)
		return a, err
	}, "SELECT at, who, via, source, verb, resource, namespace, name, code, message FROM audit ORDER BY id DESC LIMIT ?", limit)
}
