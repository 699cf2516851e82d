// Package store is what survives a power cut: one SQLite database in the hub's
// data directory, with its lock, its backups and the key that seals secrets.
//
// What Commit or any other writing method has acknowledged is on the disk
// (write-ahead log, synchronous=FULL): neither kill -9 nor a power cut takes it
// back. The package knows rows, not rules: an object is JSON (a Node Kubernetes'
// protobuf) with the few columns that people query, and what a token or a session
// means is package access's work. A Decoder makes objects of rows again. It decides
// nothing, and it never sees a lease. It is the only importer of database/sql;
// package control and package access write through it.
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
	moving    bool  // a damaged one is not replaced
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
	lock   *dirLock // nil: shared with a running hub
	shared bool     // it is a command's
	used   *dirLock // by a command
	db     *sql.DB  // one connection, the writer
	read   *pool
	pg     *postgres // nil: the database is SQLite's

	// the database's file, where a hub reads it ahead: no other hub has it, whatever becomes of hub.lock
	ahead     *dirLock
	displaced bool // somebody has moved or removed it; changed under mu
	held      bool // somebody else is writing to it, and was waited for; changed under mu
	readAhead sync.WaitGroup

	audits                auditor
	auditKept             time.Duration
	auditRows, auditBytes int64

	witness witness // of the revision; nothing where this store is shared

	full   atomic.Bool // nothing new is remembered; changed under mu
	roomAt time.Time   // when a server was asked last whether there is room

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
		return nil, fmt.Errorf("create data directory: %w; make the directory above it writable or choose another with "+
			"--data-dir", err)
	}
	if err := private(o, newStore(o, "").log); err != nil {
		return nil, err
	}
	instead := anotherHub
	if o.moving {
		instead = thisOne
	}
	lock, err := takeLock(o.Dir, instead)
	if err != nil {
		return nil, err
	}
	s := newStore(o, filepath.Join(o.Dir, database))
	s.lock = lock
	s.forgetHalves()
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
	if s.used != nil {
		err = errors.Join(err, s.used.Close())
		s.used = nil
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
	if err := s.inPlace(ctx); err != nil {
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

// beginWriting begins a transaction of SQLite's. Whoever else is writing is waited for, but one who goes on
// by one transaction of the hub's alone: each of those behind it would wait as long, and the control loop with them.
func (s *Store) beginWriting(ctx context.Context) error {
	_, err := s.conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	var e *sqlite.Error
	held := errors.As(err, &e) && e.Code()&0xff == sqliteBusy
	if s.shared || held == s.held {
		return err
	}
	wait := busyWait
	if held {
		wait = busyHeld
	}
	if _, werr := s.conn.ExecContext(ctx, "PRAGMA busy_timeout("+wait+")"); werr == nil {
		s.held = held
	}
	return err
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
