package store

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A program that is being started has a copy of each open file until it is another program.
func TestALockThatIsGivenBackIsFreeWhoeverHasACopyOfItsFile(t *testing.T) {
	dir := t.TempDir()
	lock, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := unix.Dup(int(lock.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(copied) }()
	if again, err := takeLock(dir); err == nil {
		t.Error("it was taken twice")
		_ = again.Close()
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Close()
}
