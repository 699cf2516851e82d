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

// How long a transaction waits for another writer, in milliseconds: the first time, and again while
// the same writer goes on.
const busyWait, busyHeld = "5000", "100"

// dsn returns the data source name of a connection: durable commits, foreign keys, a bounded log.
// SQLite must not create the file, because an empty file in the place of a moved database would
// invalidate the log.
func dsn(file string, pragmas ...string) string {
	all := []string{
		"busy_timeout(" + busyWait + ")", "synchronous(FULL)", "foreign_keys(1)", "journal_size_limit(8388608)",
		"trusted_schema(0)",
	}
	q := url.Values{"mode": {"rw"}, "_txlock": {"immediate"}, "_pragma": append(all, pragmas...)}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// ownPragmas returns the pragmas that only the hub sets: write-ahead logging and, while the
// database is empty, incremental vacuum. Both write, and if two processes set them at once, SQLite
// refuses one.
func (s *Store) ownPragmas() (pragmas []string) {
	if s.shared {
		return nil
	}
	if info, err := os.Stat(s.file); err != nil || info.Size() == 0 {
		pragmas = append(pragmas, "auto_vacuum(2)")
	}
	return append(pragmas, "journal_mode(WAL)")
}

// connect opens the writer's connection and the readers' pool. It creates the file first with mode
// 0600, which SQLite copies to the log and the index.
func (s *Store) connect(ctx context.Context) error {
	flags := os.O_CREATE | os.O_RDWR | unix.O_NOFOLLOW
	if s.shared {
		flags &^= os.O_CREATE
	}
	f, err := os.OpenFile(s.file, flags, 0o600)
	if err != nil {
		return fmt.Errorf("%w; %s", err, openAdvice(err))
	}
	if err := s.giveToOwner(f); err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", s.file, err), f.Close())
	}
	if s.lock != nil {
		s.openFile = &dirLock{f}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("%w: another flotilla-hub has this database open, although hub.lock was removed; stop that hub, "+
				"or give this one another --data-dir", ErrLocked)
		}
		s.readAhead.Go(func() { readThrough(f) })
	} else if err := f.Close(); err != nil {
		return err
	}
	if s.db, err = sql.Open("sqlite", dsn(s.file, s.ownPragmas()...)); err != nil {
		return err
	}
	s.db.SetMaxOpenConns(1)
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	s.conn, s.otherWriter = &conn{c, false}, false
	read, err := sql.Open("sqlite", dsn(s.file, "query_only(1)"))
	if err != nil {
		return err
	}
	s.read = &pool{read, false}
	s.read.SetMaxOpenConns(readers)
	s.kinds = map[string]*kindTable{}
	return nil
}

// readThrough reads the database file sequentially into the page cache, unless it is larger than a
// quarter of the memory. A cold start reads objects in random order, which takes a disk several
// times as long.
func readThrough(f *os.File) {
	defer panics.Catch("read ahead")
	var machine unix.Sysinfo_t
	info, err := f.Stat()
	if err != nil || unix.Sysinfo(&machine) != nil ||
		uint64(info.Size()) > uint64(machine.Totalram)*uint64(machine.Unit)/4 {
		return
	}
	for b := make([]byte, 256<<10); err == nil; {
		_, err = f.Read(b) // the reader of the object reports the error
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
		errs = append(errs, s.db.Close()) // closed last, because it checkpoints the log
	}
	if s.openFile != nil { // closed last, because that drops SQLite's locks
		errs = append(errs, s.openFile.Close())
		s.readAhead.Wait()
	}
	s.conn, s.read, s.db, s.kinds, s.openFile = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// Each statement is written once, with ? for arguments. The code below rewrites it for PostgreSQL.
// Other differences are in files that are named for one of the databases.

// A conn is the writer's connection, or a reader's.
type conn struct {
	*sql.Conn
	postgres bool
}

// A pool holds the readers' connections.
type pool struct {
	*sql.DB
	postgres bool
}

func (c *conn) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	query, args = inDialect(c.postgres, query, args)
	return c.Conn.ExecContext(ctx, query, args...)
}

func (c *conn) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	query, args = inDialect(c.postgres, query, args)
	return c.Conn.QueryContext(ctx, query, args...)
}

func (c *conn) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	query, args = inDialect(c.postgres, query, args)
	return c.Conn.QueryRowContext(ctx, query, args...)
}

func (p *pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	query, args = inDialect(p.postgres, query, args)
	return p.DB.QueryContext(ctx, query, args...)
}

func (p *pool) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	query, args = inDialect(p.postgres, query, args)
	return p.DB.QueryRowContext(ctx, query, args...)
}

func (p *pool) conn(ctx context.Context) (*conn, error) {
	c, err := p.DB.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{c, p.postgres}, nil
}

