package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/hub/owner"
	"flotilla.dev/shared/fsync"
)

// placeFile says in a data directory where its database is, if it is not there: so that
// commands find it, and a hub that is started without --database does not begin anew.
const placeFile = "database"

// SQLite is what Options.Database is for the file in the data directory.
const SQLite = "sqlite"

// place is the address of the database; "": the file in the data directory.
func place(o Options) (url string, err error) {
	kept, err := firstLine(filepath.Join(o.Dir, placeFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read where the database is: %w; run this as the user of the hub", err)
	}
	if url = o.Database; url == "" {
		url = kept
	}
	// A file that was emptied is not one that is not there: the hub would begin anew beside its
	// database, or with a backup.
	damaged := err == nil && (kept == "" || strings.ContainsFunc(kept, func(r rune) bool { return r < ' ' }))
	if damaged && (o.Database == "" || o.Database == SQLite) {
		return "", fmt.Errorf("read where the database is: %s is damaged: write its address there, as "+
			"postgres://USER@HOST:5432/NAME, or remove it if the database is %s beside it", filepath.Join(o.Dir, placeFile),
			database)
	}
	if url == SQLite && kept != "" {
		return "", fmt.Errorf("the database of %s is not SQLite's hub.db any more: bring it back with `flotilla-hub "+
			"migrate --to sqlite`, or, to give up what is in PostgreSQL, remove %s", o.Dir, filepath.Join(o.Dir, placeFile))
	}
	if url == "" || url == SQLite {
		return "", nil
	}
	if !strings.Contains(url, "://") { // a file, so that no password stands in a command line
		if url, err = firstLine(url); err != nil {
			return "", fmt.Errorf("read where the database is: %w; write --database postgres://USER@HOST:5432/NAME, or the "+
				"path of a file whose first line is that", err)
		}
	}
	if !IsPostgres(url) {
		return "", errors.New("the address of the database is none of PostgreSQL: write postgres://USER@HOST:5432/NAME")
	}
	return url, nil
}

// IsPostgres tells whether a text is an address of PostgreSQL.
func IsPostgres(url string) bool {
	return strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://")
}

func firstLine(file string) (string, error) {
	text, err := os.ReadFile(file)
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(line), err
}

// keepPlace notes where the database is, for the commands.
func keepPlace(o Options) error {
	if o.Database == "" {
		return nil
	}
	at := o.Database
	if !strings.Contains(at, "://") {
		ours, err := o.ours()
		if err == nil && ours {
			at, err = filepath.Abs(at)
		} else if err == nil { // the file is whoever's took the database there, and the hub could not read it
			at, err = firstLine(at)
		}
		if err != nil {
			return fmt.Errorf("note where the database is: %w", err)
		}
	}
	file := filepath.Join(o.Dir, placeFile)
	if have, err := firstLine(file); err == nil && have == at {
		return nil
	}
	err := owner.WriteFile(file, []byte(at+"\n"))
	if err == nil {
		err = fsync.Dir(o.Dir)
	}
	if err != nil {
		return fmt.Errorf("note where the database is: %w", err)
	}
	return nil
}

// openPostgres opens the database as its one writer, and makes it where there is none.
func (s *Store) openPostgres(ctx context.Context, o Options) error {
	s.connectPostgres()
	if err := s.reach(ctx); err != nil {
		return err
	}
	have, err := s.fit(ctx, o)
	if err != nil {
		return s.explain(err)
	}
	if have == 0 && !o.restoring {
		if err := s.notElsewhere(); err != nil {
			return err
		}
	}
	if have > 0 && !o.moving {
		if err := s.notAnothers(ctx); err != nil {
			return s.explain(err)
		}
	}
	saw, is, err := s.progresses(ctx, have)
	if err != nil {
		return s.explain(err)
	}
	if have < latest() {
		if have > 0 {
			s.log.Info("database is migrated", "from", have, "to", latest())
		}
		s.pg.empty = have == 0
		if err := s.migratePostgres(ctx, have, o); err != nil {
			return err
		}
		s.pg.empty = false
	}
	if err := s.lead(ctx); err != nil {
		return s.explain(err)
	}
	if err := s.begin(ctx, o); err != nil {
		return err
	}
	if is.before(saw) && !o.restoring {
		if err := s.outlived(ctx, o, is, saw); err != nil {
			return err
		}
	}
	if !o.restoring { // then it still counts how far the one was that is lost
		if err := s.openWitness(ctx); err != nil {
			s.log.Warn("how far the database is cannot be noted beside it", "err", err)
		}
		s.witness.saw(s.progress())
	}
	if s.seal, err = s.openSealer(ctx); err != nil {
		return err
	}
	begin := s.beginChanges
	if !s.Leads() {
		begin = s.endChanges
	}
	if err := begin(ctx); err != nil {
		return s.explain(err)
	}
	return keepPlace(o)
}

// fit tells whether the server and the database can be worked with, and which schema there is.
func (s *Store) fit(ctx context.Context, o Options) (schema int, err error) {
	var version int
	var release, encoding, fsync, pages string
	if err := s.conn.QueryRowContext(ctx,
		`SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding'),
		current_setting('fsync'), current_setting('full_page_writes')`).Scan(&version, &release, &encoding, &fsync, &pages); err != nil {
		return 0, err
	}
	if version/10000 < oldestServer {
		return 0, fmt.Errorf("open %s: it is PostgreSQL %s, and the hub needs %d or newer: upgrade the server", s.pg.where,
			release, oldestServer)
	}
	if encoding != "UTF8" {
		return 0, fmt.Errorf("open %s: its encoding is %s, and must be UTF8: create it with `createdb --encoding=UTF8 "+
			"--template=template0 NAME`", s.pg.where, encoding)
	}
	if is := exposed(s.pg.config); s.lock != nil && is != "" {
		s.log.Warn(is+": set sslmode=verify-full and sslrootcert in the address", "database", s.pg.where)
	}
	if s.lock != nil && (fsync != "on" || pages != "on") {
		s.log.Error("THE DATABASE LOSES DATA at a power cut: set fsync and full_page_writes to on in postgresql.conf",
			"database", s.pg.where, "fsync", fsync, "full_page_writes", pages)
	}
	return s.postgresSchema(ctx, o)
}

// postgresSchema is the number of the schema; 0: the database is empty.
func (s *Store) postgresSchema(ctx context.Context, o Options) (schema int, err error) {
	var tables, ours int
	var in *string
	if err := s.conn.QueryRowContext(ctx,
		`SELECT current_schema(), count(*), count(*) FILTER (WHERE relname IN ('leader', 'meta', 'kinds'))
		FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) AND relkind IN ('r', 'p', 'v')`).Scan(&in, &tables, &ours); err != nil {
		return 0, err
	}
	switch {
	case in == nil:
		return 0, fmt.Errorf("open %s: there is no schema in its search_path: create one, such as with `CREATE SCHEMA "+
			"public`", s.pg.where)
	case tables == 0:
		return 0, nil
	case ours != 3:
		return 0, fmt.Errorf("open %s: it has %d tables in schema %s that are not of a hub: give the hub a database of "+
			"its own, or a schema, with ?search_path=flotilla at the end of the address", s.pg.where, tables, *in)
	}
	var text string
	if err := s.conn.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", metaSchema).Scan(&text); err != nil {
		return 0, fmt.Errorf("read its schema: %w", err)
	}
	if schema, err = strconv.Atoi(text); err != nil {
		return 0, fmt.Errorf("read its schema: %w", err)
	}
	if schema > latest() {
		by := "an unknown version"
		_ = s.conn.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", metaVersion).Scan(&by)
		return 0, fmt.Errorf("open %s: %w: it was written by flotilla-hub %s (schema %d), and this is %s (up to schema "+
			"%d); install that version again, or restore a copy of the database from before the upgrade",
			s.pg.where, ErrNewer, by, schema, orUnknown(o.Version), latest())
	}
	moved, err := valueOf(ctx, s.conn, metaMoved)
	if err == nil && moved != "" {
		return 0, s.isMoved(ctx, o.Dir, moved)
	}
	return schema, err
}

