package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// An unresolved is a transaction whose COMMIT got no response. The next connection reads whether it
// was committed; until then the store writes nothing.
type unresolved struct {
	tx     int64
	writes uint64    // see metaWrites
	audits []*queued // written in the same transaction
	done   bool      // committed; valid once the store's doubt is nil
}

// errUnresolved: it is not yet known whether the transaction was committed.
type errUnresolved struct {
	of *unresolved
	error
}

func (e errUnresolved) Unwrap() error { return e.error }

// transact runs fn in one transaction. It retries if the connection was lost before the COMMIT, or
// if the server aborted the transaction in favour of another one. A nil fn is a heartbeat, which
// also writes due audit records.
func (s *Store) transact(ctx context.Context, fn func(ctx context.Context, c *conn) error) error {
	p := s.pg
	var until time.Time // deadline to reconnect
	if s.conn != nil {
		until = time.Now().Add(p.timeouts.reconnect)
	}
	for try := 0; ; {
		if p.stopped != nil {
			return p.stopped
		}
		err := error(nil)
		if s.conn == nil {
			err = s.reconnect(ctx)
		}
		if err == nil {
			if err = s.attempt(ctx, fn); err == nil {
				return nil
			}
		}
		state := sqlState(err)
		switch {
		case p.stopped != nil:
			return p.stopped
		case errors.Is(err, ErrLocked), errors.As(err, new(errUnresolved)):
			return p.explain(err)
		case s.conn == nil && time.Now().Before(until):
			time.Sleep(50*time.Millisecond + rand.N(50*time.Millisecond))
			p.retryAt = time.Time{}
		case errors.Is(err, errNotCommitted) && time.Now().Before(until):
		case (state == stateSerialization || state == stateDeadlock || state == stateCanceled) && try < maxRetries:
			try++
		default:
			return p.explain(err)
		}
	}
}

// attempt runs one transaction. If it loses the connection, s.conn is nil afterwards.
func (s *Store) attempt(ctx context.Context, fn func(ctx context.Context, c *conn) error) (err error) {
	p, now := s.pg, time.Now()
	defer func() {
		if err == nil || s.conn == nil {
			return
		}
		gone := true
		_ = s.conn.raw(func(c *pgx.Conn) error { gone = c.IsClosed(); return nil })
		if !gone {
			_, rerr := s.conn.ExecContext(ctx, "ROLLBACK")
			gone = rerr != nil
		}
		if gone || sqlState(err) == stateReadOnly { // another server may have become the writable one
			s.dropConn()
		}
	}()
	if _, err := s.conn.ExecContext(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return err
	}
	changes := fn != nil || s.audits.isDue()
	writes, err := s.fence(ctx, p.tx+1, now, changes)
	if err != nil {
		return err
	}
	if err := s.checkNotMoved(ctx); err != nil {
		return err
	}
	if fn != nil {
		if err := fn(ctx, s.conn); err != nil {
			return err
		}
	}
	var audits []*queued
	if changes {
		if audits, err = s.writeAudits(ctx, s.conn); err != nil {
			return err
		}
	}
	if err := s.commit(ctx); err != nil {
		gone := true
		_ = s.conn.raw(func(c *pgx.Conn) error { gone = c.IsClosed(); return nil })
		switch {
		case !gone:
			return err
		case p.token == 0:
			return errUnresolved{nil, fmt.Errorf("%w: %s was lost during a commit: check whether it was carried out: %w",
				ErrUnavailable, p.where, err)}
		}
		return s.resolve(ctx, &unresolved{tx: p.tx + 1, writes: writes, audits: audits}, err)
	}
	if p.token != 0 {
		p.tx++
	}
	p.logRecovery()
	if len(audits) > 0 {
		s.audits.written(audits, true, time.Now())
	}
	s.committed(writes)
	return nil
}

// fence locks the leader's row, and counts the transaction if it changes anything. It fails if the
// row has another hub's token, or if the connection lacks its settings.
func (s *Store) fence(ctx context.Context, tx int64, now time.Time, changes bool) (writes uint64, err error) {
	p := s.pg
	if p.standby {
		return 0, ErrStandby
	}
	if p.empty {
		return 0, nil
	}
	lock, args := "SELECT one FROM leader FOR UPDATE", []any{}
	if p.token != 0 {
		lock, args = "UPDATE leader SET tx = ?, written = ? WHERE token = ? RETURNING one", []any{tx, stamp(now), p.token}
	}
	count := "SELECT coalesce(value, '0')::bigint%s FROM own LEFT JOIN meta ON key = ?"
	if changes {
		count = "INSERT INTO meta (key, value) SELECT ?, '1' FROM own ON CONFLICT (key) DO UPDATE SET value = " +
			"(meta.value::bigint + 1)::text RETURNING value::bigint%s"
	}
	var pid int32
	var sync string
	err = s.conn.QueryRowContext(ctx, "WITH own AS ("+lock+") "+fmt.Sprintf(count,
		", pg_backend_pid(), set_config('synchronous_commit', "+durable+", true)"),
		append(args, metaWrites)...).Scan(&writes, &pid, &sync)
	switch {
	case errors.Is(err, sql.ErrNoRows) && p.token != 0:
		return 0, s.stop(fmt.Errorf("%w: another hub has taken over %s: this one exits", ErrLocked, p.where))
	case err == nil && pid != p.pid:
		s.dropConn()
		return 0, errPooler(p.where)
	}
	return writes, err
}

// errNotCommitted: a COMMIT got no response, and was not carried out.
var errNotCommitted = errors.New("the connection was lost during a commit, which was not carried out")

