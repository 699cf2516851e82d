package cli

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheVolatileDirectoryIsInMemory(t *testing.T) {
	tmpfs, disk := t.TempDir(), t.TempDir()
	if err := unix.Mount("test", tmpfs, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("cannot mount a tmpfs: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(tmpfs, unix.MNT_DETACH) })
	if inMemory(disk) {
		t.Skip("the tests' directory is in memory")
	}
	for _, c := range []struct {
		name            string
		user            int
		runtime, shared string
		want            string
	}{
		{"root mounts a tmpfs below /run", 0, disk, disk, "/run/flotilla/var-lib-x"},
		{"a user has a runtime directory", 1000, tmpfs, disk, tmpfs + "/flotilla/var-lib-x"},
		{"a runtime directory on a disk does not count", 1000, disk, tmpfs, tmpfs + "/flotilla-1000-var-lib-x"},
		{"without a runtime directory the shared one is used", 1000, "", tmpfs, tmpfs + "/flotilla-1000-var-lib-x"},
		{"a device without a tmpfs", 1000, "/none", disk, ""},
	} {
		if got := volatileOf("/var/lib/x", c.user, c.runtime, c.shared); got != c.want {
			t.Errorf("%s: the directory is %q, want %q", c.name, got, c.want)
		}
	}
}
