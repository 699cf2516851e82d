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

// A mounting is what the agent mounts itself on the device, all below its directory
// for what does not outlive a boot:
//
//   - that directory: a tmpfs, so that secrets never come to the flash;
//   - every emptyDir of medium Memory: a tmpfs of its own, with its size;
//   - for the moment in which a container is started, binds of what its paths led to
//     when they were checked (see subpath.go), as the kubelet's.
//
// It needs CAP_SYS_ADMIN in the mount namespace of the container engine. Where it
// has not got that, why says so, and what cannot be done safely is not done.
type mounting struct {
	dir   string
	may   bool   // mount at all: whoever made the agent has given it a directory for that
	why   string // why the agent does not mount; empty: it does
	count atomic.Uint64
}

const bindsDir = "binds"

// conditionVolumeMounts says whether the agent mounts. True is good.
const conditionVolumeMounts corev1.NodeConditionType = "VolumeMounts"

func (m *mounting) condition() corev1.NodeCondition {
	if m.why == "" {
		return corev1.NodeCondition{Type: conditionVolumeMounts, Status: corev1.ConditionTrue, Reason: "MountsAvailable",
			Message: "the agent mounts volumes"}
	}
	return corev1.NodeCondition{Type: conditionVolumeMounts, Status: corev1.ConditionFalse, Reason: "MountsUnavailable",
		Message: "secrets and volumes in memory lie in plain directories, and paths inside of what containers can write " +
			"are not mounted: " + m.why}
}

// prepare makes the directory, private to the agent's user and what runs as root.
func (m *mounting) prepare() error {
	if err := private(m.dir); err != nil {
		return err
	}
	switch {
	case !m.may:
		m.why = "the agent does not run as root: run it as root, as the unit that comes with this version does"
		return nil
	case !inFirstNamespace():
		m.why = "the agent has a mount namespace of its own, which containers do not see: take ProtectSystem= and its " +
			"like out of the agent's unit, or install the one that comes with this version"
		return nil
	}
	if err := m.clear(); err != nil {
		return err
	}
	// What an older agent has left in a plain directory is mounted by containers that run: it stays
	// until they have gone.
	if !isMounted(m.dir) && len(entries(filepath.Join(m.dir, "pods"))) == 0 {
		if m.refused(mountTmpfs(m.dir, "mode=0700,size=25%")) {
			return nil
		}
	}
	binds := filepath.Join(m.dir, bindsDir)
	if err := private(binds); err != nil {
		return err
	}
	// Private, so that a bind shows nowhere else, and taking it off takes off nothing else.
	if m.refused(mountTmpfs(binds, "mode=0700,size=1m")) || m.refused(unix.Mount("", binds, "", unix.MS_PRIVATE, "")) {
		return nil
	}
	return nil
}

// refused notes why mounting does not work.
func (m *mounting) refused(err error) bool {
	if err != nil {
		m.why = fmt.Sprintf(
			"the agent may not mount (%v): run it as root with CAP_SYS_ADMIN, as the unit that comes with this version does",
			err)
	}
	return err != nil
}

// bind mounts what a descriptor holds where nobody but the agent can change what is
// mounted, and says where. release takes it off again: a container that has been
// started has a mount of its own.
func (m *mounting) bind(f *os.File) (path string, release func() error, err error) {
	real, err := pathOf(f)
	if err != nil {
		return "", nil, err
	}
	if _, above := below(real, filepath.Join(m.dir, bindsDir)); above {
		// whoever may mount the agent's own directory needs no link to get anywhere
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

// unbind takes off a bind. What was mounted is never removed: not even where it could
// not be taken off.
func unbind(path string) error {
	_ = unix.Mount("", path, "", unix.MS_PRIVATE|unix.MS_REC, "") // of a crash before that; or it is no mount at all
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return os.Remove(path)
}

// clear takes off the binds that an agent before this one has left.
func (m *mounting) clear() error {
	binds := filepath.Join(m.dir, bindsDir)
	var errs []error
	for _, name := range entries(binds) {
		errs = append(errs, unbind(filepath.Join(binds, name)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return takeOff(binds)
}

// takeOff takes off every mount on a directory.
func takeOff(dir string) error {
	for isMounted(dir) {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", dir, err)
		}
	}
	return nil
}

// mountTmpfs mounts a tmpfs that is not swapped out to the flash, where the kernel can
// promise that (since 6.4).
func mountTmpfs(dir, options string) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV
	err := unix.Mount("flotilla", dir, "tmpfs", flags, options+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("flotilla", dir, "tmpfs", flags, options)
	}
	return err
}

// isMounted tells whether something of another file system is mounted on a directory.
func isMounted(dir string) bool {
	var here, above unix.Stat_t
	return unix.Lstat(dir, &here) == nil && unix.Lstat(filepath.Dir(dir), &above) == nil && here.Dev != above.Dev
}

// inFirstNamespace tells whether the agent is in the mount namespace of the device's
// first process, as container engines are. Ids of mounts are unique among namespaces.
func inFirstNamespace() bool {
	first, err := os.ReadFile("/proc/1/mountinfo")
	if err != nil {
		return true // not to be known; the engine will not find what it is to mount
	}
	own, err := os.ReadFile("/proc/self/mountinfo")
	id := func(b []byte) string { s, _, _ := strings.Cut(string(b), " "); return s }
	return err == nil && id(first) == id(own)
}

// private makes a directory, and makes it nobody else's business if it was.
func private(dir string) error {
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

// entries are the names in a directory; none where there is none.
func entries(dir string) (names []string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}
