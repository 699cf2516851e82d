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

// migrationFiles hold the schema as steps that are never edited once released:
// NNN.sql runs once; NNN.kind.sql runs once for every table of objects, with
// {kind} replaced by its name, and all of them in order make a new such table.
//
//go:embed migration/*.sql migration/postgres/*.sql
var migrationFiles embed.FS

// A migration leads from the schema before it to its own number.
type migration struct {
	number  int
	sql     string
	perKind string
}

var migrations = mustMigrations(migrationFiles, "migration", 1)

// postgresMigrations begin with the schema that was the newest when PostgreSQL came in.
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

// schema is the number of the newest migration that a database has seen.
func (s *Store) schema(ctx context.Context) (int, error) {
	var v int
	err := s.conn.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v)
	return v, err
}

// migrate brings the database from schema have to the newest one, all or nothing.
func (s *Store) migrate(ctx context.Context, have int, o Options) error {
	return s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		if err := raise(ctx, c, migrations[have:]); err != nil {
			return err
		}
		if _, err := c.ExecContext(ctx, setMeta, metaVersion, o.Version); err != nil {
			return err
		}
		_, err := c.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", latest()))
		return err
	})
}

// raise carries out migrations, on the tables of all kinds, too.
func raise(ctx context.Context, c *conn, steps []migration) error {
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

// createKind makes the table of a kind whose first object is being committed.
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

// forKind gives a statement the name of a kind's table and, where it makes one in
// PostgreSQL, the type of what is in it.
func forKind(sql, kind string) string {
	object, stored, converted := "text", "text", "object"
	if sealedKind(kind) {
		object, stored = "bytea", "bytea"
	}
	if protoKind(kind) { // which were text until schema 4
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

// notNewer refuses a database that a newer program has migrated, before anything is opened
// that could write: its log is not even folded into it.
func (s *Store) notNewer(ctx context.Context, o Options) error {
	if info, err := os.Stat(s.file); err != nil || info.Size() == 0 {
		return nil
	}
	db, err := sql.Open("sqlite", untouched(s.file))
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var have int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil || have <= latest() {
		return nil // what is wrong with it is said by who opens it to write
	}
	by := "an unknown version"
	var v string
	if err := db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = ?", metaVersion).Scan(&v); err == nil &&
		v != "" {
		by = v
	}
	return fmt.Errorf("open %s/%s: %w: it was written by flotilla-hub %s (schema %d), and this is %s (up to schema "+
		"%d); install that version again, or restore a backup from before the upgrade with `flotilla-hub restore FILE`",
		s.dir, database, ErrNewer, by, have, orUnknown(o.Version), latest())
}

// untouched is a dsn that reads a file and what is in its log, and writes nothing.
func untouched(file string) string {
	q := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(5000)", "trusted_schema(0)"}}
	if info, err := os.Stat(file + "-wal"); err != nil || info.Size() == 0 {
		q.Set("immutable", "1") // SQLite would leave an empty log
	}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: file}).EscapedPath(), RawQuery: q.Encode()}).String()
}

func orUnknown(v string) string {
	if v == "" {
		return "an unknown version"
	}
	return v
}

// keepBefore makes a copy of the database as it is before a migration, unless a start that
// was cut short, or a migration that failed, has left that very copy: a hub that is
// started again and again must not fill its disk.
func (s *Store) keepBefore(ctx context.Context) (file string, err error) {
	stem := filepath.Join(s.dir, "backups", fmt.Sprintf("before-schema-%d-", latest()))
	have, err := s.state(ctx, s.conn)
	if err != nil {
		return "", err
	}
	kept, err := matching(filepath.Dir(stem), filepath.Base(stem)+"*.db")
	if err != nil {
		return "", err
	}
	for _, file := range kept {
		db, err := sql.Open("sqlite", untouched(file))
		if err != nil {
			continue
		}
		same, err := s.state(ctx, db)
		_ = db.Close()
		if err == nil && same == have {
			return file, nil
		}
	}
	s.makeRoom(ctx)
	file = stem + fileStamp(time.Now()) + ".db"
	for n := 2; ; n++ { // another one of this second
		if _, err := os.Lstat(file); err != nil {
			return file, s.Backup(ctx, file)
		}
		file = fmt.Sprintf("%s%s-%d.db", stem, fileStamp(time.Now()), n)
	}
}

// state tells of a database before a migration whether it has changed: everything that is
// remembered of the fleet has a revision, and everything that people do is audited.
func (s *Store) state(ctx context.Context, q querier) (is [4]string, err error) {
	return is, q.QueryRowContext(ctx,
		`SELECT (SELECT value FROM meta WHERE key = ?), (SELECT value FROM meta WHERE key = ?),
		(SELECT coalesce(max(id), 0) FROM audit), (SELECT user_version FROM pragma_user_version)`, metaRevision, metaHubID).Scan(&is[0], &is[1], &is[2], &is[3])
}

// A backup that somebody has had in the hand may hold more than rows: a trigger gives
// rights back as soon as they are taken, a generated column says what nobody has written,
// and the name of a table of objects becomes part of statements. So nothing of one is
// carried out before its schema is known to be a hub's, to the letter.

// genuine tells whether the schema of a database file is one that a hub makes.
func genuine(ctx context.Context, file string) error {
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
		return nil // of a newer program: it is refused as such
	}
	if version == 0 && len(have) == 0 { // SQLite takes an empty file for an empty database
		return errors.New("it is empty, as a copy that was cut off; restore another backup")
	}
	if version < 0 {
		return fmt.Errorf("it has schema %d, which no hub makes", version)
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
			return fmt.Errorf("it has a %s that no hub makes: somebody has changed it; restore another backup", what)
		}
	}
	for what := range want {
		if _, has := have[what]; !has {
			return fmt.Errorf("it lacks the %s of a hub: somebody has changed it; restore another backup", what)
		}
	}
	return nil
}

// schemaAt is the schema of that version with tables of those kinds.
func schemaAt(ctx context.Context, version int, kinds []string) (map[string]string, error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection has a memory of its own
	for _, m := range migrations[:version] {
		if _, err := db.ExecContext(ctx, m.sql); err != nil {
			return nil, err
		}
	}
	for _, kind := range kinds {
		if !kindForm.MatchString(kind) {
			return nil, fmt.Errorf("it has a kind of objects called %.100q, which no hub makes: somebody has changed it; "+
				"restore another backup", kind)
		}
		for _, m := range migrations[:version] {
			if _, err := db.ExecContext(ctx, forKind(m.perKind, kind)); err != nil {
				return nil, err
			}
		}
	}
	return schemaOf(ctx, db)
}

// schemaOf is what a database consists of, by kind and name, in the words that made it.
// What SQLite makes by itself has none.
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