// notElsewhere refuses to begin an empty database where the hub has one already.
func (s *Store) notElsewhere() error {
	if info, err := os.Stat(s.file); err == nil && info.Size() > 0 {
		return fmt.Errorf("open %s: it is empty, and %s holds what this hub remembers: take it along with `flotilla-hub "+
			"migrate --to postgres://…`, or move that file away to begin anew", s.pg.where, s.file)
	}
	if saw := witnessed(s.dir).rev; saw > 0 {
		return fmt.Errorf("open %s: it is empty, and this hub's database was of revision %d: correct --database, restore "+
			"it, or, to begin anew, remove %s", s.pg.where, saw, filepath.Join(s.dir, witnessFile))
	}
	return nil
}

// notAnothers refuses the database of another hub where this one has a fleet of its own, in the
// directory or in PostgreSQL,
// which nobody would see again: the devices of neither know who leads them.
func (s *Store) notAnothers(ctx context.Context) error {
	own, where, file := s.ownInFile(ctx), s.file+" holds", s.file
	if own == "" {
		own, where, file = witnessedHub(s.dir), "another database of PostgreSQL held", filepath.Join(s.dir, witnessFile)
	}
	if own == "" {
		return nil
	}
	is, err := valueOf(ctx, s.conn, metaHubID)
	if err != nil || is == own {
		return err
	}
	if file != s.file { // that of a restore that was cut off is nobody's
		if at, err := progressOf(ctx, s.conn); err != nil || at.rev == 0 {
			return err
		}
	}
	return fmt.Errorf("open %s: it is another hub's, %s, and %s what this hub, %s, remembers: correct --database, and "+
		"take this one along to a database of its own with `flotilla-hub migrate --to postgres://…`, or move %s away to "+
		"go on with the other hub's", s.pg.where, is, where, own, file)
}

