package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
)

// rowsOf returns every row as "table column=value ...", with the given columns or all.
func rowsOf(
	t *testing.T, file string, columns map[string][]string,
) (all map[string][]string, have map[string][]string) {
	t.Helper()
	db, err := sql.Open("sqlite", dsn(file, "query_only(1)"))
	must(t, err)
	defer db.Close()
	all, have = map[string][]string{}, map[string][]string{}
	tables, err := db.Query("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
	must(t, err)
	var names []string
	for tables.Next() {
		var name string
		must(t, tables.Scan(&name))
		names = append(names, name)
	}
	must(t, tables.Close())
	for _, name := range names {
		what := "*"
		if c := columns[name]; c != nil {
			what = strings.Join(c, ", ")
		}
		rows, err := db.Query(fmt.Sprintf("SELECT %s FROM %q", what, name))
		must(t, err)
		have[name], err = rows.Columns()
		must(t, err)
		for rows.Next() {
			values, into := make([]any, len(have[name])), make([]any, len(have[name]))
			for i := range values {
				into[i] = &values[i]
			}
			must(t, rows.Scan(into...))
			all[name] = append(all[name], fmt.Sprintf("%v", values))
		}
		must(t, rows.Close())
	}
	return all, have
}

// An upgrade keeps every row of every schema. The end of the audit and the ID of the key are not
// compared, because the dumps lack them.
func TestAnUpgradeKeepsEveryRow(t *testing.T) {
	dumps, err := filepath.Glob("testdata/v*.sql")
	must(t, err)
	for _, dump := range dumps {
		t.Run(dump, func(t *testing.T) {
			dir := fromDump(t, dump)
			file := filepath.Join(dir, database)
			before, columns := rowsOf(t, file, nil)
			s, err := Open(t.Context(), options(t, dir))
			must(t, err)
			must(t, s.Close())
			after, _ := rowsOf(t, file, columns)
			count := 0
			for table, rows := range before {
				if len(rows) == 0 && table != "revoked_clients" {
					t.Errorf("the dump has no row of %s", table)
				}
				for _, row := range rows {
					if count++; !slices.Contains(after[table], row) && !strings.Contains(row, metaAuditHead) &&
						!strings.Contains(row, metaKeyID) {
						t.Errorf("%s has lost %s: it has %v", table, row, after[table])
					}
				}
			}
			if count < 12 {
				t.Errorf("%d rows: the test compares too little", count)
			}
		})
	}
}

// filesOf returns the hashes of a directory's files, except the lock with its pid.
func filesOf(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	all := map[string][32]byte{}
	must(t, filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		// SQLite recreates the index of the log at every start.
		if err != nil || d.IsDir() || d.Name() == "hub.lock" || strings.HasSuffix(file, "-shm") {
			return err
		}
		text, err := os.ReadFile(file)
		all[strings.TrimPrefix(file, dir)] = sha256.Sum256(text)
		return err
	}))
	return all
}

