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

// A doubt is a transaction whose COMMIT was not answered. The next connection tells what
// became of it: nothing is written before that.
type doubt struct {
	tx     int64
	writes uint64    // see metaWrites
	audits []*queued // that were written with it
	done   bool      // known once it is the store's doubt no more
}

// errDoubt: nobody knows yet whether it was carried out.
type errDoubt struct {
	of *doubt
	error
}

func (e errDoubt) Unwrap() error { return e.error }

// transact runs fn in one transaction, and again where its connection was lost before it
// was over, or the server gave it up for the sake of another. Without fn it shows that this hub
// lives, and writes what waits of the audit.
func (s *Store) transact(ctx context.Context, fn func(ctx context.Context, c *conn) error) error {
	p := s.pg
	var until time.Time // how long a connection that was there is waited for
	if s.conn != nil {
		until = time.Now().Add(p.waits.patience)
	}
	for try := 0; ; {
		if p.over != nil {
			return p.over
		}
		err := error(nil)
		if s.conn == nil {
			err = s.reach(ctx)
		}
		if err == nil {
			if err = s.attempt(ctx, fn); err == nil {
				return nil
			}
		}
		state := sqlState(err)
		switch {
		case p.over != nil:
			return p.over
		case errors.Is(err, ErrLocked), errors.As(err, new(errDoubt)):
			return p.explain(err)
		case s.conn == nil && time.Now().Before(until):
			time.Sleep(50*time.Millisecond + rand.N(50*time.Millisecond))
			p.rest = time.Time{}
		case errors.Is(err, errUndone) && time.Now().Before(until):
		case (state == stateSerialization || state == stateDeadlock || state == stateCanceled) && try < conflicts:
			try++
		default:
			return p.explain(err)
		}
	}
}

// attempt runs one transaction. Where its connection is gone afterwards, s.conn is nil.
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
		if gone || sqlState(err) == stateReadOnly { // of several servers, another may take writes now
			s.dropConn()
		}
	}()
	if _, err := s.conn.ExecContext(ctx, "BEGIN ISOLATION LEVEL READ COMMITTED"); err != nil {
		return err
	}
	changes := fn != nil || s.audits.waits()
	writes, err := s.fence(ctx, p.tx+1, now, changes)
	if err != nil {
		return err
	}
	if err := s.stays(ctx); err != nil {
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
			return errDoubt{nil, fmt.Errorf("%w: %s was lost in the middle of a commit: look whether it was carried out: %w",
				ErrUnavailable, p.where, err)}
		}
		return s.resolve(ctx, &doubt{tx: p.tx + 1, writes: writes, audits: audits}, err)
	}
	if p.token != 0 {
		p.tx++
	}
	p.answers()
	if len(audits) > 0 {
		s.audits.kept(audits, true, time.Now())
	}
	s.wrote(writes)
	return nil
}

// fence locks the leader's row, and counts the transaction if it changes anything. A hub goes on only
// while its token is in the row, and anybody only on the connection that was set up for it.
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
		return 0, s.isOver(fmt.Errorf("%w: another hub has taken %s over: this one ends", ErrLocked, p.where))
	case err == nil && pid != p.pid:
		s.dropConn()
		return 0, pooled(p.where)
	}
	return writes, err
}

// errUndone: a COMMIT was not answered, and has not been carried out.
var errUndone = errors.New("the connection was lost while it committed, and nothing was")

// errAborted: the server made a rollback of a commit.
var errAborted = errors.New("the server has undone the transaction at its end")

// commit ends a transaction. Only where the server answers with an error and stays is it
// certain that an error means that nothing was done.
func (s *Store) commit(ctx context.Context) error {
	return s.conn.raw(func(c *pgx.Conn) error {
		tag, err := c.Exec(ctx, "COMMIT")
		if err == nil && tag.String() != "COMMIT" {
			err = errAborted
		}
		return err
	})
}

