package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// A patient connection gives up on a server that says nothing for long: a frozen one, or a
// network that swallows packets. Where its user has set a deadline, that one counts.
type patient struct {
	net.Conn
	stalled time.Duration
	mu      sync.Mutex
	set     bool
}

var errStalled = errors.New("the server says nothing any more")

func (p *patient) SetDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set = !t.IsZero()
	return p.Conn.SetDeadline(t)
}

func (p *patient) SetReadDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set = !t.IsZero()
	return p.Conn.SetReadDeadline(t)
}

// arm sets the deadline of what comes next, and tells whether it is ours.
func (p *patient) arm(set func(time.Time) error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.set && set(time.Now().Add(p.stalled)) == nil
}

func (p *patient) Read(b []byte) (int, error) {
	ours := p.arm(p.Conn.SetReadDeadline)
	n, err := p.Conn.Read(b)
	return n, p.tell(ours, err)
}

func (p *patient) Write(b []byte) (int, error) {
	ours := p.arm(p.Conn.SetWriteDeadline)
	n, err := p.Conn.Write(b)
	return n, p.tell(ours, err)
}

func (p *patient) tell(ours bool, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ours && !p.set && errors.Is(err, os.ErrDeadlineExceeded) {
		return errStalled // no timeout in pgx's eyes: the connection is given up
	}
	return err
}

// connectPostgres makes the readers' pool and the pool of the one connection that writes.
func (s *Store) connectPostgres() {
	s.db = stdlib.OpenDB(*s.pg.config)
	s.db.SetMaxOpenConns(1)
	s.read = &pool{stdlib.OpenDB(*s.pg.config), true}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	s.kinds = map[string]*kindTable{}
}

// raw gives the connection of pgx below one of database/sql.
func (c *conn) raw(do func(*pgx.Conn) error) error {
	return c.Raw(func(d any) error { return do(d.(*stdlib.Conn).Conn()) })
}

// reach makes the writer's connection. A leader takes the lock that keeps other hubs out,
// and compares what the database says with what it knows.
func (s *Store) reach(ctx context.Context) (err error) {
	p := s.pg
	if now := time.Now(); now.Before(p.rest) {
		return p.why
	}
	defer func() {
		if err != nil {
			s.dropConn()
			err = p.explain(err)
			p.rest, p.why = time.Now().Add(restBetween), err
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, 2*dialTimeout)
	defer cancel()
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	s.conn = &conn{c, true}
	pid, err := s.session(ctx)
	if err != nil {
		return err
	}
	if s.lock != nil {
		if err := s.takeLeadership(ctx); err != nil {
			return err
		}
	}
	p.pid = pid
	return nil
}

// session is the server's process behind the writer's connection. A pooler that gives each
// transaction whatever connection is free is refused: what a connection is told, and the
// lock that it holds, would be somebody else's.
func (s *Store) session(ctx context.Context) (pid int32, err error) {
	pid, direct, err := backend(ctx, s.conn, "")
	if err != nil || direct {
		return pid, err
	}
	other, err := s.read.conn(ctx)
	if err != nil {
		return 0, err
	}
	defer other.Close()
	switch _, _, err := backend(ctx, other, "BEGIN"); { // such a pooler gives it the connection that is free: ours
	case sqlState(err) == stateProtocol: // or, statement by statement, knows no transactions
		return 0, pooled(s.pg.where)
	case err != nil:
		return 0, err
	}
	now, _, err := backend(ctx, s.conn, "")
	_, _, rerr := backend(ctx, other, "ROLLBACK")
	if err == nil && now != pid {
		err = pooled(s.pg.where)
	}
	return pid, errors.Join(err, rerr)
}

// backend does something on a connection, if anything, and tells which process of the server
// did it, and whether that is the one that has answered the connection: no pooler is between.
// Nothing is prepared for it, which a pooler may not know.
func backend(ctx context.Context, c *conn, does string) (pid int32, direct bool, err error) {
	err = c.raw(func(c *pgx.Conn) error {
		if does != "" {
			if _, err := c.PgConn().Exec(ctx, does).ReadAll(); err != nil {
				return err
			}
		}
		r, err := c.PgConn().Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
		if err != nil {
			return err
		}
		if len(r) != 1 || len(r[0].Rows) != 1 {
			return errors.New("the server does not tell its process")
		}
		n, err := strconv.ParseInt(string(r[0].Rows[0][0]), 10, 32)
		pid, direct = int32(n), uint32(n) == c.PgConn().PID()
		return err
	})
	return pid, direct, err
}

// takeLeadership takes the advisory lock. The connection that we have lost may still have
// it, where the server has not heard of its end: it is ended there.
func (s *Store) takeLeadership(ctx context.Context) error {
	p, began := s.pg, time.Now()
	for {
		var got bool
		if err := s.conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock(?::int, hashtext(coalesce(current_schema(), '')))",
			lockClass).Scan(&got); err != nil {
			return err
		}
		if got {
			break
		}
		var pid int32
		var who, since, from sql.NullString
		err := s.conn.QueryRowContext(ctx,
			`SELECT l.pid, a.application_name, to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), host(a.client_addr)
			FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
			WHERE l.locktype = 'advisory' AND l.granted AND l.classid = ?::int::oid AND l.objid = hashtext(coalesce(current_schema(), ''))::oid
			AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`, lockClass).Scan(&pid, &who, &since, &from)
		switch {
		case errors.Is(err, sql.ErrNoRows): // it has just gone
		case err != nil:
			return err
		// the row is ours, or compare finds out that it is not: whoever has the lock cannot commit
		case pid != p.pid && p.member != nil:
			if err := s.stillLeads(ctx); err != nil {
				return err
			}
			if _, err := s.conn.ExecContext(ctx, "SELECT pg_terminate_backend(?::int)", pid); err != nil {
				return err
			}
		case pid != p.pid && time.Since(began) < time.Second: // one that was just killed takes the server a moment
		case pid != p.pid:
			at := "on the server's machine"
			if from.String != "" {
				at = "from " + from.String
			}
			return fmt.Errorf("lock %s: %w: another hub (connected %s since %s) writes there; stop it, or give this one its "+
				"own --database", p.where, ErrLocked, at, since.String)
		default:
			if _, err := s.conn.ExecContext(ctx, "SELECT pg_terminate_backend(?::int)", pid); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	if p.token == 0 { // at the start, openPostgres goes on
		return nil
	}
	return s.compare(ctx)
}

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

func (s *Store) dropConn() {
	if s.conn != nil {
		_ = s.conn.raw(func(c *pgx.Conn) error { // no farewell: who does not answer is not waited for
			_ = c.PgConn().Conn().Close()
			return nil
		})
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn }) // it goes back into no pool
		_ = s.conn.Close()
		s.conn = nil
	}
}
