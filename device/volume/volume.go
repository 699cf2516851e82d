// Package volume makes the volumes of pods: directories on disk and in memory, files of ConfigMaps,
// Secrets and fields, host paths that the device's owner allows, persistent volumes, and copies of
// images.
//
// It never follows a link out of a volume, and never removes a file outside of its own directories.
// Package agent calls it.
package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"

	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/policy"
)

// A Disk holds the volumes of pods. Its directories are private to the agent: containers reach
// their volumes by mounts.
type Disk struct {
	Root     string       // directory for volumes that survive a reboot: emptyDir
	Memory   string       // directory for others: emptyDir of medium Memory, secrets, config maps
	MayMount bool         // the owner has given Memory for mounts
	Log      *slog.Logger // nil: no logs
	mounts   mounting

	locks  keyedLocks // one lock for each pod, since its containers start at the same time
	claims groupOwners
	images copies
}

// keyedLocks are locks by uid, so that a long change of one volume, perhaps of a million files,
// does not delay others.
type keyedLocks struct {
	mu sync.Mutex
	by map[types.UID]*queue
}

type queue struct {
	sync.Mutex
	users int // number of goroutines that hold the lock or wait for it; keyedLocks.mu guards users
}

// take locks a uid and returns the function that unlocks it.
func (t *keyedLocks) take(uid types.UID) (leave func()) {
	t.mu.Lock()
	if t.by == nil {
		t.by = map[types.UID]*queue{}
	}
	q := t.by[uid]
	if q == nil {
		q = &queue{}
		t.by[uid] = q
	}
	q.users++
	t.mu.Unlock()
	q.Lock()
	return func() {
		q.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if q.users--; q.users == 0 {
			delete(t.by, uid)
		}
	}
}

func (d *Disk) logger() *slog.Logger {
	if d.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Log
}

// PodsDir is the name of the directory, in Root and in Memory, with a directory for each pod's uid.
const PodsDir = "pods"

// Prepare makes the disk private, and mounts its tmpfs if the agent may mount.
func (d *Disk) Prepare() error {
	d.mounts.dir, d.mounts.may = d.Memory, d.MayMount
	err := errors.Join(makePrivate(filepath.Join(d.Root, PodsDir)), d.mounts.prepare())
	if err == nil {
		err = makePrivate(filepath.Join(d.Memory, PodsDir))
	}
	if err != nil && d.mounts.why == "" {
		d.mounts.why = err.Error()
	}
	return err
}

// NotMounting returns why the agent cannot mount; empty: it can.
func (d *Disk) NotMounting() string { return d.mounts.why }

// Condition reports whether all volumes can be mounted, and otherwise the next step. Pods are
// scheduled in both cases.
func (d *Disk) Condition() corev1.NodeCondition { return d.mounts.condition() }

// Binds returns the directory with the bind mounts of starting containers.
func (d *Disk) Binds() string { return filepath.Join(d.Memory, bindsDir) }

func (d *Disk) rootOf(v *corev1.Volume) string {
	if v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory {
		return d.Root
	}
	return d.Memory
}

func volumePath(pod types.UID, volume string) string {
	return filepath.Join(PodsDir, string(pod), volume)
}

// Dir returns the directory of a volume of a pod.
func (d *Disk) Dir(v *corev1.Volume, pod types.UID) string {
	return filepath.Join(d.rootOf(v), volumePath(pod, v.Name))
}

