package memory

import (
	"log/slog"
	"syscall"
	"testing"
)

// A starting child process has copies of open files until its exec.
func TestAReleasedLockIsFreeDespiteCopiesOfItsFile(t *testing.T) {
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
	if second, err := Open(dir, log); err == nil {
		t.Error("the directory was locked twice")
		_ = second.Close()
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