// ownInFile is whose the database in the directory is; "": there is none, or nobody knows.
func (s *Store) ownInFile(ctx context.Context) string {
	if info, err := os.Stat(s.file); err != nil || info.Size() == 0 {
		return ""
	}
	db, err := sql.Open("sqlite", untouched(s.file))
	if err != nil {
		return ""
	}
	defer db.Close()
	own, _ := valueOf(ctx, db, metaHubID) // what cannot be read is no fleet
	return own
}

// migratePostgres brings the database from schema have to the newest one, all or nothing.
func (s *Store) migratePostgres(ctx context.Context, have int, o Options) error {
	return s.txLocked(ctx, func(ctx context.Context, c *conn) error { return makeSchema(ctx, c, have, o) })
}

func makeSchema(ctx context.Context, c *conn, have int, o Options) error {
	due := slices.DeleteFunc(slices.Clone(postgresMigrations), func(m migration) bool { return m.number <= have })
	if err := raise(ctx, c, due); err != nil {
		return err
	}
	if _, err := c.ExecContext(ctx, setMeta, metaVersion, o.Version); err != nil {
		return err
	}
	_, err := c.ExecContext(ctx, setMeta, metaSchema, strconv.Itoa(latest()))
	return err
}

// lead makes this store the one whose transactions count.
func (s *Store) lead(ctx context.Context) error {
	var written string
	if err := s.conn.QueryRowContext(ctx, "SELECT written FROM leader").Scan(&written); err != nil {
		return err
	}
	s.written = moment(written)
	host, _ := os.Hostname()
	if m := s.pg.member; m != nil { // it has taken the lead before
		err := s.conn.QueryRowContext(ctx, "UPDATE leader SET tx = tx + 1, written = ? WHERE token = ? RETURNING token, tx",
			stamp(time.Now()), int64(m.Token)).Scan(&s.pg.token, &s.pg.tx)
		if errors.Is(err, sql.ErrNoRows) {
			return s.isOver(fmt.Errorf("%w: another hub has taken %s over before this one began to lead", ErrLocked, s.pg.where))
		}
		return err
	}
	return s.conn.QueryRowContext(ctx, "UPDATE leader SET token = token + 1, tx = tx + 1, who = ?, written = ? "+
		"RETURNING token, tx",
		fmt.Sprintf("%s pid %d", host, os.Getpid()), stamp(time.Now())).Scan(&s.pg.token, &s.pg.tx)
}

// sharePostgres opens the database for a command.
func (s *Store) sharePostgres(ctx context.Context, o Options, url string) (err error) {
	if s.pg, err = parsePostgres(url, o.waits, s.log); err != nil {
		return err
	}
	defer func() { err = s.explain(err) }()
	s.connectPostgres()
	if err := s.reach(ctx); err != nil {
		return err
	}
	switch have, err := s.fit(ctx, o); {
	case err != nil:
		return err
	case have == 0:
		return fmt.Errorf("open %s: %w: no hub has run here yet; start `flotilla-hub serve --data-dir %s` once", s.pg.where,
			ErrNotFound, o.Dir)
	case have < latest():
		return fmt.Errorf("open %s: it has schema %d and this program works with %d: start the new `flotilla-hub serve` "+
			"once, it migrates the database", s.pg.where, have, latest())
	}
	return nil
}
