package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A child process between fork and exec has a copy of each open file, also of the lock.
func TestAReleasedLockIsFreeDespiteCopiesOfItsFile(t *testing.T) {
	dir := t.TempDir()
	lock, err := takeLock(dir, anotherHub)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := unix.Dup(int(lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(copied) }()
	if again, err := takeLock(dir, anotherHub); err == nil {
		t.Error("the lock was taken twice")
		_ = again.Close()
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := takeLock(dir, anotherHub)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}

// A command that needs a stopped hub does not propose another data directory in its error.
func TestTheErrorOfALockedDirectoryNamesTheNextStep(t *testing.T) {
	o := Options{Dir: t.TempDir(), Version: "test"}
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	backup := filepath.Join(t.TempDir(), "b.db")
	if err := s.Backup(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	_, move := Move(t.Context(), o, "postgres://nobody@127.0.0.1:1/x")
	_, lock := Lock(o.Dir)
	for what, err := range map[string]error{"restore": Restore(t.Context(), o, backup), "move": move, "ca": lock} {
		if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "run this again, then start it") ||
			strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Open(t.Context(), o); !errors.Is(err, ErrLocked) ||
		!strings.Contains(err.Error(), "give this one another --data-dir") {
		t.Errorf("a second hub: %v", err)
	}
}

// Users may remove hub.lock, because it looks like a leftover.
func TestADatabaseHasOneHubWithoutItsLockFile(t *testing.T) {
	dir := t.TempDir()
	open := func() (*Store, error) { return Open(t.Context(), Options{Dir: dir, Version: "test"}) }
	first, err := open()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "hub.lock")); err != nil {
		t.Fatal(err)
	}
	if second, err := open(); !errors.Is(err, ErrLocked) {
		t.Errorf("a second hub begins on the same database: %v", err)
		if err == nil {
			_ = second.Close()
		}
	}
	if err := first.SetMeta(t.Context(), "k", "v"); err != nil {
		t.Error("the first hub cannot commit:", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := open()
	if err != nil {
		t.Fatal("after the first hub has ended:", err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}
