package store

import (
	"context"
	"database/sql"
	"strings"
	"time"
)

// auditKept is how long it is remembered who did what.
const auditKept = 90 * 24 * time.Hour

// An Audit is one change that somebody made or was refused.
type Audit struct {
	ID        int64 // when it is read: later ones have greater ones
	At        time.Time
	Who       string // "": nobody that is known
	Via       string // page, token, certificate, API, command line, join token, password, setup link; session in old records
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
	return s.FindAudits(ctx, AuditQuery{Limit: limit})
}

// An AuditQuery says which records are wanted.
type AuditQuery struct {
	Before  int64    // older than this ID; 0: from the newest on
	Words   []string // all of them must occur, whatever their case
	Refused bool     // only what was refused or has failed
	Via     []string // only what came in one of these ways; none: in any
	Limit   int
}

// FindAudits lists changes, newest first.
func (s *Store) FindAudits(ctx context.Context, q AuditQuery) ([]Audit, error) {
	query, args := "SELECT id, at, who, via, source, verb, resource, namespace, name, code, message FROM audit WHERE 1", []any{}
	if q.Before > 0 {
		query, args = query+" AND id < ?", append(args, q.Before)
	}
	if q.Refused {
		query += " AND code >= 400"
	}
	if len(q.Via) > 0 {
		query += " AND via IN (?" + strings.Repeat(", ?", len(q.Via)-1) + ")"
		for _, v := range q.Via {
			args = append(args, v)
		}
	}
	for _, word := range q.Words {
		query += " AND instr(lower(who || ' ' || via || ' ' || source || ' ' || verb || ' ' || resource || ' ' || namespace || ' ' || name || ' ' || message), lower(?)) > 0"
		args = append(args, word)
	}
	return list(ctx, s, func(scan func(...any) error) (Audit, error) {
		var a Audit
		var at string
		err := scan(&a.ID, &at, &a.Who, &a.Via, &a.Source, &a.Verb, &a.Resource, &a.Namespace, &a.Name, &a.Code, &a.Message)
		a.At = moment(at)
		return a, err
	}, query+" ORDER BY id DESC LIMIT ?", append(args, q.Limit)...)
}
