// Package store keeps the hub's state through power cuts, in one SQLite database in its data
// directory, or in PostgreSQL.
//
// What Commit or another writing method has acknowledged is on the disk. The package knows rows,
// not rules: it decides nothing, and never sees a lease. It also holds the data directory's lock,
// the backups, the audit and the key that seals secrets. Packages control and access write through
// it, and package snapshot decodes its rows. Only this package imports database/sql.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
)

// Sentinel errors, by what the caller has to do.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")
	ErrLocked   = errors.New("data directory in use") // another hub uses it
	ErrNewer    = errors.New("database of a newer version")
	ErrKey      = errors.New("secrets key unusable")
	// ErrFull: new objects are refused until space is freed; changes and deletions still work.
	ErrFull = errors.New("disk full")
	// ErrUnavailable: the server does not answer, or refuses writes for now. Retry, because
	// probably nothing was written.
	ErrUnavailable = errors.New("database unavailable")
)

// Options configure a store.
type Options struct {
	Dir string // the hub's data directory
	// Database is the address of a database outside of Dir: postgres://…, or a file that contains
	// the address. "": the address noted in the data directory, see place.
	Database string
	Version  string       // version of this program, for messages
	Log      *slog.Logger // nil: slog.Default()
	// AuditKept is how long audit records are kept; 0: 90 days.
	AuditKept time.Duration
	By        string // user who restores, for the audit; "": the hub
	// Member describes this leader as one of several hubs; nil: a single hub.
	Member *Member

	// Reads is called by Open to read from the store while Open checks it. Its result is valid if
	// Open returns that store. Open calls Reads again if it replaces the database, and never if the
	// check takes no time.
	Reads func(ctx context.Context, s *Store)

	restoring bool     // an empty database is allowed
	moving    bool     // a damaged database is not replaced
	timeouts  timeouts // zero: defaultTimeouts
}

// A Store is an open database. Its methods are safe for concurrent use.
type Store struct {
	// Now returns the hub's time, for the names and ages of backups; nil: the system's time. The
	// caller sets it after it has read the fleet, and before it starts anything.
	Now func() time.Time

	dir    string
	file   string // the database file
	log    *slog.Logger
	lock   *dirLock // nil: a running hub holds it
	shared bool     // opened by a command
	used   *dirLock // a command's lock on the directory
	db     *sql.DB  // the writer's single connection
	read   *pool
	pg     *postgres // nil: SQLite

	// The hub's open database file. Its lock keeps other hubs out even if hub.lock is removed.
	openFile    *dirLock
	fileMoved   bool // the file was moved or removed; guarded by mu
	otherWriter bool // another writer blocked the last transaction; guarded by mu
	readAhead   sync.WaitGroup

	audits                auditor
	auditKept             time.Duration
	auditRows, auditBytes int64

	highWater highWater // unset in a shared store

	full     atomic.Bool // new objects are refused; changed under mu
	probedAt time.Time   // last probe for free space on a server

	written time.Time // last write before this store opened the database

	mu          sync.Mutex // guards the fields below: one writer at a time
	conn        *conn
	kinds       map[string]*kindTable
	rev         uint64
	seal        *sealer
	timeWritten time.Time // the newest metaTime

	transactions uint64 // number of transactions in the database

	closing bool // write all folded audit records now
}

const database = "hub.db"

// Open opens the hub's store, and creates it if needed. It takes the lock of the data directory
// (ErrLocked: another hub holds it) and checks the database. It replaces a corrupt database by the
// newest backup, and migrates one of an older version. It refuses one of a newer version with
// ErrNewer.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w; make the directory above it writable or choose another with "+
			"--data-dir", err)
	}
	if err := checkDirectory(o, newStore(o, "").log); err != nil {
		return nil, err
	}
	instead := anotherHub
	if o.moving {
		instead = adviceCommand
	}
	lock, err := takeLock(o.Dir, instead)
	if err != nil {
		return nil, err
	}
	s := newStore(o, filepath.Join(o.Dir, database))
	s.lock = lock
	s.removeLeftovers()
	url, err := place(o)
	if err == nil && url != "" {
		s.pg, err = parsePostgres(url, o.timeouts, s.log)
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

func newStore(o Options, file string) *Store {
	s := &Store{
		dir: o.Dir, file: file, log: logger(o.Log), auditKept: o.AuditKept, auditRows: maxAuditRows,
		auditBytes: maxAuditBytes,
	}
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

// Close checkpoints the log into the database and releases the lock.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.isOpen() && s.audits.stop() {
		s.closing = true
		err = s.txLocked(context.Background(), func(context.Context, *conn) error { return nil })
	}
	if s.isOpen() && s.Leads() && s.pg.token != 0 && s.pg.stopped == nil {
		err = errors.Join(err, s.leave(context.Background()))
	}
	err = errors.Join(err, s.disconnect(), s.highWater.close())
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
		s.lock = nil
	}
	if s.used != nil {
		err = errors.Join(err, s.used.Close())
		s.used = nil
	}
	return err
}

