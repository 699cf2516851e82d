// Package store is what survives a power cut: one SQLite database in the hub's
// data directory, with its lock, its backups and the key that seals secrets.
//
// What Commit or any other writing method has acknowledged is on the disk
// (write-ahead log, synchronous=FULL): neither kill -9 nor a power cut takes it
// back. The package knows rows, not rules: objects are opaque JSON with the few
// columns that people query, and what a token or a session means is package
// access's work. It decides nothing, and it never sees a lease. It is the only
// importer of database/sql; package control and package access write through it.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"flotilla.dev/hub/panics"
)

// Sentinels, by what the caller has to do about them.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	ErrLocked   = errors.New("data directory in use") // another hub runs there
	ErrNewer    = errors.New("database of a newer version")
	ErrKey      = errors.New("secrets key unusable")
	// ErrFull: nothing new can be remembered until space is made; deletes and
	// changes of what exists still work.
	ErrFull = errors.New("disk full")
	// ErrUnavailable: the database's server is away, or takes nothing for now. Nothing was
	// done, as far as anybody knows; try again.
	ErrUnavailable = errors.New("database unavailable")
)

// Options say where a store lives.
type Options struct {
	Dir string // the hub's data directory
	// Database is where the database is, if not in Dir: postgres://…, or a file whose first
	// line says so; "": what the data directory says, see place.
	Database string
	Version  string       // this program's version, for messages between versions
	Log      *slog.Logger // nil: slog.Default()
	// AuditKept is how long records of the audit are kept; 0: 90 days.
	AuditKept time.Duration
	By        string // who restores, for the audit; "": the hub itself
	// Member is this hub as one of several, which has taken the lead; nil: it is alone.
	Member *Member

	// Reads is called by Open with the store that it opens, to read in it while that is being
	// checked. What it has read counts once Open has returned that store; it is called again
	// where the database was replaced, and not at all where the check needs no time.
	Reads func(ctx context.Context, s *Store)

	restoring bool  // an empty database is no mistake
	waits     waits // zero: as a hub waits
}

// A Store is an open database. Its methods may be called from any goroutine.
type Store struct {
	// Now is the hub's time, by which backups are named and kept; nil: the machine's. It
	// is known once the fleet has been read, and set before anything runs.
	Now func() time.Time

	dir    string
	file   string // the database
	log    *slog.Logger
	lock   *dirLock    // nil: shared with a running hub
	shared bool        // it is a command's
	opened fs.FileInfo // the file of a shared one, as it was then
	db     *sql.DB     // one connection, the writer
	read   *pool
	pg     *postgres // nil: the database is SQLite's

	ahead     *os.File // the database's file, where a hub reads it ahead
	readAhead sync.WaitGroup

	audits                auditor
	auditKept             time.Duration
	auditRows, auditBytes int64

	witness witness // of the revision; nothing where this store is shared

	full atomic.Bool // nothing new is remembered; changed under mu

	written time.Time // when the database was last written before this store opened it

	mu    sync.Mutex // guards everything below: one writer at a time
	conn  *conn
	kinds map[string]*kindTable
	rev   uint64
	seal  *sealer
	told  time.Time // the newest metaTime

	transactions uint64 // how many transactions the database has had

	closing bool // what is still being folded in the audit is written now
}

const database = "hub.db"

