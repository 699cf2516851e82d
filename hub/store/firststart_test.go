package store

import (
	"bytes"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command never creates the database while the hub does.
func TestACommandDoesNotCreateTheDatabase(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, database)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenShared(t.Context(), options(t, dir)); !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "serve") {
		t.Errorf("opening an empty file: %v", err)
	}
	if info, err := os.Stat(file); err != nil || info.Size() > 0 {
		t.Errorf("the empty file is now %v, %v", info.Size(), err)
	}

	// A new or restored database has no journal mode yet.
	db, err := sql.Open("sqlite", dsn(file))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, q := range []string{"PRAGMA journal_mode = DELETE", "CREATE TABLE t (x)"} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenShared(t.Context(), options(t, dir)); !errors.Is(err, ErrNotFound) ||
		!strings.Contains(err.Error(), "first start") {
		t.Errorf("opening a database without tables: %v", err)
	}
	if is, err := os.ReadFile(file); err != nil || !bytes.Equal(is, was) {
		t.Errorf("a command has changed the database: %v", err)
	}
}
