package engine

import (
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The routes that the agent reads are of its first thread, whoever was in a container's network before.
func TestTheFirstThreadStaysInItsNetwork(t *testing.T) {
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Skip(err)
	}
	first := 0 // how often the caller was the first thread, which the runtime chooses
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
				done <- unix.Unshare(unix.CLONE_NEWUTS) // as harmless as a namespace can be
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
