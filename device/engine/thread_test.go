package engine

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The agent reads the routes of its first thread, which never enters a container's network.
func TestTheFirstThreadStaysInItsNetwork(t *testing.T) {
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Skip(err)
	}
	first := 0 // how often the runtime chose the first thread for the caller
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
					t.Error("the first thread was taken")
				}
				done <- unix.Unshare(unix.CLONE_NEWUTS) // a harmless namespace
			})
		}()
		if err := <-done; err != nil {
			t.Skipf("this machine makes no namespace: %v", err)
		}
		if first > 3 || t.Failed() {
			break
		}
	}
	if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != before {
		t.Errorf("the network is %s, was %s: %v", now, before, err)
	}
	t.Logf("%d times from the first thread", first)
}