// A hub refuses the database of a newer version with one sentence, and changes no byte of the
// directory, the log included.
func TestADowngradeIsRefusedAndChangesNothing(t *testing.T) {
	tooNew := latest() + 1
	for _, c := range []struct {
		name string
		make func(t *testing.T, dir string)
	}{
		{"closed", func(t *testing.T, dir string) {
			s := openIn(t, dir)
			mustCommit(t, s, 1, pod("a", 1))
			_, err := s.conn.ExecContext(t.Context(), "PRAGMA user_version = "+strconv.Itoa(tooNew))
			must(t, err)
			must(t, s.Close())
		}},
		{"after a power cut, with the version only in the log", func(t *testing.T, dir string) {
			other := t.TempDir()
			s := openIn(t, other)
			mustCommit(t, s, 1, pod("a", 1))
			_, err := s.conn.ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)")
			must(t, err)
			_, err = s.conn.ExecContext(t.Context(), "PRAGMA user_version = "+strconv.Itoa(tooNew))
			must(t, err)
			mustCommit(t, s, 2, pod("b", 2))
			for _, name := range []string{database, database + "-wal"} {
				must(t, copyFile(filepath.Join(other, name), filepath.Join(dir, name)))
			}
			if info, err := os.Stat(filepath.Join(dir, database+"-wal")); err != nil || info.Size() == 0 {
				t.Fatal("no log exists", err)
			}
		}},
		{"a copy without a log", func(t *testing.T, dir string) {
			other := t.TempDir()
			s := openIn(t, other)
			mustCommit(t, s, 1, pod("a", 1))
			_, err := s.conn.ExecContext(t.Context(), "PRAGMA user_version = "+strconv.Itoa(tooNew))
			must(t, err)
			must(t, s.Backup(t.Context(), filepath.Join(dir, database)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, dir)
			before := filesOf(t, dir)
			for range 2 {
				for _, open := range []func(context.Context, Options) (*Store, error){Open, OpenShared} {
					s, err := open(t.Context(), Options{Dir: dir, Version: "0.9"})
					if s != nil || !errors.Is(err, ErrNewer) || strings.Contains(err.Error(), "\n") ||
						!strings.Contains(err.Error(), fmt.Sprintf("(schema %d); this is 0.9 (up to schema %d)", tooNew, latest())) {
						t.Fatalf("%v %v", s, err)
					}
				}
			}
			if after := filesOf(t, dir); !maps.Equal(before, after) {
				t.Errorf("files were %v, and are %v", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
			}
		})
	}
}

// dieAt kills the process at the n-th point of a migration. A point follows each statement.
func dieAt(dir string, n int) {
	points := 0
	sqlite.MustRegisterScalarFunction("point", 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		if points++; points == n {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
		return int64(points), nil
	})
	for i := range migrations {
		for _, text := range []*string{&migrations[i].sql, &migrations[i].perKind} {
			if strings.TrimSpace(*text) == "" {
				continue
			}
			var b strings.Builder
			for line := range strings.Lines(*text) {
				statement, comment, _ := strings.Cut(line, "--")
				b.WriteString(statement)
				if strings.HasSuffix(strings.TrimSpace(statement), ";") {
					b.WriteString(" SELECT point();")
				}
				b.WriteString(" --" + strings.TrimSuffix(comment, "\n") + "\n")
			}
			*text = b.String()
		}
	}
	if s, err := Open(context.Background(), Options{Dir: dir}); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	} else if err := s.Close(); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println(points)
	os.Exit(0)
}

// A migration that is killed after any statement leaves the previous schema with every row, and the
// next start migrates it.
func TestAKilledMigrationChangesNothing(t *testing.T) {
	run := func(dir string, n int) (string, error) {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "FLOTILLA_STORE_MIGRATE="+dir, "FLOTILLA_STORE_POINT="+strconv.Itoa(n))
		out, err := child.Output()
		return strings.TrimSpace(string(out)), err
	}
	for version := 1; version < latest(); version++ {
		t.Run(fmt.Sprint("from schema ", version), func(t *testing.T) {
			dump := fmt.Sprintf("testdata/v%d.sql", version)
			whole, err := run(fromDump(t, dump), 0)
			points, aerr := strconv.Atoi(whole)
			if err != nil || aerr != nil || points < latest()-version {
				t.Fatalf("%d points: %s %v", points, whole, err)
			}
			for n := 1; n <= points; n++ {
				dir := fromDump(t, dump)
				file := filepath.Join(dir, database)
				before, columns := rowsOf(t, file, nil)
				for range 3 { // the process is killed at each start
					if out, err := run(dir, n); err == nil || out != "" {
						t.Fatalf("killed at %d of %d: %q %v", n, points, out, err)
					}
				}
				if kept, _ := filepath.Glob(filepath.Join(dir, "backups", "before-schema-*")); len(kept) != 1 {
					t.Errorf("killed at %d three times: copies %v", n, kept)
				}
				db, err := sql.Open("sqlite", dsn(file))
				must(t, err)
				var have int
				must(t, db.QueryRow("PRAGMA user_version").Scan(&have))
				must(t, db.Close())
				after, now := rowsOf(t, file, nil)
				if have != version || fmt.Sprint(after) != fmt.Sprint(before) || fmt.Sprint(now) != fmt.Sprint(columns) {
					t.Errorf("killed at %d of %d: schema %d with %v", n, points, have, after)
				}
				s := openIn(t, dir)
				if r, err := s.Recovered(t.Context()); r != nil || err != nil {
					t.Errorf("killed at %d: %+v %v", n, r, err)
				}
				must(t, s.Close())
				if kept, _ := filepath.Glob(filepath.Join(dir, "backups", "before-schema-*")); len(kept) != 1 {
					t.Errorf("after the migration: copies %v", kept)
				}
			}
		})
	}
}