// Clean removes all files of a pod. A pod with an invalid uid has no files.
func (d *Disk) Clean(pod types.UID) error {
	if !podspec.IsUID(pod) {
		return nil
	}
	defer d.locks.take(pod)()
	of := filepath.Join(d.Memory, PodsDir, string(pod))
	if info, err := os.Lstat(of); err == nil && info.IsDir() {
		for _, name := range namesIn(of) {
			if err := unmountAll(filepath.Join(of, name)); err != nil {
				return err
			}
		}
	}
	var errs []error
	for _, root := range []string{d.Root, d.Memory} {
		r, err := os.OpenRoot(filepath.Join(root, PodsDir))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(removeTree(r, string(pod)), r.Close())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// RemoveVolumes removes all volumes of an agent that will not run again.
func RemoveVolumes(root, memory string) error {
	d := Disk{Root: root, Memory: memory}
	d.mounts.dir = memory
	errs := []error{d.mounts.clear()}
	for _, pod := range d.Pods() {
		errs = append(errs, d.Clean(pod))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := unmountAll(memory); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(memory), os.RemoveAll(filepath.Join(root, PodsDir)),
		os.RemoveAll(filepath.Join(root, imagesDir)))
}

// Pods lists the pods that have volumes on the disk.
func (d *Disk) Pods() []types.UID {
	var out []types.UID
	for _, root := range []string{d.Root, d.Memory} {
		for _, name := range namesIn(filepath.Join(root, PodsDir)) {
			out = append(out, types.UID(name))
		}
	}
	return out
}

// A volumePlace is an opened volume, or an opened path inside a volume.
type volumePlace struct {
	file     *os.File
	fixed    bool // no container can redirect the path
	readOnly bool
}

// volume prepares one volume.
func (d *Disk) volume(src podspec.Sources, v *corev1.Volume, owner policy.Document) (p volumePlace, err error) {
	if v.HostPath != nil {
		p.file, p.fixed, err = hostPath(v.HostPath, owner)
		return p, err
	}
	if !podspec.IsUID(src.Pod.UID) || len(validation.IsDNS1123Label(v.Name)) > 0 {
		return p, fmt.Errorf("volume %q of pod uid %q is not valid for a directory", v.Name, src.Pod.UID)
	}
	switch {
	case v.PersistentVolumeClaim != nil:
		return d.persistent(src, v)
	case v.Image != nil:
		return d.imageVolume(src, v)
	}
	defer d.locks.take(src.Pod.UID)()
	root, err := os.OpenRoot(d.rootOf(v))
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := root.MkdirAll(filepath.Dir(volumePath(src.Pod.UID, v.Name)), 0o700); err != nil {
		return p, err
	}
	p.fixed = true
	if v.EmptyDir != nil {
		err = d.emptyDir(root, src, v)
	} else {
		p.readOnly = true
		if err = writeVolume(root, src, v); err != nil {
			err = notWritten{err}
		}
	}
	if err != nil {
		return p, err
	}
	p.file, err = openPath(d.Dir(v, src.Pod.UID))
	return p, err
}

// groupOf returns the group of a pod's volumes; -1: no group.
func groupOf(pod *corev1.Pod) int {
	if s := pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		return int(*s.FSGroup)
	}
	return -1
}

// emptyDir makes the directory of an emptyDir, completely or not at all.
func (d *Disk) emptyDir(root *os.Root, src podspec.Sources, v *corev1.Volume) error {
	name, group := volumePath(src.Pod.UID, v.Name), groupOf(src.Pod)
	if v.EmptyDir.Medium == corev1.StorageMediumMemory && d.mounts.why == "" {
		path := filepath.Join(d.Memory, name)
		if isMounted(path) {
			return nil
		}
		if err := root.Mkdir(name, 0o700); err == nil || errors.Is(err, fs.ErrExist) && len(namesIn(path)) == 0 {
			options := fmt.Sprintf("mode=0777,%s", memorySize(src, v))
			if group >= 0 {
				options = fmt.Sprintf("mode=02777,gid=%d,%s", group, memorySize(src, v))
			}
			return mountTmpfs(path, options)
		} else if !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil // made by an agent that could not mount
	}
	if _, err := root.Lstat(name); err == nil {
		return nil
	}
	return newDir(root, volumePath(src.Pod.UID, ".new-"+v.Name), name, group)
}

// newDir makes a directory that every user, or a group, may write, completely or not at all.
func newDir(root *os.Root, fresh, name string, group int) error {
	mode := fs.FileMode(0o777)
	if group >= 0 {
		mode |= fs.ModeSetgid
	}
	if err := root.Mkdir(fresh, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if group >= 0 {
		if err := root.Lchown(fresh, -1, group); err != nil {
			return err
		}
	}
	if err := root.Chmod(fresh, mode); err != nil { // Mkdir has applied the umask
		return err
	}
	return root.Rename(fresh, name)
}

// memorySize returns the mount option for the size of an emptyDir in memory, like the kubelet: the
// volume's limit, but at most the pod's memory limit or the node's allocatable memory.
func memorySize(src podspec.Sources, v *corev1.Volume) string {
	size := src.Allocatable.Memory().Value()
	smaller := func(n int64) {
		if n > 0 && (size <= 0 || n < size) {
			size = n
		}
	}
	limits := resourcehelper.PodLimits(src.Pod, resourcehelper.PodResourcesOptions{})
	smaller(limits.Memory().Value())
	if q := v.EmptyDir.SizeLimit; q != nil {
		smaller(q.Value())
	}
	if size <= 0 {
		return "size=50%" // the kernel's default
	}
	return fmt.Sprintf("size=%d", size)
}

// Refresh updates the files of a pod's volumes.
func (d *Disk) Refresh(src podspec.Sources) error {
	var errs []error
	for i := range src.Pod.Spec.Volumes {
		v := &src.Pod.Spec.Volumes[i]
		if v.HostPath != nil || v.EmptyDir != nil || v.PersistentVolumeClaim != nil || v.Image != nil ||
			!podspec.IsUID(src.Pod.UID) {
			continue
		}
		if _, err := os.Stat(d.Dir(v, src.Pod.UID)); err != nil {
			continue // the volume is not mounted yet
		}
		p, err := d.volume(src, v, policy.Document{})
		if err == nil {
			err = p.file.Close()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}
