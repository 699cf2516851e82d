package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/hub/panics"
)

// Limits of the whole audit. The oldest records are removed first.
const (
	// AuditKept is the default of Options.AuditKept.
	AuditKept     = 90 * 24 * time.Hour
	maxAuditRows  = 200_000
	maxAuditBytes = 64 << 20
	auditPrune    = 2000 // most records that one write removes
)

// Keys of the meta table: the newest record, and the newest removed record.
const (
	metaAuditHead   = "audit-head"
	metaAuditAnchor = "audit-anchor"
)

// AddAudit adds a record, and returns when it is on the disk or counted in a flood. Concurrent
// records share one write. On a full disk it returns ErrFull; only operations that free space may
// use the ballast.
func (s *Store) AddAudit(_ context.Context, a Audit) error {
	q := s.audits.put(a)
	s.arm()
	if q == nil {
		return nil
	}
	return s.flushAudits(q)
}

// NoteAudit adds a record without waiting. The next transaction writes the record, at the latest
// after a second.
func (s *Store) NoteAudit(a Audit) {
	s.audits.put(a)
	s.arm()
}

// arm sets the timer that writes records when no other transaction does.
func (s *Store) arm() {
	q := &s.audits
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	at := q.next(now)
	switch {
	case at.IsZero():
	case q.timer == nil:
		q.timer = time.AfterFunc(max(at.Sub(now), 0), func() {
			defer panics.Catch("audit")
			q.mu.Lock()
			q.timer = nil
			q.mu.Unlock()
			if err := s.flushAudits(nil); err != nil && !errors.Is(err, ErrUnavailable) { // unavailable: logged elsewhere
				s.log.Error("the audit cannot be written", "err", err)
			}
			s.arm()
		})
	case len(q.waiting) == 1: // the timer may wait for the end of a long flood
		q.timer.Reset(auditDelay)
	}
}

// flushAudits writes due records. If one is not nil, flushAudits returns when that record is
// written.
func (s *Store) flushAudits(one *queued) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one != nil && one.written { // written by another transaction
		return nil
	}
	if !s.isOpen() {
		return nil // Close has written the record
	}
	if one == nil && !s.audits.isDue() {
		return nil
	}
	ctx := context.Background()
	nothing := func(context.Context, *conn) error { return nil }
	err := ErrFull
	if !s.full.Load() {
		err = s.txLocked(ctx, nothing)
	}
	if errors.Is(err, ErrFull) {
		s.audits.written(s.audits.gather(time.Now(), false), false, time.Now())
		if one == nil {
			return nil // the record counts as lost; the full disk is logged elsewhere
		}
	}
	return err
}

// writeAudits writes due records in the open transaction, prunes old records, and returns the
// written ones.
func (s *Store) writeAudits(ctx context.Context, c *conn) ([]*queued, error) {
	now := time.Now()
	if s.full.Load() {
		return nil, nil
	}
	rows := s.audits.gather(now, s.closing)
	if len(rows) == 0 {
		return nil, nil
	}
	if _, err := c.ExecContext(ctx, "SAVEPOINT audit"); err != nil {
		return nil, err
	}
	err := s.appendAudits(ctx, c, rows, now)
	if cause := s.explain(err); errors.Is(cause, ErrFull) || errors.Is(cause, ErrUnavailable) {
		return nil, err // the caller frees space or retries the transaction
	}
	if err != nil { // a damaged audit must not stop the fleet
		s.log.Error("audit records are lost", "count", len(rows), "err", err)
		s.audits.written(rows, false, now)
		rows = nil
		if _, err := c.ExecContext(ctx, "ROLLBACK TO audit"); err != nil {
			return nil, err
		}
	}
	_, err = c.ExecContext(ctx, "RELEASE audit")
	return rows, err
}

// A chainEnd is one end of the chain: a record's number and hash, and the total bytes of all
// records up to that record.
type chainEnd struct {
	id, total int64
	hash      []byte
}

func (e chainEnd) String() string { return fmt.Sprintf("%d %x %d", e.id, e.hash, e.total) }

func parseChainEnd(text string) (e chainEnd, err error) {
	f := strings.Fields(text)
	if len(f) != 3 {
		return e, fmt.Errorf("%q is not an end of a chain", text)
	}
	e.id, err = strconv.ParseInt(f[0], 10, 64)
	if err == nil {
		e.hash, err = hex.DecodeString(f[1])
	}
	if err == nil {
		e.total, err = strconv.ParseInt(f[2], 10, 64)
	}
	return e, err
}

