package store

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever has had a backup in the hand may have put more than rows into it.
func TestARestoreCarriesNothingOutThatABackupBrings(t *testing.T) {
	for what, change := range map[string]string{
		"a trigger":                      "CREATE TRIGGER back AFTER INSERT ON users BEGIN UPDATE users SET role = 'admin' WHERE name = new.name; END",
		"a view":                         "ALTER TABLE revoked_clients RENAME TO r; CREATE VIEW revoked_clients AS SELECT * FROM r WHERE 0",
		"a column that says what is not": "DROP TABLE revoked_clients; CREATE TABLE revoked_clients (name TEXT PRIMARY KEY, before TEXT GENERATED ALWAYS AS ('')) STRICT",
		"a table of another's":           "CREATE TABLE mine (x)",
		"an index":                       "CREATE UNIQUE INDEX one ON users (name, role)",
		"a table less":                   "DROP TABLE revoked_clients",
		"a kind that is a statement":     `INSERT INTO kinds VALUES ('x" (y); CREATE TABLE other (z); --')`,
		"a schema below zero":            "PRAGMA user_version = -1",
		"a schema that it has not":       "PRAGMA user_version = 1; DELETE FROM kinds",
	} {
		t.Run(what, func(t *testing.T) {
			dir, file := outlived(t)
			db, err := sql.Open("sqlite", dsn(file))
			must(t, err)
			_, err = db.Exec(change)
			must(t, err)
			_, err = db.Exec("PRAGMA journal_mode = DELETE") // all of it in the one file
			must(t, err)
			must(t, db.Close())
			if err := Restore(t.Context(), options(t, dir), file); err == nil || !strings.Contains(err.Error(), "no hub makes") && !strings.Contains(err.Error(), "lacks the") {
				t.Errorf("restoring says %v", err)
			}
			s := openIn(t, dir)
			if u, err := s.Users(t.Context()); len(u) != 1 || u[0].Role != "viewer" {
				t.Errorf("the users are %+v, %v", u, err)
			}
		})
	}
}

// Every schema that was ever released can be restored.
func TestAnOlderBackupIsGenuine(t *testing.T) {
	dumps, err := filepath.Glob("testdata/v*.sql")
	must(t, err)
	for _, dump := range dumps {
		file := filepath.Join(fromDump(t, dump), database)
		if err := genuine(t.Context(), file); err != nil {
			t.Errorf("%s: %v", dump, err)
		}
	}
	empty := filepath.Join(t.TempDir(), "empty.db")
	must(t, os.WriteFile(empty, nil, 0o600))
	if err := genuine(t.Context(), empty); err != nil {
		t.Error(err)
	}
}