// Open opens the hub's own store and creates it where there is none. It takes
// the lock of the data directory (ErrLocked when another hub holds it), checks
// the database, replaces a corrupt one by its newest backup, and migrates an
// older one. A database of a newer version is refused with ErrNewer.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w; make the directory above it writable or choose another with --data-dir", err)
	}
	if err := private(o.Dir, newStore(o, "").log); err != nil {
		return nil, err
	}
	lock, err := takeLock(o.Dir)
	if err != nil {
		return nil, err
	}
	s := newStore(o, filepath.Join(o.Dir, database))
	s.lock = lock
	url, err := place(o)
	if err == nil && url != "" {
		s.pg, err = parsePostgres(url, o.waits, s.log)
	}
	if err == nil && o.Member != nil {
		err = s.join(o.Member)
	}
	if err == nil {
		err = s.open(ctx, o)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// OpenShared opens the store of a data directory for a command that works while
// the hub runs: it takes no lock, migrates nothing and repairs nothing. Commit
// is refused: objects have one writer, the hub.
func OpenShared(ctx context.Context, o Options) (*Store, error) {
	file := filepath.Join(o.Dir, database)
	url, err := place(o)
	if err != nil {
		return nil, err
	}
	is, err := os.Stat(file)
	if url != "" { // it is elsewhere
	} else if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open %s: %w: no hub has run here yet; start `flotilla-hub serve --data-dir %s` once, or name its directory with --data-dir", file, ErrNotFound, o.Dir)
	} else if err != nil {
		return nil, fmt.Errorf("open %s: %w; run this as the user of the hub", file, err)
	}
	s := newStore(o, file)
	s.shared, s.opened = true, is
	if url != "" {
		return s.sharePostgres(ctx, o, url)
	}
	if err := s.notNewer(ctx, o); err != nil {
		return nil, err
	}
	if err := s.connect(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("open %s: %w", file, err)
	}
	have, err := s.schema(ctx)
	switch {
	case err != nil:
	case have > latest(): // since a moment ago
		err = fmt.Errorf("open %s: %w", file, ErrNewer)
	case have < latest():
		err = fmt.Errorf("open %s: it has schema %d and this program works with %d: start the new `flotilla-hub serve` once, it migrates the database", file, have, latest())
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func newStore(o Options, file string) *Store {
	s := &Store{dir: o.Dir, file: file, log: logger(o.Log), auditKept: o.AuditKept, auditRows: maxAuditRows, auditBytes: maxAuditBytes}
	if s.auditKept <= 0 {
		s.auditKept = AuditKept
	}
	return s
}

func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.Default()
	}
	return l
}

