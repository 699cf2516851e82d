package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"flotilla.dev/hub/panics"
)

// How long whoever else writes is waited for, in milliseconds, and how long while they go on.
const busyWait, busyHeld = "5000", "100"

// dsn says how every connection is made: durable commits, enforced references, and a bounded log.
// It makes no file: an empty one in the place of one that was moved would cost the log its life.
func dsn(file string, pragmas ...string) string {
	all := []string{
		"busy_timeout(" + busyWait + ")", "synchronous(FULL)", "foreign_keys(1)", "journal_size_limit(8388608)",
		"trusted_schema(0)",
	}
	q := url.Values{"mode": {"rw"}, "_txlock": {"immediate"}, "_pragma": append(all, pragmas...)}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// makes is what a database is told by the hub alone, whose it is: that it has a log, and, once, while
// it is empty, that space which deletes free goes back to the disk. SQLite writes for either, and of
// two that do so at the same moment, a hub and a command beside its first start, it refuses one at once.
func (s *Store) makes() (pragmas []string) {
	if s.shared {
		return nil
	}
	if info, err := os.Stat(s.file); err != nil || info.Size() == 0 {
		pragmas = append(pragmas, "auto_vacuum(2)")
	}
	return append(pragmas, "journal_mode(WAL)")
}

// connect makes the writer's connection and the readers' pool. SQLite gives its
// log and index the mode of the database file, so that is created first, 0600.
func (s *Store) connect(ctx context.Context) error {
	flags := os.O_CREATE | os.O_RDWR | unix.O_NOFOLLOW
	if s.shared {
		flags &^= os.O_CREATE
	}
	f, err := os.OpenFile(s.file, flags, 0o600)
	if err != nil {
		return fmt.Errorf("%w; %s", err, mend(err))
	}
	if err := s.belong(f); err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", s.file, err), f.Close())
	}
	if s.lock != nil {
		s.ahead = &dirLock{f}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("%w: another flotilla-hub has this database, whose hub.lock was removed; stop it, or give this "+
				"one its own --data-dir", ErrLocked)
		}
		s.readAhead.Go(func() { readThrough(f) })
	} else if err := f.Close(); err != nil {
		return err
	}
	if s.db, err = sql.Open("sqlite", dsn(s.file, s.makes()...)); err != nil {
		return err
	}
	s.db.SetMaxOpenConns(1)
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	s.conn, s.held = &conn{c, false}, false
	read, err := sql.Open("sqlite", dsn(s.file, "query_only(1)"))
	if err != nil {
		return err
	}
	s.read = &pool{read, false}
	s.read.SetMaxOpenConns(readers)
	s.kinds = map[string]*kindTable{}
	return nil
}

// readThrough reads a database that fits into the machine's memory from its beginning to its end,
// for the kernel to have it then: after a power cut a start reads each object where it lies, which
// takes a disk several times as long.
func readThrough(f *os.File) {
	defer panics.Catch("read ahead")
	var machine unix.Sysinfo_t
	info, err := f.Stat()
	if err != nil || unix.Sysinfo(&machine) != nil ||
		uint64(info.Size()) > uint64(machine.Totalram)*uint64(machine.Unit)/4 {
		return
	}
	for b := make([]byte, 256<<10); err == nil; {
		_, err = f.Read(b) // what does not let itself be read is said by who wants it
	}
}

func (s *Store) disconnect() error {
	var errs []error
	for _, t := range s.kinds {
		errs = append(errs, t.close())
	}
	if s.pg != nil {
		s.dropConn()
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.read != nil {
		errs = append(errs, s.read.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close()) // last: folds the log into the database
	}
	if s.ahead != nil { // not before: to close the file takes SQLite's locks on it away
		errs = append(errs, s.ahead.Close())
		s.readAhead.Wait()
	}
	s.conn, s.read, s.db, s.kinds, s.ahead = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// The statements of this package are written once, with ? for what is filled in. What
// SQLite and PostgreSQL call differently is below; what only one of them has is in files
// of its own.

// A conn is the writer's connection, or one of a reader.
type conn struct {
	*sql.Conn
	postgres bool
}

// A pool is the readers' connections.
type pool struct {
	*sql.DB
	postgres bool
}

func (c *conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	query, args = worded(c.postgres, query, args)
	return c.Conn.ExecContext(ctx, query, args...)
}

func (c *conn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	query, args = worded(c.postgres, query, args)
	return c.Conn.QueryContext(ctx, query, args...)
}

func (c *conn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	query, args = worded(c.postgres, query, args)
	return c.Conn.QueryRowContext(ctx, query, args...)
}

func (p *pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	query, args = worded(p.postgres, query, args)
	return p.DB.QueryContext(ctx, query, args...)
}

func (p *pool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	query, args = worded(p.postgres, query, args)
	return p.DB.QueryRowContext(ctx, query, args...)
}

func (p *pool) conn(ctx context.Context) (*conn, error) {
	c, err := p.DB.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{c, p.postgres}, nil
}

// worded is a statement in the words of its database. No statement of this package has a
// question mark in a text.
func worded(postgres bool, query string, args []any) (string, []any) {
	if !postgres || len(args) == 0 {
		return query, args
	}
	var b strings.Builder
	n := 0
	for {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			break
		}
		n++
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
		query = after
	}
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = storable(text)
		}
	}
	return strings.ReplaceAll(b.String(), "instr(", "strpos("), args
}

// storable is a text as PostgreSQL takes it: UTF-8 without NUL. Nothing that a hub lets in
// is any other, but names that somebody asks for may be.
func storable(text string) string {
	const instead = "\uFFFD"
	return strings.ReplaceAll(strings.ToValidUTF8(text, instead), "\x00", instead)
}

// number is a bool as both databases keep it.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// A database that somebody moves or removes while its hub runs goes on, for its hub has it open:
// all that is acknowledged from then on would be gone with the process, for the next one looks
// for it under its name. So nothing more is written to it, and what it has goes into a backup,
// with which the next start begins. Where the file comes back the hub goes on.

// isHere tells whether the database that the hub has open is the one under its name.
func (s *Store) isHere() bool {
	if s.ahead == nil {
		return true
	}
	is, err := s.ahead.Stat()
	if err != nil {
		return true // who writes into it says what there is to say
	}
	named, err := os.Stat(s.file)
	if err != nil {
		return !os.IsNotExist(err)
	}
	return os.SameFile(is, named)
}

// inPlace is nil if the database is where the next start looks for it.
func (s *Store) inPlace(ctx context.Context) error {
	if s.isHere() {
		if s.displaced {
			s.log.Info("the database is back in its place", "file", s.file)
		}
		s.displaced = false
		return nil
	}
	if !s.displaced {
		s.displaced = true
		file := filepath.Join(s.dir, "backups", s.now().UTC().Format(backupForm))
		err := s.backup(file, func(part string) error {
			_, err := s.conn.ExecContext(ctx, vacuumInto, part)
			return err
		})
		if err != nil {
			s.log.Error("THE DATABASE WAS MOVED OR REMOVED while the hub runs, and cannot be backed up either: put it back "+
				"before the hub ends", "file", s.file, "err", err)
		} else {
			s.log.Error("THE DATABASE WAS MOVED OR REMOVED while the hub runs: nothing is remembered until it is back. The "+
				"next start begins with the backup of this moment", "file", s.file, "backup", file)
		}
	}
	return fmt.Errorf("%w: %s was moved or removed while the hub runs: put it back, or start the hub again, which goes "+
		"on from the newest backup", ErrUnavailable, s.file)
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