// resolve finds out what became of a COMMIT that was not answered: nil, it was carried
// out; errUndone, it was not; errDoubt, the server has been away for too long.
func (s *Store) resolve(ctx context.Context, d *doubt, cause error) error {
	p := s.pg
	p.doubt = d
	until := time.Now().Add(p.waits.patience)
	for {
		s.dropConn()
		p.rest = time.Time{}
		err := s.reach(ctx)
		switch {
		case err == nil && d.done:
			p.answers()
			return nil
		case err == nil:
			return fmt.Errorf("%w: %w", errUndone, cause)
		case p.over != nil:
			return p.over
		case time.Now().After(until):
			return errDoubt{d, fmt.Errorf("%w; it was lost in the middle of a commit, and it is not known yet whether that "+
				"was carried out", err)}
		}
		time.Sleep(50*time.Millisecond + rand.N(50*time.Millisecond))
	}
}

// settle waits until it is known what became of a plan, without keeping anybody else: all
// others are told that the server is away. It is called, and returns, with mu held.
func (s *Store) settle(ctx context.Context, in errDoubt) error {
	p := s.pg
	for until := time.Now().Add(p.waits.doubt); p.doubt == in.of; {
		if p.over != nil {
			return p.over
		}
		if time.Now().After(until) || !s.isOpen() {
			return s.isOver(fmt.Errorf("%s does not answer, and a plan may have been written there or not: the hub ends, and "+
				"begins anew from what is there: %w", p.where, in.error))
		}
		s.mu.Unlock()
		time.Sleep(restBetween / 2)
		s.mu.Lock()
		if p.doubt == in.of && s.conn == nil && s.isOpen() {
			_ = s.reach(ctx) // with a connection it is the doubt no more
		}
	}
	if !in.of.done {
		return errUndone
	}
	p.answers()
	return nil
}

// batch is how many rows go to the server before their answers are read.
const batch = 500

// writeAll writes rows in the transaction that is open, many with each way to the server
// and back. It tells how many were left out for want of room.
func writeAll(ctx context.Context, c *conn, rows []Row, grow bool) (dropped int, err error) {
	statement := func(r Row) (string, []any) {
		switch {
		case r.Object == nil:
			return worded(true, forKind(removeRow, r.Kind), r.remove())
		case grow:
			return worded(true, forKind(putRow, r.Kind), r.put())
		}
		return worded(true, forKind(changeRow, r.Kind), r.change())
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
				kept := true
				if err == nil && !grow && r.Object != nil {
					kept, err = changed(r, done.RowsAffected())
				}
				if err != nil {
					return errors.Join(fmt.Errorf("%s %s/%s: %w", r.Kind, r.Namespace, r.Name, err), ignore(answers.Close()))
				}
				if !kept {
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

// ignore is for an error that repeats one before it.
func ignore(error) error { return nil }

// compare looks, on a new connection, whether the database is as it was left. The lock of
// the row waits for the end of whatever an older connection still does.
func (s *Store) compare(ctx context.Context) error {
	p := s.pg
	var token, tx int64
	if err := s.conn.QueryRowContext(ctx, "SELECT token, tx FROM leader FOR UPDATE").Scan(&token, &tx); err != nil {
		return err
	}
	switch {
	case token != p.token:
		return s.isOver(fmt.Errorf("%w: another hub has taken %s over: this one ends", ErrLocked, p.where))
	case tx == p.tx:
		p.doubt = nil
		return nil
	case p.doubt != nil && tx == p.doubt.tx:
		p.tx, p.doubt.done = tx, true
		s.audits.kept(p.doubt.audits, true, time.Now())
		s.wrote(p.doubt.writes)
		p.doubt = nil
		return nil
	case tx < p.tx:
		return s.isOver(fmt.Errorf("%s is older than it was: the newest transaction there is %d, and %d was acknowledged: "+
			"it was restored, or a standby took over that had not got everything. The hub ends, and looks at it anew when it "+
			"starts", p.where, tx, p.tx))
	}
	return s.isOver(fmt.Errorf("%s has transaction %d, and this hub has made %d: something else writes as this hub. "+
		"The hub ends, and begins anew from what is there", p.where, tx, p.tx))
}

// isOver notes that nothing can be written by this store any more.
func (s *Store) isOver(err error) error {
	if s.pg.over == nil {
		s.pg.over = err
		s.pg.once.Do(func() { close(s.pg.overing) })
	}
	return s.pg.over
}
