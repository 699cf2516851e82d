package engine

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The agent reads routes through its first thread, which therefore never enters a container's
// network.
func TestTheFirstThreadStaysInItsNetwork(t *testing.T) {
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Skip(err)
	}
	first := 0 // how often the caller ran on the first thread
	for range 5000 {
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			isFirst := unix.Gettid() == unix.Getpid()
			runtime.UnlockOSThread()
			onItsOwnThread(func() {
				if isFirst {
					first++
				}
				if unix.Gettid() == unix.Getpid() {
					t.Error("do ran on the first thread")
				}
				done <- unix.Unshare(unix.CLONE_NEWUTS) // unshare a harmless namespace
			})
		}()
		if err := <-done; err != nil {
			t.Skipf("cannot create a namespace here: %v", err)
		}
		if first > 3 || t.Failed() {
			break
		}
	}
	if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != before {
		t.Errorf("the first thread's network is %s, was %s: %v", now, before, err)
	}
	t.Logf("the caller ran %d times on the first thread", first)
}