// errRolledBack: the server answered COMMIT with a rollback.
var errRolledBack = errors.New("the server has rolled back the transaction at its commit")

// commit ends a transaction. An error proves a rollback only if the server has sent it and still
// answers.
func (s *Store) commit(ctx context.Context) error {
	return s.conn.raw(func(c *pgx.Conn) error {
		tag, err := c.Exec(ctx, "COMMIT")
		if err == nil && tag.String() != "COMMIT" {
			err = errRolledBack
		}
		return err
	})
}

// resolve reads the result of a COMMIT without response. nil: committed; errNotCommitted: not
// committed; errUnresolved: the server has not answered for too long.
func (s *Store) resolve(ctx context.Context, d *unresolved, cause error) error {
	p := s.pg
	p.unresolved = d
	until := time.Now().Add(p.timeouts.reconnect)
	for {
		s.dropConn()
		p.retryAt = time.Time{}
		err := s.reconnect(ctx)
		switch {
		case err == nil && d.done:
			p.logRecovery()
			return nil
		case err == nil:
			return fmt.Errorf("%w: %w", errNotCommitted, cause)
		case p.stopped != nil:
			return p.stopped
		case time.Now().After(until):
			return errUnresolved{d, fmt.Errorf("%w; it was lost during a commit, and it is not yet known whether that was carried "+
				"out", err)}
		}
		time.Sleep(50*time.Millisecond + rand.N(50*time.Millisecond))
	}
}

// settle waits until the result of a commit is known. Other calls fail at once meanwhile. The
// caller holds mu, before and after.
func (s *Store) settle(ctx context.Context, in errUnresolved) error {
	p := s.pg
	for until := time.Now().Add(p.timeouts.resolve); p.unresolved == in.of; {
		if p.stopped != nil {
			return p.stopped
		}
		if time.Now().After(until) || !s.isOpen() {
			return s.stop(fmt.Errorf("%s does not answer, and a commit may or may not be stored: the hub exits, and "+
				"reads the database again at its start: %w", p.where, in.error))
		}
		s.mu.Unlock()
		time.Sleep(retryEvery / 2)
		s.mu.Lock()
		if p.unresolved == in.of && s.conn == nil && s.isOpen() {
			_ = s.reconnect(ctx) // a new connection resolves the commit
		}
	}
	if !in.of.done {
		return errNotCommitted
	}
	p.logRecovery()
	return nil
}

// batch is how many rows are sent before their responses are read.
const batch = 500

// writeAll writes rows in the open transaction, many per round trip. It returns the number of rows
// dropped on a full disk.
func writeAll(ctx context.Context, c *conn, rows []Row, grow bool) (dropped int, err error) {
	statement := func(r Row) (string, []any) {
		switch {
		case r.Object == nil:
			return inDialect(true, forKind(removeRow, r.Kind), r.remove())
		case grow:
			return inDialect(true, forKind(putRow, r.Kind), r.put())
		}
		return inDialect(true, forKind(changeRow, r.Kind), r.change())
	}
	for some := range slices.Chunk(rows, batch) {
		if err := c.raw(func(c *pgx.Conn) error {
			var b pgx.Batch
			for _, r := range some {
				query, args := statement(r)
				b.Queue(query, args...)
			}
			answers := c.SendBatch(ctx, &b)
			for _, r := range some {
				done, err := answers.Exec()
				stored := true
				if err == nil && !grow && r.Object != nil {
					stored, err = changed(r, done.RowsAffected())
				}
				if err != nil {
					return errors.Join(fmt.Errorf("%s %s/%s: %w", r.Kind, r.Namespace, r.Name, err), ignore(answers.Close()))
				}
				if !stored {
					dropped++
				}
			}
			return answers.Close()
		}); err != nil {
			return 0, err
		}
	}
	return dropped, nil
}

// ignore skips an error that repeats an earlier one.
func ignore(error) error { return nil }

// compare checks on a new connection that the database is as this hub left it. Locking the row
// waits for the end of the old connection's transaction.
func (s *Store) compare(ctx context.Context) error {
	p := s.pg
	var token, tx int64
	if err := s.conn.QueryRowContext(ctx, "SELECT token, tx FROM leader FOR UPDATE").Scan(&token, &tx); err != nil {
		return err
	}
	switch {
	case token != p.token:
		return s.stop(fmt.Errorf("%w: another hub has taken over %s: this one exits", ErrLocked, p.where))
	case tx == p.tx:
		p.unresolved = nil
		return nil
	case p.unresolved != nil && tx == p.unresolved.tx:
		p.tx, p.unresolved.done = tx, true
		s.audits.written(p.unresolved.audits, true, time.Now())
		s.committed(p.unresolved.writes)
		p.unresolved = nil
		return nil
	case tx < p.tx:
		return s.stop(fmt.Errorf("%s is older than it was: its newest transaction is %d, but %d was acknowledged: it was "+
			"restored, or a standby took over that lacked transactions. The hub exits, and reads it again at its "+
			"start", p.where, tx, p.tx))
	}
	return s.stop(fmt.Errorf("%s has transaction %d, but this hub wrote %d: another process writes as this hub. The "+
		"hub exits, and reads it again at its start", p.where, tx, p.tx))
}

// stop records that this store can never write again.
func (s *Store) stop(err error) error {
	if s.pg.stopped == nil {
		s.pg.stopped = err
		s.pg.once.Do(func() { close(s.pg.stopping) })
	}
	return s.pg.stopped
}
