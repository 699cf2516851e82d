package hardware

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The engine's images may be on a remote disk whose server is gone. Memory, the agent's own disk
// and the hardware are still read.
func TestAFileSystemThatHangsIsNotWaitedFor(t *testing.T) {
	dead := t.TempDir()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no file system that hangs can be made here: ", err)
	}
	answers := func() { _ = unix.Close(fd) } // its server is gone
	if err := unix.Mount("dead", dead, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		answers()
		t.Skip("no file system that hangs can be made here: ", err)
	}
	t.Cleanup(func() {
		answers()
		_ = unix.Unmount(dead, unix.MNT_DETACH)
	})
	o := Options{StateDir: t.TempDir(), EngineRoot: filepath.Join(dead, "docker")}
	done := make(chan struct{})
	var s Stats
	var r Report
	go func() {
		defer close(done)
		for range 3 { // the pending read is started once
			s = Measure(t.Context(), o)
		}
		r, err = Probe(t.Context(), o)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		answers()
		<-done
		t.Fatal("it was waited for")
	}
	if !strings.Contains(s.ImageFs.Problem, "no answer") || s.NodeFs.Problem != "" || s.NodeFs.Capacity == 0 || s.Memory.Capacity == 0 {
		t.Errorf("measured: %+v", s)
	}
	if err != nil || r.Capacity.Memory == 0 || r.Capacity.Ephemeral != 0 || !strings.Contains(strings.Join(r.Problems, "; "), "docker: no answer") {
		t.Errorf("seen: %v, %+v, %q", err, r.Capacity, r.Problems)
	}
}
