package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// migrationFiles hold the schema as steps that never change after their release. NNN.sql runs once.
// NNN.kind.sql runs once for every table of objects, with {kind} replaced by its name; a new table
// of objects runs all of them.
//
//go:embed migration/*.sql migration/postgres/*.sql
var migrationFiles embed.FS

// A migration changes the previous schema to the one with its number.
type migration struct {
	number  int
	sql     string
	perKind string
}

var migrations = mustMigrations(migrationFiles, "migration", 1)

// postgresMigrations begin with the schema that was the newest when PostgreSQL was added.
var postgresMigrations = mustMigrations(migrationFiles, "migration/postgres", 3)

func latest() int { return len(migrations) }

func mustMigrations(files fs.FS, dir string, first int) []migration {
	names, err := fs.Glob(files, dir+"/*.sql")
	if err != nil {
		panic(err)
	}
	form := regexp.MustCompile(`/(\d{3})(\.kind)?\.sql$`)
	byNumber := map[int]*migration{}
	for _, name := range names {
		m := form.FindStringSubmatch(name)
		if m == nil {
			panic("store: " + name + " is not named NNN.sql or NNN.kind.sql")
		}
		n, _ := strconv.Atoi(m[1])
		text, err := fs.ReadFile(files, name)
		if err != nil {
			panic(err)
		}
		if byNumber[n] == nil {
			byNumber[n] = &migration{number: n}
		}
		if m[2] == "" {
			byNumber[n].sql = string(text)
		} else {
			byNumber[n].perKind = string(text)
		}
	}
	list := make([]migration, 0, len(byNumber))
	for n := first; n < first+len(byNumber); n++ {
		if byNumber[n] == nil {
			panic(fmt.Sprintf("store: migration %03d is missing", n))
		}
		list = append(list, *byNumber[n])
	}
	return list
}

// schema returns the number of the database's newest migration.
func (s *Store) schema(ctx context.Context) (int, error) {
	var v int
	err := s.conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v)
	return v, err
}

// migrate migrates the database from schema have to the newest one, completely or not at all.
func (s *Store) migrate(ctx context.Context, have int, o Options) error {
	return s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		if err := runMigrations(ctx, c, migrations[have:]); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, setMeta, metaVersion, o.Version); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", latest()))
		return err
	})
}

// runMigrations runs migrations, including those of each kind's table.
func runMigrations(ctx context.Context, c *conn, steps []migration) error {
	for _, m := range steps {
		if _, err := c.ExecContext(ctx, m.sql); err != nil {
			return fmt.Errorf("migrate to schema %d: %w", m.number, err)
		}
		kinds, err := listKinds(ctx, c)
		if err != nil {
			return err
		}
		for _, kind := range kinds {
			if _, err := c.ExecContext(ctx, forKind(m.perKind, kind)); err != nil {
				return fmt.Errorf("migrate table %s to schema %d: %w", kind, m.number, err)
			}
		}
	}
	return nil
}

// createKind creates the table of a kind.
func createKind(ctx context.Context, c *conn, kind string) error {
	steps := migrations
	if c.postgres {
		steps = postgresMigrations
	}
	for _, m := range steps {
		if _, err := c.ExecContext(ctx, forKind(m.perKind, kind)); err != nil {
			return fmt.Errorf("create table %s: %w", kind, err)
		}
	}
	_, err := c.ExecContext(ctx, "INSERT INTO kinds (name) VALUES (?)", kind)
	return err
}

// forKind fills a kind's table name into a statement and, for PostgreSQL, its column types.
func forKind(sql, kind string) string {
	object, stored, converted := "text", "text", "object"
	if sealedKind(kind) {
		object, stored = "bytea", "bytea"
	}
	if protoKind(kind) { // the column was text until schema 4
		stored, converted = "bytea", "convert_to(object, 'UTF8')"
	}
	return strings.NewReplacer("{kind}", `"`+kind+`"`, "{object}", object, "{stored}", stored,
		"{converted}", converted).Replace(sql)
}

func listKinds(ctx context.Context, c querier) ([]string, error) {
	rows, err := c.QueryContext(ctx, "SELECT name FROM kinds ORDER BY name")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var kinds []string
	for rows.Next() {
		var k string
		if err := rows.Scan(&k); err != nil {
			return nil, err
		}
		kinds = append(kinds, k)
	}
	return kinds, rows.Err()
}

// notNewer refuses a database of a newer program, before anything opens it for writing, because
// that would checkpoint the log.
func (s *Store) notNewer(ctx context.Context, o Options) error {
	if info, err := os.Stat(s.file); err != nil || info.Size() == 0 {
		return nil
	}
	db, err := sql.Open("sqlite", dsnReadOnly(s.file))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var have int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil || have <= latest() {
		return nil // opening it for writing reports other errors
	}
	by := "an unknown version"
	var v string
	if err := db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", metaVersion).Scan(&v); err == nil &&
		v != "" {
		by = v
	}
	return fmt.Errorf("open %s/%s: %w: it was written by flotilla-hub %s (schema %d); this is %s (up to schema "+
		"%d); install that version again, or restore a backup from before the upgrade with `flotilla-hub restore FILE`",
		s.dir, database, ErrNewer, by, have, orUnknown(o.Version), latest())
}

