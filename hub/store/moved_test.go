package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// The database of a running hub is moved away and back. The hub refuses writes meanwhile.
func TestAMovedDatabaseRefusesWritesUntilItIsBack(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	file := filepath.Join(dir, database)
	mustCommit(t, s, 1, pod("a", 1))
	for round := range 2 {
		rename(t, file, file+".bak")
		rev := uint64(2 + round)
		if err := s.Commit(t.Context(), Commit{Rev: rev, Rows: []Row{pod("lost", rev)}}); !errors.Is(err, ErrUnavailable) ||
			!strings.Contains(err.Error(), "moved or removed") {
			t.Fatalf("a commit into the moved database: %v", err)
		}
		if err := s.SetMeta(t.Context(), "k", "v"); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("a SetMeta in the moved database: %v", err)
		}
		if err := s.Backup(t.Context(), filepath.Join(t.TempDir(), "copy.db")); err == nil {
			t.Fatal("Backup copied the missing file by its name")
		}
		if _, err := OpenShared(t.Context(), options(t, dir)); !errors.Is(err, ErrNotFound) {
			t.Fatalf("a command on the moved database: %v", err)
		}
		if _, err := os.Lstat(file); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("another database was made in its place: %v", err)
		}
		if round == 1 { // a copy is not the file that the hub has open
			if err := copyFile(file+".bak", file); err != nil {
				t.Fatal(err)
			}
			if err := s.Commit(t.Context(), Commit{Rev: rev, Rows: []Row{pod("lost", rev)}}); !errors.Is(err, ErrUnavailable) {
				t.Fatalf("a commit with a copy in place of the database: %v", err)
			}
		}
		rename(t, file+".bak", file)
		mustCommit(t, s, rev, pod("b", rev))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := openIn(t, dir)
	expect(t, contents(t, again), contents(t, again)...)
	if got := strings.Join(contents(t, again), " "); strings.Contains(got, "lost") || !strings.Contains(got, "b") {
		t.Fatalf("the database has %s", got)
	}
	if r, err := again.Recovered(t.Context()); err != nil || r != nil {
		t.Fatalf("the database was replaced: %+v, %v", r, err)
	}
}

// After a running hub's database is removed, the next start has every acknowledged write.
func TestARemovedDatabaseIsRestoredAtTheNextStart(t *testing.T) {
	dir := t.TempDir()
	s := openIn(t, dir)
	file := filepath.Join(dir, database)
	mustCommit(t, s, 1, pod("a", 1), pod("b", 1))
	if err := s.AddUser(t.Context(), User{Name: "anna", Role: "admin", Created: s.now()}); err != nil {
		t.Fatal(err)
	}
	want := contents(t, s)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), Commit{Rev: 2, Rows: []Row{pod("lost", 2)}}); !errors.Is(err, ErrUnavailable) {
		t.Fatalf("a commit into the removed database: %v", err)
	}
	expect(t, contents(t, s), want...)
	_ = s.Close()
	again := openIn(t, dir)
	expect(t, contents(t, again), want...)
	if _, err := again.User(t.Context(), "anna"); err != nil {
		t.Fatal(err)
	}
	if r, err := again.Recovered(t.Context()); err != nil || r == nil {
		t.Fatalf("the replacement is not logged: %v", err)
	}
}

// If the database is moved away while its hub is stopped, the log stays, because it may hold the
// newest commits.
func TestTheLogOfAMissingDatabaseIsKept(t *testing.T) {
	dir, killed, kept := t.TempDir(), t.TempDir(), t.TempDir()
	s := openIn(t, dir)
	mustCommit(t, s, 1, pod("a", 1))
	want := contents(t, s)
	for _, name := range []string{database, database + "-wal", "secrets.key", highWaterFile} {
		if err := copyFile(filepath.Join(dir, name), filepath.Join(killed, name)); err != nil {
			t.Fatal(err)
		}
	}
	rename(t, filepath.Join(killed, database), filepath.Join(kept, database))
	empty := openIn(t, killed)
	r, err := empty.Recovered(t.Context())
	if err != nil || r == nil || r.Aside == "" {
		t.Fatalf("the log was not put aside: %+v, %v", r, err)
	}
	rename(t, r.Aside+"-wal", filepath.Join(kept, database+"-wal"))
	if err := copyFile(filepath.Join(dir, "secrets.key"), filepath.Join(kept, "secrets.key")); err != nil {
		t.Fatal(err)
	}
	expect(t, contents(t, openIn(t, kept)), want...)
}