// tx runs fn in one transaction of the writer's connection. After its begin the transaction ignores
// ctx, because a shutdown must not undo half of a decision.
func (s *Store) tx(ctx context.Context, fn func(ctx context.Context, c *conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	err := s.txLocked(ctx, fn)
	if errors.Is(err, ErrFull) && s.lock != nil && s.giveUpBallast() { // users and tokens may use it
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
	if err := s.checkInPlace(ctx); err != nil {
		return err
	}
	if err := s.beginWriting(ctx); err != nil {
		return s.explain(err)
	}
	err := fn(ctx, s.conn)
	var audits []*queued
	if err == nil {
		audits, err = s.writeAudits(ctx, s.conn)
	}
	var writes uint64
	if err == nil {
		err = s.conn.QueryRowContext(ctx, "INSERT INTO meta (key, value) VALUES (?, '1') ON CONFLICT (key) DO UPDATE SET "+
			"value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) RETURNING CAST(value AS INTEGER)", metaWrites).Scan(&writes)
	}
	if err == nil {
		_, err = s.conn.ExecContext(ctx, "COMMIT")
	}
	if err == nil && len(audits) > 0 {
		s.audits.written(audits, true, time.Now())
	}
	if err != nil {
		// A full disk has already rolled the transaction back; then this error is harmless.
		_, _ = s.conn.ExecContext(ctx, "ROLLBACK")
		return s.explain(err)
	}
	s.committed(writes)
	return nil
}

// beginWriting begins an SQLite transaction. It waits long for another writer only once: if that
// writer goes on, each queued transaction would wait as long, and so would the control loop.
func (s *Store) beginWriting(ctx context.Context) error {
	_, err := s.conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	var e *sqlite.Error
	held := errors.As(err, &e) && e.Code()&0xff == sqliteBusy
	if s.shared || held == s.otherWriter {
		return err
	}
	wait := busyWait
	if held {
		wait = busyHeld
	}
	if _, werr := s.conn.ExecContext(ctx, "PRAGMA busy_timeout("+wait+")"); werr == nil {
		s.otherWriter = held
	}
	return err
}

// exec runs one writing statement in its own transaction and returns the number of affected rows.
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

// Keys of the meta table for the store itself.
const (
	metaRevision  = "revision"
	metaWrites    = "writes" // number of transactions, including commands
	metaHubID     = "hub-id"
	metaKeyID     = "secrets-key-id"
	metaVersion   = "program-version"
	metaSchema    = "schema" // PostgreSQL only; SQLite has user_version
	metaRecovered = "recovered"
)

// MetaURL is the key of the hub's URL. MetaURLs is the key of the URLs of all hubs of the database,
// separated by commas, this hub's first.
const (
	MetaURL  = "https-url"
	MetaURLs = "https-urls"
)

// Meta returns a value that SetMeta stored, or ErrNotFound.
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

// TakeMeta returns and deletes a value in one step, so that only one of two callers gets it.
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

// HubID returns the hub's random identity. It is created with the database, and is in every backup.
func (s *Store) HubID(ctx context.Context) (string, error) { return s.Meta(ctx, metaHubID) }

// Revision returns the newest committed revision. It never decreases, not even after a restore.
func (s *Store) Revision(ctx context.Context) (uint64, error) {
	v, err := s.Meta(ctx, metaRevision)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(v, 10, 64)
}

// stamp and moment convert a time to and from its text in a row; the zero time is "".
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
