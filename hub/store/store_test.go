package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "rewrite schema.golden.sql")

func options(t *testing.T, dir string) Options {
	return Options{Dir: dir, Version: "1.0", Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func openIn(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), options(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func pod(name string, rev uint64) Row {
	return Row{
		Kind: "pods", Namespace: "default", Name: name, UID: "u-" + name, Rev: rev, Node: "pi-1", Phase: "Running",
		Object: []byte(`{"kind":"Pod","metadata":{"name":"` + name + `"}}`),
	}
}

func mustCommit(t *testing.T, s *Store, rev uint64, rows ...Row) {
	t.Helper()
	if err := s.Commit(t.Context(), Commit{Rev: rev, Rows: rows}); err != nil {
		t.Fatal(err)
	}
}

// contents returns every object as "kind namespace/name rev node phase object".
func contents(t *testing.T, s *Store) []string {
	t.Helper()
	var all []string
	if err := s.Load(t.Context(), func(r Row) error {
		all = append(all, fmt.Sprintf("%s %s/%s %s %d %s %s %s", r.Kind, r.Namespace, r.Name, r.UID, r.Rev, r.Node, r.Phase,
			r.Object))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCommitsSurviveAReopen(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	hub, err := s.HubID(t.Context())
	if err != nil || len(hub) < 20 {
		t.Fatalf("hub id %q %v", hub, err)
	}
	secret := Row{
		Kind: "secrets", Namespace: "default", Name: "wifi", UID: "u-w", Rev: 2, Object: []byte(`{"data":"hunter2"}`),
	}
	mustCommit(t, s, 2, pod("b", 1), pod("a", 2), secret,
		Row{Kind: "nodes", Name: "pi-1", UID: "n", Rev: 2, Object: []byte(`{}`)})
	changed := pod("b", 3)
	changed.Phase = "Failed"
	mustCommit(t, s, 5, Row{Kind: "pods", Namespace: "default", Name: "a"}, pod("b", 3), changed, pod("c", 4),
		Row{Kind: "pods", Namespace: "default", Name: "c"}, pod("c", 5))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openIn(t, dir)
	expect(t, contents(t, s),
		`nodes /pi-1 n 2   {}`,
		`pods default/b u-b 3 pi-1 Failed {"kind":"Pod","metadata":{"name":"b"}}`,
		`pods default/c u-c 5 pi-1 Running {"kind":"Pod","metadata":{"name":"c"}}`,
		`secrets default/wifi u-w 2   {"data":"hunter2"}`)
	if rev, err := s.Revision(t.Context()); err != nil || rev != 5 {
		t.Fatalf("revision %d %v", rev, err)
	}
	if again, _ := s.HubID(t.Context()); again != hub {
		t.Fatalf("hub id changed from %s to %s", hub, again)
	}
}

func TestASecondHubOnTheSameDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	first := openIn(t, dir)
	_, err := Open(t.Context(), options(t, dir))
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) ||
		!strings.Contains(err.Error(), "--data-dir") {
		t.Fatal(err)
	}
	if err := Restore(t.Context(), options(t, dir), "x"); !errors.Is(err, ErrLocked) {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	openIn(t, dir)
}

func TestACommandWorksBesideARunningHub(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenShared(t.Context(), options(t, dir)); !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "serve") {
		t.Fatal(err)
	}
	hub := openIn(t, dir)
	cli, err := OpenShared(t.Context(), options(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	if err := cli.SetMeta(t.Context(), "said", "by the command"); err != nil {
		t.Fatal(err)
	}
	if v, err := hub.TakeMeta(t.Context(), "said"); err != nil || v != "by the command" {
		t.Fatal(v, err)
	}
	if _, err := cli.TakeMeta(t.Context(), "said"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	if err := cli.Commit(t.Context(), Commit{Rev: 1, Rows: []Row{pod("a", 1)}}); err == nil {
		t.Fatal("a second writer of objects")
	}
}

func TestFilesAreReadableByTheHubOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "hub")
	s := openIn(t, dir)
	mustCommit(t, s, 1, pod("a", 1))
	if err := s.Backup(t.Context(), filepath.Join(dir, "backups", "hub-20260101T000000Z.db")); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		seen[d.Name()] = true
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"hub.db", "hub.db-wal", "hub.lock", "secrets.key", "ballast", "hub-20260101T000000Z.db"} {
		if !seen[f] {
			t.Errorf("%s does not exist", f)
		}
	}
}

func TestTheSchemaMatchesTheGoldenFile(t *testing.T) {
	s := openIn(t, t.TempDir())
	mustCommit(t, s, 1, pod("a", 1))
	rows, err := s.read.Query("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER " +
		"BY name")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	fmt.Fprintf(&b, "-- The schema after every migration (%d), with one table of objects as an example: go test "+
		"./hub/store -update\n", latest())
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n" + text + ";\n")
	}
	if *update {
		if err := os.WriteFile("schema.golden.sql", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("schema.golden.sql")
	if err != nil || b.String() != string(want) {
		t.Fatalf("%v: the schema is now\n%s\na released schema changes by a new migration only; if this is one, run with "+
			"-update", err, b.String())
	}
}

// fromDump creates a data directory with the database of an SQL dump.
func fromDump(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, database), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", dsn(filepath.Join(dir, database)))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(string(text)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, database), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestDatabasesOfOlderVersionsOpen(t *testing.T) {
	dumps, err := filepath.Glob("testdata/v*.sql")
	if err != nil || len(dumps) != latest() {
		t.Fatalf("%d dumps for %d schemas: every released schema keeps one (%v)", len(dumps), latest(), err)
	}
	for _, dump := range dumps {
		t.Run(dump, func(t *testing.T) {
			s := openIn(t, fromDump(t, dump))
			expect(t, contents(t, s),
				`nodes /pi-1 n-1 4   {"kind":"Node"}`,
				`pods default/kiosk-1 p-1 7 pi-1 Running {"kind":"Pod"}`)
			if rev, _ := s.Revision(t.Context()); rev != 7 {
				t.Fatal(rev)
			}
			if id, _ := s.HubID(t.Context()); id != "oldhub" {
				t.Fatal(id)
			}
			if u, err := s.User(t.Context(), "anna"); err != nil || u.Role != "admin" {
				t.Fatal(u, err)
			}
			if e, err := s.Enrolments(t.Context()); err != nil || len(e) != 1 || e[0].Node != "pi-1" || e[0].Site != "oslo" ||
				e[0].Labels["rack"] != "a" {
				t.Fatal(e, err)
			}
			mustCommit(t, s, 8, pod("new", 8))
			if err := s.AddAudit(t.Context(), did("pi-1")); err != nil {
				t.Fatal(err)
			}
			if r, err := s.VerifyAudit(t.Context()); err != nil || r.Breaks != 0 || r.Unchained != 1 {
				t.Fatalf("%v %+v", err, r)
			}
		})
	}
}

func TestAMigrationKeepsTheOldDatabaseAndChangesEveryKind(t *testing.T) {
	dir := fromDump(t, "testdata/v1.sql")
	old := migrations
	defer func() { migrations = old }()
	migrations = append(old[:len(old):len(old)], migration{number: len(old) + 1,
		sql: "CREATE TABLE added (x TEXT) STRICT", perKind: "ALTER TABLE {kind} ADD COLUMN extra TEXT NOT NULL DEFAULT ''"})
	s := openIn(t, dir)
	mustCommit(t, s, 8, pod("a", 8), Row{Kind: "sites", Name: "oslo", Rev: 8, Object: []byte("{}")})
	for _, kind := range []string{"nodes", "pods", "sites"} {
		if _, err := s.read.Exec("SELECT extra FROM " + kind); err != nil {
			t.Error(err)
		}
	}
	kept, _ := filepath.Glob(filepath.Join(dir, "backups", "before-schema-*.db"))
	if len(kept) != 1 {
		t.Fatalf("kept %v", kept)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	migrations = old
	_, err := Open(t.Context(), Options{Dir: dir, Version: "0.9"})
	if !errors.Is(err, ErrNewer) {
		t.Fatal(err)
	}
	for _, part := range []string{fmt.Sprintf("flotilla-hub 1.0 (schema %d)", latest()+1),
		fmt.Sprintf("this is 0.9 (up to schema %d)", latest()), "restore FILE"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the text %q is missing in %q", part, err)
		}
	}
	if _, err := OpenShared(t.Context(), options(t, dir)); !errors.Is(err, ErrNewer) {
		t.Fatal(err)
	}

	broken := append(old[:len(old):len(old)], migration{
		number: 2, sql: "CREATE TABLE half (x TEXT); CREATE TABLE half (x TEXT)",
	})
	dir = fromDump(t, "testdata/v1.sql")
	migrations = broken
	if _, err := Open(t.Context(), options(t, dir)); err == nil || !strings.Contains(err.Error(), "schema 2") {
		t.Fatal(err)
	}
	migrations = old
	openIn(t, dir) // the failed migration has changed nothing
}

func TestSecretsAreSealed(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	secret := func(name, value string) Row {
		return Row{Kind: "secrets", Namespace: "default", Name: name, UID: name, Rev: 1, Object: []byte(value)}
	}
	mustCommit(t, s, 1, secret("a", "correct-horse-a"), secret("b", "correct-horse-b"), pod("p", 1))
	if err := s.Backup(t.Context(), filepath.Join(dir, "backups", "hub-20260101T000000Z.db")); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"hub.db", "backups/hub-20260101T000000Z.db"} {
		raw, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte("correct-horse")) {
			t.Errorf("%s holds the secret in clear", file)
		}
		if !bytes.Contains(raw, []byte(`"name":"p"`)) {
			t.Errorf("%s does not contain the pod: the test looks in the wrong place", file)
		}
	}

	key := filepath.Join(dir, secretsKey)
	good, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spoil func() error
		says  string
	}{
		"a missing key": {func() error { return os.Remove(key) }, "is missing"},
		"another key": {
			func() error { return os.WriteFile(key, bytes.Repeat([]byte("ab"), 32), 0o600) }, "sealed with key",
		},
		"a cut key":                    {func() error { return os.WriteFile(key, good[:20], 0o600) }, "64 hex digits"},
		"a key file that all may read": {func() error { return os.Chmod(key, 0o644) }, "chmod 600"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.spoil(); err != nil {
				t.Fatal(err)
			}
			if s, err := Open(t.Context(), options(t, dir)); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.says) {
				_ = s.Close()
				t.Fatal(err)
			}
			_ = os.Remove(key)
			if err := os.WriteFile(key, good, 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
	s = openIn(t, dir)
	if _, err := s.conn.ExecContext(t.Context(), "UPDATE secrets SET object = (SELECT object FROM secrets WHERE name = "+
		"'a') WHERE name = 'b'"); err != nil {
		t.Fatal(err)
	}
	if err := s.Load(t.Context(), func(Row) error { return nil }); !errors.Is(err, ErrKey) {
		t.Fatal("one secret replaces another:", err)
	}
}

func TestTheKeyMayComeFromSystemd(t *testing.T) {
	creds := t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", creds)
	if err := os.WriteFile(filepath.Join(creds, credential), []byte(strings.Repeat("0f", 32)+"\n"), 0o400); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := openIn(t, dir)
	mustCommit(t, s, 1, Row{Kind: "secrets", Name: "a", Rev: 1, Object: []byte("x")})
	if _, err := os.Stat(filepath.Join(dir, secretsKey)); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("a key file was made beside the credential")
	}
}

// readThrough does not drop SQLite's lock. Without the lock, a command would remove the log at its
// end.
func TestReadingAheadKeepsTheLock(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	var large []Row // many, so that SQLite takes its lock before readThrough ends
	for i := range 64 {
		r := pod(fmt.Sprint(i), 1)
		r.Object = fmt.Appendf(nil, `{"data":"%s"}`, strings.Repeat("x", 1<<20))
		large = append(large, r)
	}
	mustCommit(t, s, 1, large...)
	must(t, s.Close())
	s = openIn(t, dir)
	s.readAhead.Wait()
	f, err := os.Open(filepath.Join(dir, database))
	must(t, err)
	// at the end of the test, because closing the file drops the lock
	t.Cleanup(func() { _ = f.Close() })
	lock := unix.Flock_t{Type: unix.F_WRLCK, Start: 0x40000002, Len: 510} // SQLite's SHARED_FIRST and SHARED_SIZE
	must(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock))
	if lock.Type != unix.F_RDLCK {
		t.Errorf("the open database is not locked: type %d, want %d", lock.Type, unix.F_RDLCK)
	}
}

// A command that only reads neither waits nor writes. If another process writes for long, a command
// asks the user to run it again, and a hub retries.
func TestReadingDoesNotWait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hub := openIn(t, dir)
	patience := func(s *Store, want int) {
		t.Helper()
		var is int
		if must(t, s.conn.QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&is)); is != want {
			t.Errorf("the busy timeout is %d ms, want %d", is, want)
		}
	}
	patience(hub, 5000)
	log := filepath.Join(dir, database+"-wal")
	before, err := os.Stat(log)
	must(t, err)
	first, err := OpenShared(t.Context(), options(t, dir))
	must(t, err)
	defer first.Close()
	if _, err := first.Users(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(log); err != nil || after.Size() != before.Size() ||
		!after.ModTime().Equal(before.ModTime()) {
		t.Errorf("a command that reads writes to the database: %v, %v", after, err)
	}
	must(t, first.tx(t.Context(), func(context.Context, *conn) error {
		second, err := OpenShared(t.Context(), options(t, dir))
		if err != nil {
			return err
		}
		defer second.Close()
		if _, err := second.Users(t.Context()); err != nil {
			return err
		}
		if err := second.AddUser(t.Context(), User{Name: "anna", Role: "admin"}); err == nil ||
			errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "another process has been writing") {
			t.Errorf("a command while another process writes: %v", err)
		}
		if err := hub.Commit(t.Context(), Commit{Rev: 1, Rows: []Row{pod("a", 1)}}); !errors.Is(err, ErrUnavailable) ||
			strings.Count(err.Error(), "another process has been writing") != 1 {
			t.Errorf("the hub while another process writes: %v", err)
		}
		patience(hub, 100) // one transaction has waited; the next ones do not wait
		patience(second, 5000)
		return nil
	}))
	mustCommit(t, hub, 1, pod("a", 1))
	patience(hub, 5000)
	must(t, hub.Close())
}

// Every database can return the space of deleted objects, however it was created.
func TestEveryDatabaseReturnsSpace(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	backup := filepath.Join(t.TempDir(), "backup.db")
	must(t, s.Backup(t.Context(), backup))
	gives := func(s *Store, what string) {
		for _, q := range []querier{s.conn, s.read} {
			var mode int
			if must(t, q.QueryRowContext(t.Context(), "PRAGMA auto_vacuum").Scan(&mode)); mode != 2 {
				t.Errorf("%s has auto_vacuum %d", what, mode)
			}
		}
	}
	gives(s, "a new database")
	must(t, s.Close())
	s = openIn(t, dir)
	gives(s, "an existing database")
	must(t, s.Close())
	must(t, Restore(t.Context(), options(t, dir), backup))
	s = openIn(t, dir)
	gives(s, "a restored database")
	must(t, s.Close())
}
