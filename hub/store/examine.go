package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/jackc/pgx/v5/stdlib"
)

// An Examination reads the database of a hub that runs, is stopped or was killed. It changes
// nothing, repairs nothing, and decrypts no secret.
type Examination struct {
	Running bool // a hub holds the lock of the directory
	Bytes   int64
	Schema  int // number of the database's schema
	Newest  int // newest schema that this program knows
	Version string
	// Damage is the output of SQLite's quick_check, or "" for "ok".
	Damage  string
	Changed time.Time // last change of the database or its log
	Paused  *Recovery // a recovery that is not yet resumed
	Key     error     // why the hub could not decrypt secrets; fs.ErrNotExist: the key file is missing
	URL     string    // the hub's last MetaURL
	Server  string    // PostgreSQL's address without password; "": SQLite
	Release string    // PostgreSQL's version
	Unsafe  []string  // PostgreSQL's settings that lose commits at a power cut

	// Refused is why a hub would not start with this database although SQLite finds no damage.
	Refused error

	Exposed string // what an attacker on the network could do; "": nothing

	db   *sql.DB
	copy string // copy of the files of a killed hub; "": the files are read in place
}

// Examine opens the database of a hub for reading. ErrNotFound: there is no database.
func Examine(ctx context.Context, o Options) (e *Examination, err error) {
	dir := o.Dir
	if url, err := place(o); err != nil {
		return &Examination{Running: running(dir), Newest: latest()}, err
	} else if url != "" {
		return examinePostgres(ctx, o, url)
	}
	file := filepath.Join(dir, database)
	e = &Examination{Running: running(dir), Newest: latest()}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) && lastInPostgres(dir) {
		e.Refused = errPlaceLost(dir)
		return e, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return e, fmt.Errorf("%s: %w", file, ErrNotFound)
	}
	if err != nil {
		return e, err
	}
	e.Bytes, e.Changed = info.Size(), info.ModTime()
	log, err := os.Stat(file + "-wal")
	if err == nil && log.ModTime().After(e.Changed) {
		e.Changed = log.ModTime()
	}
	q := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(5000)", "query_only(1)", "trusted_schema(0)"}}
	switch {
	case e.Running: // the log and its index exist, because the hub runs
	case err == nil && log.Size() > 0: // opening the log of a killed hub would checkpoint it
		if e.copy, err = os.MkdirTemp("", "flotilla-examine-"); err != nil {
			return e, err
		}
		for _, end := range []string{"", "-wal"} {
			if err := copyFile(file+end, filepath.Join(e.copy, database+end)); err != nil {
				return e, fmt.Errorf("copy %s, which a killed hub left: %w; free space in %s or set TMPDIR", file+end, err,
					os.TempDir())
			}
		}
		file = filepath.Join(e.copy, database)
		q.Set("mode", "rw")
	default:
		q.Set("immutable", "1")
	}
	if e.db, err = sql.Open("sqlite", (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath(),
		RawQuery: q.Encode()}).String()); err != nil {
		return e, err
	}
	if err := e.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&e.Schema); err != nil {
		e.Damage = err.Error()
		return e, nil
	}
	if err := e.db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&e.Damage); err != nil {
		e.Damage = err.Error()
	}
	if e.Damage == "ok" {
		e.Damage = ""
	}
	for key, into := range map[string]*string{metaVersion: &e.Version, MetaURL: &e.URL} {
		// Of a damaged database, values may be missing.
		_ = e.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", key).Scan(into)
	}
	var paused string
	if e.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", metaRecovered).Scan(&paused) == nil {
		e.Paused = new(Recovery)
		_ = json.Unmarshal([]byte(paused), e.Paused)
	}
	if e.Damage == "" {
		e.lookAtKey(ctx, &Store{dir: dir, file: file, read: &pool{e.db, false}})
	}
	if e.Damage == "" && e.Schema == e.Newest {
		e.Refused = unreadable(ctx, e.db)
	}
	return e, nil
}

