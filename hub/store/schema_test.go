package store

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A manipulated backup may contain more than rows, for example a trigger. A restore refuses it.
func TestARestoreRunsNothingOfABackup(t *testing.T) {
	for what, change := range map[string]string{
		"a trigger": "CREATE TRIGGER back AFTER INSERT ON users BEGIN UPDATE users SET role = " +
			"'admin' WHERE name = new.name; END",
		"a view": "ALTER TABLE revoked_clients RENAME TO r; CREATE VIEW revoked_clients AS SELECT " +
			"* FROM r WHERE 0",
		"a generated column": "DROP TABLE revoked_clients; CREATE TABLE revoked_clients (name TEXT PRIMARY " +
			"KEY, before TEXT GENERATED ALWAYS AS ('')) STRICT",
		"an additional table":        "CREATE TABLE mine (x)",
		"an index":                   "CREATE UNIQUE INDEX one ON users (name, role)",
		"a missing table":            "DROP TABLE revoked_clients",
		"a kind that is a statement": `INSERT INTO kinds VALUES ('x" (y); CREATE TABLE other (z); --')`,
		"a schema below zero":        "PRAGMA user_version = -1",
		"a wrong schema number":      "PRAGMA user_version = 1; DELETE FROM kinds",
	} {
		t.Run(what, func(t *testing.T) {
			dir, file := outlived(t)
			db, err := sql.Open("sqlite", dsn(file))
			must(t, err)
			_, err = db.Exec(change)
			must(t, err)
			_, err = db.Exec("PRAGMA journal_mode = DELETE") // so that everything is in one file
			must(t, err)
			must(t, db.Close())
			if err := Restore(t.Context(), options(t, dir), file); err == nil ||
				!strings.Contains(err.Error(), "unknown") && !strings.Contains(err.Error(), "lacks the") {
				t.Errorf("Restore returns %v", err)
			}
			s := openIn(t, dir)
			if u, err := s.Users(t.Context()); len(u) != 1 || u[0].Role != "viewer" {
				t.Errorf("the users are %+v, %v", u, err)
			}
		})
	}
}

// Every released schema can be restored.
func TestABackupOfEachSchemaIsRestored(t *testing.T) {
	dumps, err := filepath.Glob("testdata/v*.sql")
	must(t, err)
	for _, dump := range dumps {
		file := filepath.Join(fromDump(t, dump), database)
		if err := checkSchema(t.Context(), file); err != nil {
			t.Errorf("%s: %v", dump, err)
		}
	}
}

// For SQLite an empty file is an empty database. A copy that broke off at its beginning must not
// count as a backup, neither for a restore nor at a start.
func TestAnEmptyFileIsRefused(t *testing.T) {
	empty, bare := filepath.Join(t.TempDir(), "empty.db"), filepath.Join(t.TempDir(), "bare.db")
	must(t, os.WriteFile(empty, nil, 0o600))
	must(t, os.WriteFile(bare, nil, 0o600))
	db, err := sql.Open("sqlite", dsn(bare))
	must(t, err)
	_, err = db.Exec("CREATE TABLE a (b); DROP TABLE a; VACUUM")
	must(t, err)
	must(t, db.Close())
	for _, file := range []string{empty, bare, os.DevNull} {
		dir := t.TempDir()
		s := openIn(t, dir)
		mustCommit(t, s, 1, pod("a", 1))
		must(t, s.Close())
		if err := Restore(t.Context(), options(t, dir), file); err == nil {
			t.Errorf("%s is restored", file)
		}
		s = openIn(t, dir)
		expect(t, names(t, s), "a")
		must(t, s.Close())
		if file == os.DevNull {
			continue
		}
		// A start does not use the file either, although its name is the newest.
		must(t, os.MkdirAll(filepath.Join(dir, "backups"), 0o700))
		must(t, copyFile(file, filepath.Join(dir, "backups", "hub-20991231T000000Z.db")))
		must(t, os.WriteFile(filepath.Join(dir, database), []byte(strings.Repeat("damaged", 5000)), 0o600))
		s = openIn(t, dir)
		if r, err := s.Recovered(t.Context()); err != nil || r == nil || r.From != "" {
			t.Errorf("%s: a start continues with %+v, %v", file, r, err)
		}
		must(t, s.Close())
	}
}
