// Package volume makes what the containers of pods mount: directories in memory and on the disk,
// the files of ConfigMaps, Secrets and fields, host paths that the device's owner allows,
// persistent volumes, copies of images, and the files of
// follows a link out of a volume, and removes nothing outside of its own directories. Package agent
// calls it.
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

// A Disk is where the volumes of pods are. Its directories belong to the agent alone:
// containers get to their volumes by mounts, other users of the device not at all.
type Disk struct {
	Root     string       // survives a reboot: emptyDir
	Memory   string       // does not: emptyDir of medium Memory, secrets, config maps
	MayMount bool         // whoever made the agent has given it memory for that
	Log      *slog.Logger // nil: nothing is said
	mounts   mounting

	making turns // of volumes, by pod: its containers start at the same time
	claims claimed
	images copies
}

// turns lets one at a time do something with what has a uid, and nobody wait for what is done with
// anything else: that may be a million files.
type turns struct {
	mu sync.Mutex
	by map[types.UID]*queue
}

type queue struct {
	sync.Mutex
	there int // in it, and before it; turns.mu guards it
}

// take waits for its turn, and gives it to the next with leave.
func (t *turns) take(uid types.UID) (leave func()) {
	t.mu.Lock()
	if t.by == nil {
		t.by = map[types.UID]*queue{}
	}
	q := t.by[uid]
	if q == nil {
		q = &queue{}
		t.by[uid] = q
	}
	q.there++
	t.mu.Unlock()
	q.Lock()
	return func() {
		q.Unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		if q.there--; q.there == 0 {
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

// PodsDir is where, in both directories of a Disk, the directories of pods are, each named by its
// uid.
const PodsDir = "pods"

// Prepare makes the disk private and ready for mounts, where the agent may mount.
func (d *Disk) Prepare() error {
	d.mounts.dir, d.mounts.may = d.Memory, d.MayMount
	err := errors.Join(private(filepath.Join(d.Root, PodsDir)), d.mounts.prepare())
	if err == nil {
		err = private(filepath.Join(d.Memory, PodsDir))
	}
	if err != nil && d.mounts.why == "" {
		d.mounts.why = err.Error()
	}
	return err
}

// NotMounting is why the agent mounts nothing; empty: it does.
func (d *Disk) NotMounting() string { return d.mounts.why }

// Condition says whether all volumes can be mounted on the node, and what to do where they cannot.
// It is no reason not to send pods there.
func (d *Disk) Condition() corev1.NodeCondition { return d.mounts.condition() }

// Binds is the directory of what is mounted for the moment in which a container is started.
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

// Dir is the directory of a volume of a pod.
func (d *Disk) Dir(v *corev1.Volume, pod types.UID) string {
	return filepath.Join(d.rootOf(v), volumePath(pod, v.Name))
}

// Clean removes everything of a pod. Of a pod whose uid is none there is nothing.
func (d *Disk) Clean(pod types.UID) error {
	if !podspec.IsUID(pod) {
		return nil
	}
	defer d.making.take(pod)()
	of := filepath.Join(d.Memory, PodsDir, string(pod))
	if info, err := os.Lstat(of); err == nil && info.IsDir() {
		for _, name := range entries(of) {
			if err := takeOff(filepath.Join(of, name)); err != nil {
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

// RemoveVolumes removes all volumes of an agent that is gone for good.
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
	if err := takeOff(memory); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(memory), os.RemoveAll(filepath.Join(root, PodsDir)),
		os.RemoveAll(filepath.Join(root, imagesDir)))
}

// Pods lists the pods that have volumes on the disk.
func (d *Disk) Pods() []types.UID {
	var out []types.UID
	for _, root := range []string{d.Root, d.Memory} {
		for _, name := range entries(filepath.Join(root, PodsDir)) {
			out = append(out, types.UID(name))
		}
	}
	return out
}

// A volumePlace is where a volume, or something in it, was found.
type volumePlace struct {
	file     *os.File
	fixed    bool // no container can turn its path elsewhere
	readOnly bool
}

// volume prepares one volume.
func (d *Disk) volume(src podspec.Sources, v *corev1.Volume, owner policy.Document) (p volumePlace, err error) {
	if v.HostPath != nil {
		p.file, p.fixed, err = hostPath(v.HostPath, owner)
		return p, err
	}
	if !podspec.IsUID(src.Pod.UID) || len(validation.IsDNS1123Label(v.Name)) > 0 {
		return p, fmt.Errorf("no directory is made for volume %q of pod %q: such names lead elsewhere", v.Name, src.Pod.UID)
	}
	switch {
	case v.PersistentVolumeClaim != nil:
		return d.persistent(src, v)
	case v.Image != nil:
		return d.imageVolume(src, v)
	}
	defer d.making.take(src.Pod.UID)()
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
	p.file, err = hold(d.Dir(v, src.Pod.UID))
	return p, err
}

// groupOf is the group that a pod's volumes belong to; -1: none.
func groupOf(pod *corev1.Pod) int {
	if s := pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		return int(*s.FSGroup)
	}
	return -1
}

// emptyDir makes the directory of an emptyDir, whole or not at all.
func (d *Disk) emptyDir(root *os.Root, src podspec.Sources, v *corev1.Volume) error {
	name, group := volumePath(src.Pod.UID, v.Name), groupOf(src.Pod)
	if v.EmptyDir.Medium == corev1.StorageMediumMemory && d.mounts.why == "" {
		path := filepath.Join(d.Memory, name)
		if isMounted(path) {
			return nil
		}
		if err := root.Mkdir(name, 0o700); err == nil || errors.Is(err, fs.ErrExist) && len(entries(path)) == 0 {
			options := fmt.Sprintf("mode=0777,%s", memorySize(src, v))
			if group >= 0 {
				options = fmt.Sprintf("mode=02777,gid=%d,%s", group, memorySize(src, v))
			}
			return mountTmpfs(path, options)
		} else if !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil // of an agent that did not mount
	}
	if _, err := root.Lstat(name); err == nil {
		return nil
	}
	return newDir(root, volumePath(src.Pod.UID, ".new-"+v.Name), name, group)
}

// newDir makes a directory that everybody may use, and a group's, whole or not at all.
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
	if err := root.Chmod(fresh, mode); err != nil { // whatever the umask is
		return err
	}
	return root.Rename(fresh, name)
}

// memorySize is how big an emptyDir in memory may become: as the kubelet's, what the
// volume says, but no more than the pod's memory limit or the device has for pods.
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

// Refresh brings the files of a pod's volumes up to date.
func (d *Disk) Refresh(src podspec.Sources) error {
	var errs []error
	for i := range src.Pod.Spec.Volumes {
		v := &src.Pod.Spec.Volumes[i]
		if v.HostPath != nil || v.EmptyDir != nil || v.PersistentVolumeClaim != nil || v.Image != nil ||
			!podspec.IsUID(src.Pod.UID) {
			continue
		}
		if _, err := os.Stat(d.Dir(v, src.Pod.UID)); err != nil {
			continue // nothing mounts it yet
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
