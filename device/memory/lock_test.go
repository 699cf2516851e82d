package memory

import (
	"log/slog"
	"syscall"
	"testing"
)

// A program that is being started has a copy of each open file until it is another program.
func TestAStateDirectoryThatIsGivenBackIsFreeWhoeverHasACopyOfItsLock(t *testing.T) {
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
		t.Error("it was taken twice")
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
