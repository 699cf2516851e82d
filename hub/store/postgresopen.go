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

// placeFile holds the address of a database that is not in the hub's data directory. So commands
// find the database, and a hub without --database does not start with a new one.
const placeFile = "database"

// SQLite is the Options.Database of the file in the data directory.
const SQLite = "sqlite"

// place returns the address of the database; "": the file in the data directory.
func place(o Options) (url string, err error) {
	kept, err := firstLine(filepath.Join(o.Dir, placeFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read where the database is: %w; run this as the user of the hub", err)
	}
	if url = o.Database; url == "" {
		url = kept
	}
	// An empty file is damaged, not missing. Otherwise the hub would start with a new database or a
	// backup.
	damaged := err == nil && (kept == "" || strings.ContainsFunc(kept, func(r rune) bool { return r < ' ' }))
	if damaged && (o.Database == "" || o.Database == SQLite) {
		return "", fmt.Errorf("read where the database is: %s is damaged: write the address into it, as "+
			"postgres://USER@HOST:5432/NAME, or remove it if the database is %s beside it", filepath.Join(o.Dir, placeFile),
			database)
	}
	if url == SQLite && kept != "" {
		return "", fmt.Errorf("the database of %s is in PostgreSQL: move it back with `flotilla-hub migrate --to "+
			"sqlite`, or, to give up that database, remove %s", o.Dir, filepath.Join(o.Dir, placeFile))
	}
	if url == "" || url == SQLite {
		return "", nil
	}
	if !strings.Contains(url, "://") { // a file keeps the password out of the command line
		if url, err = firstLine(url); err != nil {
			return "", fmt.Errorf("read where the database is: %w; write --database postgres://USER@HOST:5432/NAME, or the "+
				"path of a file whose first line is that", err)
		}
	}
	if !IsPostgres(url) {
		return "", errors.New("the database address is not one of PostgreSQL: write postgres://USER@HOST:5432/NAME")
	}
	return url, nil
}

// IsPostgres reports whether a text is an address of PostgreSQL.
func IsPostgres(url string) bool {
	return strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://")
}

func firstLine(file string) (string, error) {
	text, err := os.ReadFile(file)
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(line), err
}

// writePlace writes the address of the database into placeFile.
func writePlace(o Options) error {
	if o.Database == "" {
		return nil
	}
	at := o.Database
	if !strings.Contains(at, "://") {
		ours, err := o.ownsDir()
		if err == nil && ours {
			at, err = filepath.Abs(at)
		} else if err == nil { // the file belongs to the user who moved the database, and the hub could not read it
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

// openPostgres opens the database as its only writer, and creates its tables if needed.
func (s *Store) openPostgres(ctx context.Context, o Options) error {
	s.connectPostgres()
	if err := s.reconnect(ctx); err != nil {
		return err
	}
	have, err := s.checkServer(ctx, o)
	if err != nil {
		return s.explain(err)
	}
	if have == 0 && !o.restoring {
		if err := s.refuseEmpty(); err != nil {
			return err
		}
	}
	if have > 0 && !o.moving {
		if err := s.refuseForeign(ctx); err != nil {
			return s.explain(err)
		}
	}
	mark, current, err := s.progresses(ctx, have)
	if err != nil {
		return s.explain(err)
	}
	if have < latest() {
		if have > 0 {
			s.log.Info("migrating the database", "from", have, "to", latest())
		}
		s.pg.empty = have == 0
		if err := s.migratePostgres(ctx, have, o); err != nil {
			return err
		}
		s.pg.empty = false
	}
	if err := s.takeToken(ctx); err != nil {
		return s.explain(err)
	}
	if err := s.initialize(ctx, o); err != nil {
		return err
	}
	if current.before(mark) && !o.restoring {
		if err := s.resumeOlder(ctx, o, current, mark); err != nil {
			return err
		}
	}
	if !o.restoring { // during a restore, the progress of the lost database still counts
		if err := s.openHighWater(ctx); err != nil {
			s.log.Warn("cannot write the database's high-water mark", "err", err)
		}
		s.highWater.write(s.progress())
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
	return writePlace(o)
}

// checkServer checks the server and the database, and returns the schema's number.
func (s *Store) checkServer(ctx context.Context, o Options) (schema int, err error) {
	var version int
	var release, encoding, fsync, pages string
	if err := s.conn.QueryRowContext(ctx,
		`SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding'),
		current_setting('fsync'), current_setting('full_page_writes')`).Scan(&version, &release, &encoding, &fsync, &pages); err != nil {
		return 0, err
	}
	if version/10000 < oldestServer {
		return 0, fmt.Errorf("open %s: it is PostgreSQL %s; the hub needs %d or newer: upgrade the server", s.pg.where,
			release, oldestServer)
	}
	if encoding != "UTF8" {
		return 0, fmt.Errorf("open %s: its encoding is %s, but must be UTF8: create it with `createdb --encoding=UTF8 "+
			"--template=template0 NAME`", s.pg.where, encoding)
	}
	if is := networkRisk(s.pg.config); s.lock != nil && is != "" {
		s.log.Warn(is+": set sslmode=verify-full and sslrootcert in the address", "database", s.pg.where)
	}
	if s.lock != nil && (fsync != "on" || pages != "on") {
		s.log.Error("THE DATABASE LOSES DATA at a power cut: set fsync and full_page_writes to on in postgresql.conf",
			"database", s.pg.where, "fsync", fsync, "full_page_writes", pages)
	}
	return s.postgresSchema(ctx, o)
}

// postgresSchema returns the number of the schema; 0: the database is empty.
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
		return 0, fmt.Errorf("open %s: it has %d tables in schema %s that are not a hub's: give the hub its own database, "+
			"or its own schema with ?search_path=flotilla at the end of the address", s.pg.where, tables, *in)
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
		return 0, fmt.Errorf("open %s: %w: it was written by flotilla-hub %s (schema %d); this is %s (up to schema "+
			"%d); install that version again, or restore a copy of the database from before the upgrade",
			s.pg.where, ErrNewer, by, schema, orUnknown(o.Version), latest())
	}
	moved, err := valueOf(ctx, s.conn, metaMoved)
	if err == nil && moved != "" {
		return 0, s.isMoved(ctx, o.Dir, moved)
	}
	return schema, err
}

// refuseEmpty refuses an empty database if this hub already has a database with content.
func (s *Store) refuseEmpty() error {
	if info, err := os.Stat(s.file); err == nil && info.Size() > 0 {
		return fmt.Errorf("open %s: it is empty, but %s has this hub's fleet: move it with `flotilla-hub migrate --to "+
			"postgres://…`, or move that file away to start with an empty fleet", s.pg.where, s.file)
	}
	if mark := readHighWater(s.dir).rev; mark > 0 {
		return fmt.Errorf("open %s: it is empty, but this hub's database was at revision %d: correct --database, restore "+
			"a backup, or remove %s to start with an empty fleet", s.pg.where, mark, filepath.Join(s.dir, highWaterFile))
	}
	return nil
}

// refuseForeign refuses the database of another hub if this hub has a fleet, in its directory or in
// another database. That fleet would be abandoned.
func (s *Store) refuseForeign(ctx context.Context) error {
	own, where, file := s.ownInFile(ctx), s.file+" holds", s.file
	if own == "" {
		own, where, file = highWaterHub(s.dir), "another PostgreSQL database has", filepath.Join(s.dir, highWaterFile)
	}
	if own == "" {
		return nil
	}
	is, err := valueOf(ctx, s.conn, metaHubID)
	if err != nil || is == own {
		return err
	}
	if file != s.file {
		// Revision 0: an interrupted restore left this database, and the lost database's mark.
		if at, err := progressOf(ctx, s.conn); err != nil || at.rev == 0 {
			return err
		}
	}
	return fmt.Errorf("open %s: it belongs to another hub, %s, and %s the fleet of this hub, %s: correct --database, or "+
		"move this fleet to its own database with `flotilla-hub migrate --to postgres://…`, or, to use the other hub's "+
		"database, move %s away", s.pg.where, is, where, own, file)
}

// ownInFile returns the hub ID of the database in the directory; "": missing or unreadable.
func (s *Store) ownInFile(ctx context.Context) string {
	if info, err := os.Stat(s.file); err != nil || info.Size() == 0 {
		return ""
	}
	db, err := sql.Open("sqlite", dsnReadOnly(s.file))
	if err != nil {
		return ""
	}
	defer db.Close()
	own, _ := valueOf(ctx, db, metaHubID) // an unreadable file is not a fleet
	return own
}

// migratePostgres migrates the database from schema have to the newest one, completely or not at
// all.
func (s *Store) migratePostgres(ctx context.Context, have int, o Options) error {
	return s.txLocked(ctx, func(ctx context.Context, c *conn) error { return makeSchema(ctx, c, have, o) })
}

func makeSchema(ctx context.Context, c *conn, have int, o Options) error {
	due := slices.DeleteFunc(slices.Clone(postgresMigrations), func(m migration) bool { return m.number <= have })
	if err := runMigrations(ctx, c, due); err != nil {
		return err
	}
	if _, err := c.ExecContext(ctx, setMeta, metaVersion, o.Version); err != nil {
		return err
	}
	_, err := c.ExecContext(ctx, setMeta, metaSchema, strconv.Itoa(latest()))
	return err
}

// takeToken makes this store the only one that can commit.
func (s *Store) takeToken(ctx context.Context) error {
	var written string
	if err := s.conn.QueryRowContext(ctx, "SELECT written FROM leader").Scan(&written); err != nil {
		return err
	}
	s.written = moment(written)
	host, _ := os.Hostname()
	if m := s.pg.member; m != nil { // Standby.Take has taken the lead
		err := s.conn.QueryRowContext(ctx, "UPDATE leader SET tx = tx + 1, written = ? WHERE token = ? RETURNING token, tx",
			stamp(time.Now()), int64(m.Token)).Scan(&s.pg.token, &s.pg.tx)
		if errors.Is(err, sql.ErrNoRows) {
			return s.stop(fmt.Errorf("%w: another hub took over %s before this one led", ErrLocked, s.pg.where))
		}
		return err
	}
	return s.conn.QueryRowContext(ctx, "UPDATE leader SET token = token + 1, tx = tx + 1, who = ?, written = ? "+
		"RETURNING token, tx",
		fmt.Sprintf("%s pid %d", host, os.Getpid()), stamp(time.Now())).Scan(&s.pg.token, &s.pg.tx)
}

// sharePostgres opens the database for a command.
func (s *Store) sharePostgres(ctx context.Context, o Options, url string) (err error) {
	if s.pg, err = parsePostgres(url, o.timeouts, s.log); err != nil {
		return err
	}
	defer func() { err = s.explain(err) }()
	s.connectPostgres()
	if err := s.reconnect(ctx); err != nil {
		return err
	}
	switch have, err := s.checkServer(ctx, o); {
	case err != nil:
		return err
	case have == 0:
		return fmt.Errorf("open %s: %w: no hub has run here yet; start `flotilla-hub serve --data-dir %s` once", s.pg.where,
			ErrNotFound, o.Dir)
	case have < latest():
		return fmt.Errorf("open %s: it has schema %d and this program works with %d: start the new `flotilla-hub serve` "+
			"once, which migrates the database", s.pg.where, have, latest())
	}
	return nil
}
