package memory

import (
	"log/slog"
	"syscall"
	"testing"
)

// A starting child process holds copies of open files until its exec.
func TestAReleasedStateDirectoryIsFreeDespiteCopiesOfItsLock(t *testing.T) {
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	m, err := Open(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := syscall.Dup(int(m.lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(copied) }()
	if again, err := Open(dir, log); err == nil {
		t.Error("it was locked twice")
		_ = again.Close()
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}