// unreadable returns an error for a row that a start could not decode. SQLite checks pages, not the
// content of rows.
func unreadable(ctx context.Context, q querier) error {
	if _, err := progressOf(ctx, q); err != nil {
		return err
	}
	kinds, _ := listKinds(ctx, q) // the damage was reported before
	for _, kind := range kinds {
		if sealedKind(kind) { // only the hub can decrypt these rows
			continue
		}
		var namespace, name string
		damaged := "NOT json_valid(object)"
		if protoKind(kind) { // older rows are JSON
			damaged = "substr(object, 1, 4) <> x'6B387300' AND NOT json_valid(CAST(object AS TEXT))"
		}
		if q.QueryRowContext(ctx, forKind("SELECT namespace, name FROM {kind} WHERE "+damaged+" LIMIT 1",
			kind)).Scan(&namespace, &name) == nil {
			return fmt.Errorf("decode %s %s/%s: it is damaged; restore a backup, or delete the row", kind, namespace, name)
		}
	}
	return nil
}

func (e *Examination) lookAtKey(ctx context.Context, s *Store) {
	if _, _, err := s.keyOf(ctx); errors.Is(err, ErrKey) { // other errors come from the database
		e.Key = err
	}
}

// Each calls fn for the stored objects of a kind, as Load does. It skips sealed kinds.
func (e *Examination) Each(ctx context.Context, kind string, fn func(Row) error) error {
	if sealedKind(kind) || e.db == nil {
		return nil
	}
	c, err := e.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	kinds, err := listKinds(ctx, c)
	if err != nil {
		return err
	}
	for _, have := range kinds {
		if have == kind {
			return (&Store{}).loadKind(ctx, &conn{c, e.Server != ""}, kind, fn)
		}
	}
	return nil
}

// Close releases the database.
func (e *Examination) Close() {
	if e.db != nil {
		_ = e.db.Close()
	}
	if e.copy != "" {
		_ = os.RemoveAll(e.copy)
	}
}

// running reports whether a hub holds the lock of a data directory.
func running(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "hub.lock"), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close() // Close also releases a lock that running has taken
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// NewestBackup returns when the newest backup of a data directory was made; zero: never. It ignores
// times in the future, because the age of such a backup is unknown.
func NewestBackup(dir string, now time.Time) (time.Time, error) {
	files, err := backups(dir)
	for _, file := range files {
		if at, err := time.Parse(backupForm, filepath.Base(file)); err == nil && !at.After(now) {
			return at, nil
		}
	}
	return time.Time{}, err
}

// examinePostgres reads a PostgreSQL database in one snapshot. It waits for no lock.
func examinePostgres(ctx context.Context, o Options, url string) (e *Examination, err error) {
	e = &Examination{Running: running(o.Dir), Newest: latest()}
	p, err := parsePostgres(url, o.timeouts, logger(o.Log))
	if err != nil {
		return e, err
	}
	e.Server, e.Exposed = p.where, networkRisk(p.config)
	defer func() { err = explainPostgres(err, p.where) }()
	q := &pool{stdlib.OpenDB(*p.config), true}
	q.SetMaxOpenConns(2)
	e.db = q.DB
	var fsync, pages string
	if err := q.QueryRowContext(ctx, "SELECT current_setting('server_version'), current_setting('fsync'), "+
		"current_setting('full_page_writes'), pg_database_size(current_database())").Scan(&e.Release, &fsync, &pages,
		&e.Bytes); err != nil {
		return e, err
	}
	for name, is := range map[string]string{"fsync": fsync, "full_page_writes": pages} {
		if is != "on" {
			e.Unsafe = append(e.Unsafe, name+" is "+is)
		}
	}
	slices.Sort(e.Unsafe)
	c, err := q.conn(ctx)
	if err != nil {
		return e, err
	}
	defer c.Close()
	s := &Store{conn: c, pg: p, log: p.log}
	if e.Schema, err = s.postgresSchema(ctx, o); err != nil {
		return e, err
	}
	if e.Schema == 0 {
		return e, fmt.Errorf("%s: %w", p.where, ErrNotFound)
	}
	var written, paused string
	if err := c.QueryRowContext(ctx, "SELECT written FROM leader").Scan(&written); err != nil {
		return e, err
	}
	e.Changed = moment(written)
	for key, into := range map[string]*string{metaVersion: &e.Version, MetaURL: &e.URL, metaRecovered: &paused} {
		if *into, err = valueOf(ctx, c, key); err != nil {
			return e, err
		}
	}
	if paused != "" {
		e.Paused = new(Recovery)
		_ = json.Unmarshal([]byte(paused), e.Paused)
	}
	s.dir, s.read = o.Dir, q
	e.lookAtKey(ctx, s)
	return e, nil
}