// dsn says how every connection is made: durable commits, enforced references, and a bounded log.
// That space which deletes free goes back to the disk is said to a database once, while it is
// empty: SQLite writes for it each time, for which a command that only reads would have to wait.
func dsn(file string, pragmas ...string) string {
	all := []string{"busy_timeout(5000)"}
	if info, err := os.Stat(file); err != nil || info.Size() == 0 {
		all = append(all, "auto_vacuum(2)")
	}
	all = append(all, "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)", "journal_size_limit(8388608)", "trusted_schema(0)")
	q := url.Values{"_txlock": {"immediate"}, "_pragma": append(all, pragmas...)}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// connect makes the writer's connection and the readers' pool. SQLite gives its
// log and index the mode of the database file, so that is created first, 0600.
func (s *Store) connect(ctx context.Context) error {
	f, err := os.OpenFile(s.file, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if s.lock != nil {
		s.ahead = f
		s.readAhead.Go(func() { readThrough(f) })
	} else if err := f.Close(); err != nil {
		return err
	}
	if s.db, err = sql.Open("sqlite", dsn(s.file)); err != nil {
		return err
	}
	s.db.SetMaxOpenConns(1)
	c, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	s.conn = &conn{c, false}
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
	if err != nil || unix.Sysinfo(&machine) != nil || uint64(info.Size()) > uint64(machine.Totalram)*uint64(machine.Unit)/4 {
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

// Close folds the log into the database and gives the lock back.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.isOpen() && s.audits.stop() {
		s.closing = true
		err = s.txLocked(context.Background(), func(context.Context, *conn) error { return nil })
	}
	if s.isOpen() && s.Leads() && s.pg.token != 0 && s.pg.over == nil {
		err = errors.Join(err, s.leave(context.Background()))
	}
	err = errors.Join(err, s.disconnect(), s.witness.close())
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
		s.lock = nil
	}
	return err
}

// tx runs fn in one transaction of the writer's connection. Once begun it is
// not interrupted by ctx: half of a shutdown must not undo a decision.
func (s *Store) tx(ctx context.Context, fn func(ctx context.Context, c *conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	err := s.txLocked(ctx, fn)
	if errors.Is(err, ErrFull) && s.lock != nil && s.giveUpBallast() { // people and tokens are few: they may have it
		s.full.Store(true)
		err = s.txLocked(ctx, fn)
	}
	return err
}

func (s *Store) isOpen() bool { return s.db != nil }

func (s *Store) txLocked(ctx context.Context, fn func(ctx context.Context, c *conn) error) error {
	if !s.isOpen() {
		return errors.New("store is closed")
	}
	if s.pg != nil {
		return s.transact(ctx, fn)
	}
	if _, err := s.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return s.explain(err)
	}
	err := s.stays(ctx)
	if err == nil {
		err = fn(ctx, s.conn)
	}
	var audits []*queued
	if err == nil {
		audits, err = s.writeAudits(ctx, s.conn)
	}
	var writes uint64
	if err == nil {
		err = s.conn.QueryRowContext(ctx, "INSERT INTO meta (key, value) VALUES (?, '1') ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) RETURNING CAST(value AS INTEGER)", metaWrites).Scan(&writes)
	}
	if err == nil {
		_, err = s.conn.ExecContext(ctx, "COMMIT")
	}
	if err == nil && len(audits) > 0 {
		s.audits.kept(audits, true, time.Now())
	}
	if err != nil {
		// A full disk has already rolled back by itself; then this one fails, harmlessly.
		_, _ = s.conn.ExecContext(ctx, "ROLLBACK")
		return s.explain(err)
	}
	s.wrote(writes)
	return nil
}

// exec runs one writing statement in a transaction of its own and tells how many rows it touched.
func (s *Store) exec(ctx context.Context, query string, args ...any) (int64, error) {
	var n int64
	err := s.tx(ctx, func(ctx context.Context, c *conn) error {
		r, err := c.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		n, err = r.RowsAffected()
		return err
	})
	return n, err
}

// Keys of the meta table that the store itself keeps.
const (
	metaRevision  = "revision"
	metaWrites    = "writes" // how many transactions there were, of commands too
	metaHubID     = "hub-id"
	metaKeyID     = "secrets-key-id"
	metaVersion   = "program-version"
	metaSchema    = "schema" // in PostgreSQL; SQLite has a number for it
	metaRecovered = "recovered"
)

// MetaURL is the key under which a hub says where its page and API are, and MetaURLs that under which
// it says so of every hub of the database, with commas between them, its own first.
const (
	MetaURL  = "https-url"
	MetaURLs = "https-urls"
)

// Meta returns a value that SetMeta has stored, or ErrNotFound.
func (s *Store) Meta(ctx context.Context, key string) (string, error) {
	var v string
	err := s.row(ctx, []any{&v}, "SELECT value FROM meta WHERE key = ?", key)
	if errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("read %s: %w", key, ErrNotFound)
	}
	return v, err
}

// SetMeta stores a value under a key.
func (s *Store) SetMeta(ctx context.Context, key, value string) error {
	_, err := s.exec(ctx, setMeta, key, value)
	return err
}

// TakeMeta returns a value and forgets it, in one step: of two takers one gets it.
func (s *Store) TakeMeta(ctx context.Context, key string) (string, error) {
	var v string
	err := s.tx(ctx, func(ctx context.Context, c *conn) error {
		return c.QueryRowContext(ctx, "DELETE FROM meta WHERE key = ? RETURNING value", key).Scan(&v)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("take %s: %w", key, ErrNotFound)
	}
	return v, err
}

const setMeta = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"

// HubID is the identity of this hub: random, made with its database, kept by backups.
func (s *Store) HubID(ctx context.Context) (string, error) { return s.Meta(ctx, metaHubID) }

// Revision is the newest revision that was committed. It never goes back, not
// even after a restore.
func (s *Store) Revision(ctx context.Context) (uint64, error) {
	v, err := s.Meta(ctx, metaRevision)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(v, 10, 64)
}

// stamp and moment are how a time stands in a row; the zero time is "".
const layout = "2006-01-02T15:04:05.000Z"

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(layout)
}

func moment(s string) time.Time {
	t, _ := time.Parse(layout, s)
	return t
}
