package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// A mounting holds the agent's own mounts, all below its directory for files that must not survive
// a reboot:
//
//   - that directory: a tmpfs, so that secrets are never on the flash;
//   - each emptyDir of medium Memory: a tmpfs with its size;
//   - while a container starts: bind mounts of its checked subpaths (see subpath.go), like the
//     kubelet's.
//
// Mounting needs CAP_SYS_ADMIN in the mount namespace of the container engine. Without that, why
// has the reason, and unsafe mounts are refused.
type mounting struct {
	dir   string
	may   bool   // the owner has given a directory for mounts
	why   string // why the agent cannot mount; empty: it can
	count atomic.Uint64
}

const bindsDir = "binds"

// conditionVolumeMounts is the condition that reports whether the agent mounts; True means good.
const conditionVolumeMounts corev1.NodeConditionType = "VolumeMounts"

func (m *mounting) condition() corev1.NodeCondition {
	if m.why == "" {
		return corev1.NodeCondition{Type: conditionVolumeMounts, Status: corev1.ConditionTrue, Reason: "MountsAvailable",
			Message: "the agent mounts volumes"}
	}
	return corev1.NodeCondition{Type: conditionVolumeMounts, Status: corev1.ConditionFalse, Reason: "MountsUnavailable",
		Message: "secrets and volumes in memory use plain directories, and subpaths that containers can write " +
			"are not mounted: " + m.why}
}

// prepare makes the directory, private to the agent's user and root.
func (m *mounting) prepare() error {
	if err := makePrivate(m.dir); err != nil {
		return err
	}
	switch {
	case !m.may:
		m.why = "the agent does not run as root: run it as root, as the unit of this version does"
		return nil
	case !inFirstNamespace():
		m.why = "the agent has a mount namespace of its own, which containers do not see: remove ProtectSystem= and " +
			"the like from the agent's unit, or install the unit of this version"
		return nil
	}
	if err := m.clear(); err != nil {
		return err
	}
	// Running containers may use an older agent's plain directories, so keep those until the
	// containers have ended.
	if !isMounted(m.dir) && len(namesIn(filepath.Join(m.dir, "pods"))) == 0 {
		if m.refused(mountTmpfs(m.dir, "mode=0700,size=25%")) {
			return nil
		}
	}
	binds := filepath.Join(m.dir, bindsDir)
	if err := makePrivate(binds); err != nil {
		return err
	}
	// The mount is private, so that binds appear and disappear only here.
	if m.refused(mountTmpfs(binds, "mode=0700,size=1m")) || m.refused(unix.Mount("", binds, "", unix.MS_PRIVATE, "")) {
		return nil
	}
	return nil
}

// refused records why a mount has failed.
func (m *mounting) refused(err error) bool {
	if err != nil {
		m.why = fmt.Sprintf(
			"the agent may not mount (%v): run it as root with CAP_SYS_ADMIN, as the unit of this version does",
			err)
	}
	return err != nil
}

// bind mounts an open file at a path that only the agent can change. release unmounts it again,
// because a started container has its own mount.
func (m *mounting) bind(f *os.File) (path string, release func() error, err error) {
	real, err := pathOf(f)
	if err != nil {
		return "", nil, err
	}
	if _, above := relativeTo(real, filepath.Join(m.dir, bindsDir)); above {
		// A pod that may mount the agent's own directory can access every volume anyway.
		return real, func() error { return nil }, nil
	}
	info, err := f.Stat()
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(m.dir, bindsDir, strconv.FormatUint(m.count.Add(1), 10))
	if info.IsDir() {
		err = os.Mkdir(path, 0o700)
	} else {
		err = os.WriteFile(path, nil, 0o600)
	}
	if err != nil {
		return "", nil, err
	}
	release = func() error { return unbind(path) }
	if err := unix.Mount(viaProc(f), path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return "", nil, errors.Join(fmt.Errorf("mount %s: %w", real, err), os.Remove(path))
	}
	if err := unix.Mount("", path, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return "", nil, errors.Join(fmt.Errorf("mount %s: %w", real, err), release())
	}
	return path, release, nil
}

// unbind unmounts a bind. It removes only the empty mount point, never the content.
func unbind(path string) error {
	_ = unix.Mount("", path, "", unix.MS_PRIVATE|unix.MS_REC, "") // fails without a mount
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return os.Remove(path)
}

// clear unmounts the binds of an earlier agent.
func (m *mounting) clear() error {
	binds := filepath.Join(m.dir, bindsDir)
	var errs []error
	for _, name := range namesIn(binds) {
		errs = append(errs, unbind(filepath.Join(binds, name)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return unmountAll(binds)
}

// unmountAll unmounts every file system mounted on a directory.
func unmountAll(dir string) error {
	for isMounted(dir) {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	return nil
}

// mountTmpfs mounts a tmpfs that is not swapped out, if the kernel supports that (6.4).
func mountTmpfs(dir, options string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	err := unix.Mount("flotilla", dir, "tmpfs", flags, options+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("flotilla", dir, "tmpfs", flags, options)
	}
	return err
}

// isMounted reports whether a directory is a mount point.
func isMounted(dir string) bool {
	var here, above unix.Stat_t
	return unix.Lstat(dir, &here) == nil && unix.Lstat(filepath.Dir(dir), &above) == nil && here.Dev != above.Dev
}

// inFirstNamespace reports whether the agent is in the mount namespace of process 1, where
// container engines run. Mount ids are unique across namespaces.
func inFirstNamespace() bool {
	first, err := os.ReadFile("/proc/1/mountinfo")
	if err != nil {
		return true // unknown; if the mounts are missing there, the engine reports it
	}
	own, err := os.ReadFile("/proc/self/mountinfo")
	id := func(b []byte) string { s, _, _ := strings.Cut(string(b), " "); return s }
	return err == nil && id(first) == id(own)
}

// makePrivate makes a directory with mode 0700, or sets this mode if the directory exists.
func makePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return &fs.PathError{Op: "use", Path: dir, Err: unix.ENOTDIR}
	case info.Mode().Perm()&0o077 == 0:
		return nil
	}
	return os.Chmod(dir, 0o700)
}

// namesIn returns the names in a directory; nil if the directory is missing.
func namesIn(dir string) (names []string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}
