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

// An Examination is a look at the database of a hub, which may run, be down or have
// been killed. It changes nothing there, repairs nothing, and opens no secret.
type Examination struct {
	Running bool // a hub has the lock of the directory
	Bytes   int64
	Schema  int // of the database
	Newest  int // that this program works with
	Version string
	// Damage is what SQLite's quick_check says, "" when that is "ok".
	Damage  string
	Changed time.Time // the database or its log
	Paused  *Recovery // that nobody has resumed yet
	Key     error     // why the hub could not open its secrets; fs.ErrNotExist: no file has the key
	URL     string    // of the hub, as it last said
	Server  string    // PostgreSQL's, as people see it; "": the database is a file in the directory
	Release string    // of that server
	Unsafe  []string  // its settings by which a power cut loses what was acknowledged

	// Refused is why a hub would not begin with what is there, though SQLite finds nothing wrong with it.
	Refused error

	Exposed string // what others on the way to it could do; "": nothing

	db   *sql.DB
	copy string // of the files that a killed hub left; "": they are read where they are
}

// Examine looks at the database of a hub. ErrNotFound: there is none.
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
	if errors.Is(err, fs.ErrNotExist) && wasInPostgres(dir) {
		e.Refused = placeLost(dir)
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
	case e.Running: // its log and index are there already
	case err == nil && log.Size() > 0: // a killed hub left it: who opens it puts it into the database
		if e.copy, err = os.MkdirTemp("", "flotilla-examine-"); err != nil {
			return e, err
		}
		for _, end := range []string{"", "-wal"} {
			if err := copyFile(file+end, filepath.Join(e.copy, database+end)); err != nil {
				return e, fmt.Errorf("copy %s, which a killed hub left: %w; make room in %s or set TMPDIR", file+end, err,
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
		// of a damaged one, what there is
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

// unreadable is what a start would refuse to read in a database whose pages are whole: SQLite does not look at what
// stands in them.
func unreadable(ctx context.Context, q querier) error {
	if _, err := progressOf(ctx, q); err != nil {
		return err
	}
	kinds, _ := listKinds(ctx, q) // what cannot be read was said before
	for _, kind := range kinds {
		if sealedKind(kind) { // it is authenticated, by a key that is the hub's
			continue
		}
		var namespace, name string
		damaged := "NOT json_valid(object)"
		if protoKind(kind) { // of which some are JSON still
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
	if _, _, err := s.keyOf(ctx); errors.Is(err, ErrKey) { // others are the database's
		e.Key = err
	}
}

// Each hands over the objects of a kind as they are stored, as Load does. Of a kind whose
// rows are sealed it knows nothing.
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

// Close ends the look.
func (e *Examination) Close() {
	if e.db != nil {
		_ = e.db.Close()
	}
	if e.copy != "" {
		_ = os.RemoveAll(e.copy)
	}
}

// running tells whether a hub has the lock of a data directory.
func running(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, "hub.lock"), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close() // and with it the lock, if it was free
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// NewestBackup is when the newest backup of a data directory was made; zero: there is none. One from
// the future, made while the clock was wrong, does not count: nobody knows how old it is.
func NewestBackup(dir string, now time.Time) (time.Time, error) {
	files, err := backups(dir)
	for _, file := range files {
		if at, err := time.Parse(backupForm, filepath.Base(file)); err == nil && !at.After(now) {
			return at, nil
		}
	}
	return time.Time{}, err
}

// examinePostgres looks at a database in PostgreSQL. It is of one moment, and waits for nobody.
func examinePostgres(ctx context.Context, o Options, url string) (e *Examination, err error) {
	e = &Examination{Running: running(o.Dir), Newest: latest()}
	p, err := parsePostgres(url, o.waits, logger(o.Log))
	if err != nil {
		return e, err
	}
	e.Server, e.Exposed = p.where, exposed(p.config)
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
