package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// volatileDir returns a directory in memory for secrets and memory volumes, so that they never
// reach the flash. Root gets a new tmpfs below /run; other users get a directory on an existing
// tmpfs. It returns "" if the device has no tmpfs.
func volatileDir(stateDir string) string {
	return volatileOf(stateDir, os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR"), "/dev/shm")
}

func volatileOf(stateDir string, user int, runtimeDir, shared string) string {
	name := strings.ReplaceAll(strings.Trim(stateDir, "/"), "/", "-")
	if user == 0 {
		if info, err := os.Stat("/run"); err != nil || !info.IsDir() {
			return ""
		}
		return filepath.Join("/run/flotilla", name)
	}
	if filepath.IsAbs(runtimeDir) && inMemory(runtimeDir) {
		return filepath.Join(runtimeDir, "flotilla", name)
	}
	if inMemory(shared) { // the directory is shared: other users can create files in it
		return filepath.Join(shared, fmt.Sprintf("flotilla-%d-%s", user, name))
	}
	return ""
}

// inMemory reports whether a directory is writable and on a file system that never uses a disk.
func inMemory(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && slices.Contains([]int64{unix.TMPFS_MAGIC, unix.RAMFS_MAGIC}, int64(fs.Type)) &&
		unix.Access(dir, unix.W_OK) == nil
}