type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// chainEndOf reads an end of the chain; false: the end is not set.
func chainEndOf(ctx context.Context, c querier, key string) (chainEnd, bool, error) {
	var text string
	err := c.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", key).Scan(&text)
	if errors.Is(err, sql.ErrNoRows) {
		return chainEnd{}, false, nil
	}
	if err != nil {
		return chainEnd{}, false, err
	}
	e, err := parseChainEnd(text)
	if err != nil {
		return chainEnd{}, false, fmt.Errorf("%w: %w", errNoEnd, err)
	}
	return e, true, nil
}

// errNoEnd: the stored end of the chain is damaged, but not the records.
var errNoEnd = errors.New("damaged")

// newestRecord returns the chain's end from the newest record; false: that record is older than the
// chain.
func newestRecord(ctx context.Context, c querier) (e chainEnd, _ bool, err error) {
	err = c.QueryRowContext(ctx, "SELECT id, hash, total FROM audit ORDER BY id DESC LIMIT 1").Scan(&e.id, &e.hash,
		&e.total)
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return e, len(e.hash) > 0, err
}

// appendAudits adds records to the chain.
func (s *Store) appendAudits(ctx context.Context, c *conn, rows []*queued, now time.Time) error {
	head, begun, err := chainEndOf(ctx, c, metaAuditHead)
	if damage := err; errors.Is(err, errNoEnd) {
		head, begun, err = newestRecord(ctx, c)
		note := Audit{
			At: now, Who: "the hub", Verb: "repair", Resource: "audit", Code: 200,
			Message: fmt.Sprintf("the stored end of the audit was unusable (%v): the chain continues after record %d; later "+
				"records may be missing", damage, head.id),
		}
		rows = append([]*queued{{Audit: note.bounded()}}, rows...)
	}
	if err != nil {
		return err
	}
	var last int64
	var before string
	if err := c.QueryRowContext(ctx, "SELECT id, at FROM audit ORDER BY id DESC LIMIT 1").Scan(&last,
		&before); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	head.id = max(head.id, last)
	if !begun {
		var old int
		if err := c.QueryRowContext(ctx, "SELECT count(*) FROM audit").Scan(&old); err != nil {
			return err
		}
		first := Audit{
			At: now, Who: "the hub", Verb: auditBegins, Resource: "audit", Code: 200,
			Message: fmt.Sprintf("the chain of hashes begins with this record; %d older records are not in it", old),
		}
		rows = append([]*queued{{Audit: first.bounded()}}, rows...)
	}
	for _, r := range rows {
		a := &r.Audit
		head.id, head.total, a.ID = head.id+1, head.total+a.bytes(), head.id+1
		head.hash = a.link(head.hash)
		if _, err := c.ExecContext(ctx, "INSERT INTO audit (id, at, until, count, who, via, source, verb, resource, "+
			"namespace, name, code, message, total, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			a.ID, stamp(a.At), stamp(a.Until), a.Count, a.Who, a.Via, a.Source, a.Verb, a.Resource, a.Namespace, a.Name, a.Code,
			a.Message, head.total, head.hash); err != nil {
			return err
		}
	}
	if _, err := c.ExecContext(ctx, setMeta, metaAuditHead, head.String()); err != nil {
		return err
	}
	at := rows[len(rows)-1].At
	if was := moment(before); !was.IsZero() && was.Before(at) { // one wrong time must not remove other records
		at = was
	}
	return s.pruneAudits(ctx, c, head, at)
}

const auditBegins = "begin"

// pruneAudits removes the oldest records beyond the limits, and stores the newest removed record as
// the beginning of the chain.
func (s *Store) pruneAudits(ctx context.Context, c *conn, head chainEnd, now time.Time) error {
	var first, keep sql.NullInt64
	if err := c.QueryRowContext(ctx, "SELECT min(id) FROM audit").Scan(&first); err != nil {
		return err
	}
	err := c.QueryRowContext(ctx, "SELECT id FROM audit WHERE at >= ? AND id > ? AND (total > ? OR length(hash) = 0) "+
		"ORDER BY id LIMIT 1",
		stamp(now.Add(-s.auditKept)), head.id-s.auditRows, head.total-s.auditBytes).Scan(&keep)
	if errors.Is(err, sql.ErrNoRows) {
		keep.Int64, err = head.id, nil // the newest record stays
	}
	if err != nil || keep.Int64 <= first.Int64 {
		return err
	}
	until := min(keep.Int64, first.Int64+auditPrune)
	anchor := chainEnd{}
	err = c.QueryRowContext(ctx, "SELECT id, hash, total FROM audit WHERE id < ? ORDER BY id DESC LIMIT 1",
		until).Scan(&anchor.id, &anchor.hash, &anchor.total)
	if err != nil {
		return err
	}
	if len(anchor.hash) > 0 {
		if _, err := c.ExecContext(ctx, setMeta, metaAuditAnchor, anchor.String()); err != nil {
			return err
		}
	}
	_, err = c.ExecContext(ctx, "DELETE FROM audit WHERE id < ?", until)
	return err
}