// inDialect rewrites a statement for its database. No literal in a statement contains a question
// mark.
func inDialect(postgres bool, query string, args []any) (string, []any) {
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

// storable returns text that PostgreSQL accepts: UTF-8 without NUL. Stored objects are valid
// before, but names in queries may have any bytes.
func storable(text string) string {
	const instead = "\uFFFD"
	return strings.ReplaceAll(strings.ToValidUTF8(text, instead), "\x00", instead)
}

// number returns a bool as both databases store it.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// When a running hub's database is moved or removed, SQLite goes on writing to the open file. Its
// data would be lost at the end of the process, because the next process opens the file by name. So
// the store stops writing and makes a backup, which the next start uses. If the file comes back,
// the store writes again.

// fileInPlace reports whether the file name still leads to the open database.
func (s *Store) fileInPlace() bool {
	if s.openFile == nil {
		return true
	}
	is, err := s.openFile.Stat()
	if err != nil {
		return true // the next write reports the error
	}
	named, err := os.Stat(s.file)
	if err != nil {
		return !os.IsNotExist(err)
	}
	return os.SameFile(is, named)
}

// checkInPlace returns an error unless the next start would find the database.
func (s *Store) checkInPlace(ctx context.Context) error {
	if s.fileInPlace() {
		if s.fileMoved {
			s.log.Info("the database file is back", "file", s.file)
		}
		s.fileMoved = false
		return nil
	}
	if !s.fileMoved {
		s.fileMoved = true
		file := filepath.Join(s.dir, "backups", s.now().UTC().Format(backupForm))
		err := s.backup(file, func(part string) error {
			_, err := s.conn.ExecContext(ctx, vacuumInto, part)
			return err
		})
		if err != nil {
			s.log.Error("THE DATABASE WAS MOVED OR REMOVED while the hub runs, and cannot be backed up: put it back before "+
				"the hub stops", "file", s.file, "err", err)
		} else {
			s.log.Error("THE DATABASE WAS MOVED OR REMOVED while the hub runs: changes are refused until it is back. The "+
				"next start uses the backup that was made now", "file", s.file, "backup", file)
		}
	}
	return fmt.Errorf("%w: %s was moved or removed while the hub runs: put it back, or restart the hub to continue with "+
		"the newest backup", ErrUnavailable, s.file)
}

// connectPostgres opens the pool of the writer's single connection and the readers' pool.
func (s *Store) connectPostgres() {
	s.db = stdlib.OpenDB(*s.pg.config)
	s.db.SetMaxOpenConns(1)
	s.read = &pool{stdlib.OpenDB(*s.pg.config), true}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	s.kinds = map[string]*kindTable{}
}

// raw calls do with the pgx connection below the database/sql connection.
func (c *conn) raw(do func(*pgx.Conn) error) error {
	return c.Raw(func(d any) error { return do(d.(*stdlib.Conn).Conn()) })
}

// reconnect opens the writer's connection. A leader then takes the advisory lock, and compares the
// database with what it last wrote.
func (s *Store) reconnect(ctx context.Context) (err error) {
	p := s.pg
	if now := time.Now(); now.Before(p.retryAt) {
		return p.lastErr
	}
	defer func() {
		if err != nil {
			s.dropConn()
			err = p.explain(err)
			p.retryAt, p.lastErr = time.Now().Add(retryEvery), err
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

// session returns the server process behind the writer's connection. It refuses a pooler that
// shares connections between transactions, because other clients would get the settings and the
// advisory lock.
func (s *Store) session(ctx context.Context) (pid int32, err error) {
	pid, direct, err := serverProcess(ctx, s.conn, "")
	if err != nil || direct {
		return pid, err
	}
	other, err := s.read.conn(ctx)
	if err != nil {
		return 0, err
	}
	defer other.Close()
	switch _, _, err := serverProcess(ctx, other, "BEGIN"); { // a transaction pooler returns our server process
	case sqlState(err) == stateProtocol: // a statement pooler refuses BEGIN
		return 0, errPooler(s.pg.where)
	case err != nil:
		return 0, err
	}
	now, _, err := serverProcess(ctx, s.conn, "")
	_, _, rerr := serverProcess(ctx, other, "ROLLBACK")
	if err == nil && now != pid {
		err = errPooler(s.pg.where)
	}
	return pid, errors.Join(err, rerr)
}

// serverProcess runs a statement, if any, and returns the server process that ran it. direct
// reports whether that process also accepted the connection, which proves that no pooler is
// between. It prepares no statement, because a pooler may not support that.
func serverProcess(ctx context.Context, c *conn, statement string) (pid int32, direct bool, err error) {
	err = c.raw(func(c *pgx.Conn) error {
		if statement != "" {
			if _, err := c.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
				return err
			}
		}
		r, err := c.PgConn().Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
		if err != nil {
			return err
		}
		if len(r) != 1 || len(r[0].Rows) != 1 {
			return errors.New("the server does not return its process ID")
		}
		n, err := strconv.ParseInt(string(r[0].Rows[0][0]), 10, 32)
		pid, direct = int32(n), uint32(n) == c.PgConn().PID()
		return err
	})
	return pid, direct, err
}

func (s *Store) dropConn() {
	if s.conn != nil {
		_ = s.conn.raw(func(c *pgx.Conn) error { // close without a Terminate message, because the server may not answer
			_ = c.PgConn().Conn().Close()
			return nil
		})
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn }) // removes the connection from the pool
		_ = s.conn.Close()
		s.conn = nil
	}
}
