package hardware

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The engine's images may be on a remote disk whose server is lost. Memory, the agent's own disk
// and the hardware must still be read.
func TestAHangingFileSystemBlocksNothing(t *testing.T) {
	dead := t.TempDir()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("cannot mount a hanging file system here: ", err)
	}
	endServer := func() { _ = unix.Close(fd) } // ends the file system's server, so that reads return
	if err := unix.Mount("dead", dead, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0",
		fd)); err != nil {
		endServer()
		t.Skip("cannot mount a hanging file system here: ", err)
	}
	t.Cleanup(func() {
		endServer()
		_ = unix.Unmount(dead, unix.MNT_DETACH)
	})
	o := Options{StateDir: t.TempDir(), EngineRoot: filepath.Join(dead, "docker")}
	done := make(chan struct{})
	var s Stats
	var r Report
	go func() {
		defer close(done)
		for range 3 { // the second and third call find the pending read
			s = Measure(t.Context(), o)
		}
		r, err = Probe(t.Context(), o)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		endServer()
		<-done
		t.Fatal("Measure or Probe waits for the hanging file system")
	}
	if !strings.Contains(s.ImageFs.Problem, "no answer") || s.NodeFs.Problem != "" || s.NodeFs.Capacity == 0 ||
		s.Memory.Capacity == 0 {
		t.Errorf("the stats are %+v, want all but the engine's file system", s)
	}
	if err != nil || r.Capacity.Memory == 0 || r.Capacity.Ephemeral != 0 ||
		!strings.Contains(strings.Join(r.Problems, "; "), "docker: no answer") {
		t.Errorf("Probe returns %v, capacity %+v, problems %q; want all but the engine's file system", err, r.Capacity,
			r.Problems)
	}
}