// dsnReadOnly returns a dsn that reads a file and its log without writing.
func dsnReadOnly(file string) string {
	q := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(5000)", "trusted_schema(0)"}}
	if info, err := os.Stat(file + "-wal"); err != nil || info.Size() == 0 {
		q.Set("immutable", "1") // otherwise SQLite would create an empty log
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath(), RawQuery: q.Encode()}).String()
}

func orUnknown(v string) string {
	if v == "" {
		return "an unknown version"
	}
	return v
}

// copyBeforeMigration copies the database before a migration, unless a failed attempt has left the
// same copy. Repeated starts must not fill the disk.
func (s *Store) copyBeforeMigration(ctx context.Context) (file string, err error) {
	stem := filepath.Join(s.dir, "backups", fmt.Sprintf("before-schema-%d-", latest()))
	have, err := s.fingerprint(ctx, s.conn)
	if err != nil {
		return "", err
	}
	kept, err := matching(filepath.Dir(stem), filepath.Base(stem)+"*.db")
	if err != nil {
		return "", err
	}
	for _, file := range kept {
		db, err := sql.Open("sqlite", dsnReadOnly(file))
		if err != nil {
			continue
		}
		same, err := s.fingerprint(ctx, db)
		_ = db.Close()
		if err == nil && same == have {
			return file, nil
		}
	}
	s.makeRoom(ctx)
	file = stem + fileStamp(time.Now()) + ".db"
	for n := 2; ; n++ { // a second copy in the same second needs another name
		if _, err := os.Lstat(file); err != nil {
			return file, s.Backup(ctx, file)
		}
		file = fmt.Sprintf("%s%s-%d.db", stem, fileStamp(time.Now()), n)
	}
}

// fingerprint identifies the content of a database before a migration. Every change of the fleet
// has a revision, and every change by a user has an audit record.
func (s *Store) fingerprint(ctx context.Context, q querier) (is [4]string, err error) {
	return is, q.QueryRowContext(ctx,
		`SELECT (SELECT value FROM meta WHERE key = ?), (SELECT value FROM meta WHERE key = ?),
		(SELECT coalesce(max(id), 0) FROM audit), (SELECT user_version FROM pragma_user_version)`, metaRevision, metaHubID).Scan(&is[0], &is[1], &is[2], &is[3])
}

// A manipulated backup may contain more than rows: a trigger that restores rights, a generated
// column with forged values, a table name that becomes part of a statement. So the store runs
// nothing of a backup before it has checked that the schema is exactly that of a hub.

// checkSchema returns an error unless the file has exactly the schema that a hub creates.
func checkSchema(ctx context.Context, file string) error {
	db, err := sql.Open("sqlite", dsn(file, "query_only(1)"))
	if err != nil {
		return err
	}
	defer db.Close()
	have, err := schemaOf(ctx, db)
	if err != nil {
		return err
	}
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > latest() {
		return nil // the schema of a newer program is refused elsewhere
	}
	if version == 0 && len(have) == 0 { // SQLite takes an empty file for an empty database
		return errors.New("it is empty, probably an interrupted copy; restore another backup")
	}
	if version < 0 {
		return fmt.Errorf("it has the unknown schema %d", version)
	}
	var kinds []string
	if has, err := hasTable(ctx, db, "kinds"); err != nil {
		return err
	} else if has {
		if kinds, err = listKinds(ctx, db); err != nil {
			return err
		}
	}
	want, err := schemaAt(ctx, version, kinds)
	if err != nil {
		return err
	}
	for what, text := range have {
		if want[what] != text {
			return fmt.Errorf("it has an unknown %s: it was tampered with; restore another backup", what)
		}
	}
	for what := range want {
		if _, has := have[what]; !has {
			return fmt.Errorf("it lacks the %s: it was tampered with; restore another backup", what)
		}
	}
	return nil
}

// schemaAt returns the schema of a version with tables of the given kinds.
func schemaAt(ctx context.Context, version int, kinds []string) (map[string]string, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection to :memory: has its own database
	for _, m := range migrations[:version] {
		if _, err := db.ExecContext(ctx, m.sql); err != nil {
			return nil, err
		}
	}
	for _, kind := range kinds {
		if !kindForm.MatchString(kind) {
			return nil, fmt.Errorf("it has an unknown kind %.100q: it was tampered with; restore another backup", kind)
		}
		for _, m := range migrations[:version] {
			if _, err := db.ExecContext(ctx, forKind(m.perKind, kind)); err != nil {
				return nil, err
			}
		}
	}
	return schemaOf(ctx, db)
}

// schemaOf returns the SQL statements of a database's schema, by type and name. Objects that SQLite
// creates itself have no statement.
func schemaOf(ctx context.Context, q querier) (_ map[string]string, err error) {
	rows, err := q.QueryContext(ctx, "SELECT type, name, coalesce(sql, '') FROM sqlite_master")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	all := map[string]string{}
	for rows.Next() {
		var kind, name, text string
		if err := rows.Scan(&kind, &name, &text); err != nil {
			return nil, err
		}
		if text != "" {
			all[fmt.Sprintf("%.20s %.100q", kind, name)] = text
		}
	}
	return all, rows.Err()
}
