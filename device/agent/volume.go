package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	resourcehelper "k8s.io/component-helpers/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
)

// hasLiveVolumes tells whether a pod has files that follow what they are made of.
func hasLiveVolumes(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
	})
}

// A disk is where the volumes of pods are. Its directories belong to the agent alone:
// containers get to their volumes by mounts, other users of the device not at all.
type disk struct {
	root   string // survives a reboot: emptyDir
	memory string // does not: emptyDir of medium Memory, secrets, config maps
	mounts mounting

	making turns // of volumes, by pod: its containers start at the same time
	claims claimed
}

// turns lets one at a time do something with what has a uid, and nobody wait for what is done with anything else: that
// may be a million files.
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

const podsDir = "pods"

// prepare makes the disk private and ready for mounts, where the agent may mount.
func (d *disk) prepare() error {
	d.mounts.dir = d.memory
	err := errors.Join(private(filepath.Join(d.root, podsDir)), d.mounts.prepare())
	if err == nil {
		err = private(filepath.Join(d.memory, podsDir))
	}
	if err != nil && d.mounts.why == "" {
		d.mounts.why = err.Error()
	}
	return err
}

func (d *disk) rootOf(v *corev1.Volume) string {
	if v.EmptyDir != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory {
		return d.root
	}
	return d.memory
}

func volumePath(pod types.UID, volume string) string {
	return filepath.Join(podsDir, string(pod), volume)
}

func (d *disk) dir(v *corev1.Volume, pod types.UID) string {
	return filepath.Join(d.rootOf(v), volumePath(pod, v.Name))
}

// clean removes everything of a pod. Of a pod whose uid is none there is nothing.
func (d *disk) clean(pod types.UID) error {
	if !podspec.IsUID(pod) {
		return nil
	}
	defer d.making.take(pod)()
	of := filepath.Join(d.memory, podsDir, string(pod))
	if info, err := os.Lstat(of); err == nil && info.IsDir() {
		for _, name := range entries(of) {
			if err := takeOff(filepath.Join(of, name)); err != nil {
				return err
			}
		}
	}
	var errs []error
	for _, root := range []string{d.root, d.memory} {
		r, err := os.OpenRoot(filepath.Join(root, podsDir))
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
	d := disk{root: root, memory: memory}
	d.mounts.dir = memory
	errs := []error{d.mounts.clear()}
	for _, pod := range d.pods() {
		errs = append(errs, d.clean(pod))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := takeOff(memory); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(memory), os.RemoveAll(filepath.Join(root, podsDir)), os.RemoveAll(filepath.Join(root, imagesDir)))
}

// pods lists the pods that have volumes on the disk.
func (d *disk) pods() []types.UID {
	var out []types.UID
	for _, root := range []string{d.root, d.memory} {
		for _, name := range entries(filepath.Join(root, podsDir)) {
			out = append(out, types.UID(name))
		}
	}
	return out
}

// A mounted is what a container is to mount, for as long as it is being started.
type mounted struct {
	mounts  []engine.Mount
	closing []func() error
}

// close takes off what is needed for starting only.
func (m *mounted) close() error {
	var errs []error
	for _, f := range m.closing {
		errs = append(errs, f())
	}
	m.closing = nil
	return errors.Join(errs...)
}

// errSubPath is what no volume can mend: the container asks for a path that it cannot have.
var errSubPath = errors.New("subPath")

// mountedBy finds the volume that a container mounts.
func mountedBy(src podspec.Sources, c *corev1.Container, m corev1.VolumeMount) (*corev1.Volume, error) {
	i := slices.IndexFunc(src.Pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
	if i < 0 {
		return nil, fmt.Errorf("container %s mounts volume %q, which the pod does not have", c.Name, m.Name)
	}
	return &src.Pod.Spec.Volumes[i], nil
}

// notWritten is why a volume of files is not up to date.
type notWritten struct{ error }

func (e notWritten) Unwrap() error { return e.error }

// mount prepares one volume for a container. As with the kubelet the files that the pod has had do where it cannot have
// others now: a secret that was deleted does not end what runs with it. Why they are old, refresh tells.
func (d *disk) mount(src podspec.Sources, v *corev1.Volume, policy Policy) (volumePlace, error) {
	p, err := d.volume(src, v, policy)
	if errors.As(err, &notWritten{}) {
		dir := d.dir(v, src.Pod.UID)
		if _, e := os.Stat(filepath.Join(dir, dataLink)); e == nil {
			p.file, err = hold(dir)
		}
	}
	if err != nil {
		return p, fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", v.Name, err)
	}
	return p, nil
}

// setUp prepares the volumes that a container mounts, but for images, which are pulled first.
func (d *disk) setUp(src podspec.Sources, c *corev1.Container, policy Policy) error {
	for _, m := range c.VolumeMounts {
		v, err := mountedBy(src, c, m)
		if err != nil {
			return err
		}
		if v.Image != nil {
			continue
		}
		p, err := d.mount(src, v, policy)
		if err == nil {
			err = p.file.Close()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prepareMounts prepares the volumes that a container mounts and says where they are.
// The caller closes what it gets, also with an error.
func (d *disk) prepareMounts(src podspec.Sources, c *corev1.Container, policy Policy) (*mounted, error) {
	out := &mounted{}
	for _, m := range c.VolumeMounts {
		v, err := mountedBy(src, c, m)
		if err != nil {
			return out, err
		}
		p, err := d.mount(src, v, policy)
		if err != nil {
			return out, err
		}
		out.closing = append(out.closing, p.file.Close)
		sub := m.SubPath
		if m.SubPathExpr != "" {
			_, values, err := src.Environment(c)
			if err != nil {
				return out, err
			}
			if sub, err = podspec.ExpandSubPath(m.SubPathExpr, values); err != nil {
				return out, fmt.Errorf("%w of volume %q: %w", errSubPath, v.Name, err)
			}
		}
		if sub != "" {
			p.file, err = within(p.file, sub, p.readOnly)
			if of := objectsOf(v); of != "" && errors.Is(err, fs.ErrNotExist) {
				err = fmt.Errorf("%s has no key for the path %q: add it there, or correct the subPath", of, sub)
			}
			if err != nil {
				return out, fmt.Errorf("%w of volume %q: %w", errSubPath, v.Name, err)
			}
			out.closing = append(out.closing, p.file.Close)
			p.fixed = p.fixed && p.readOnly
		}
		source, err := d.source(p, out)
		if err != nil {
			return out, fmt.Errorf("volume %q: %w", v.Name, err)
		}
		out.mounts = append(out.mounts, engine.Mount{Source: source, Target: m.MountPath, ReadOnly: m.ReadOnly || p.readOnly})
	}
	return out, nil
}

// objectsOf names what the files of a volume come from; "" where it is no object of the hub.
func objectsOf(v *corev1.Volume) string {
	var names []string
	secret := func(name string) { names = append(names, fmt.Sprintf("secret %q", name)) }
	configMap := func(name string) { names = append(names, fmt.Sprintf("configmap %q", name)) }
	switch {
	case v.Secret != nil:
		secret(v.Secret.SecretName)
	case v.ConfigMap != nil:
		configMap(v.ConfigMap.Name)
	case v.Projected != nil:
		for _, p := range v.Projected.Sources {
			if p.Secret != nil {
				secret(p.Secret.Name)
			} else if p.ConfigMap != nil {
				configMap(p.ConfigMap.Name)
			}
		}
	}
	return strings.Join(names, ", ")
}

// source is a path that leads an engine to where a volume was found, and to nothing else.
func (d *disk) source(p volumePlace, out *mounted) (string, error) {
	if p.fixed {
		return pathOf(p.file)
	}
	if d.mounts.why != "" {
		return "", fmt.Errorf("a path inside of what containers can write is not mounted, as they could turn it elsewhere meanwhile: %s", d.mounts.why)
	}
	path, release, err := d.mounts.bind(p.file)
	if err != nil {
		return "", err
	}
	out.closing = append(out.closing, release)
	return path, nil
}

// A volumePlace is where a volume, or something in it, was found.
type volumePlace struct {
	file     *os.File
	fixed    bool // no container can turn its path elsewhere
	readOnly bool
}

// volume prepares one volume.
func (d *disk) volume(src podspec.Sources, v *corev1.Volume, policy Policy) (p volumePlace, err error) {
	if v.HostPath != nil {
		p.file, p.fixed, err = hostPath(v.HostPath, policy)
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
	p.file, err = hold(d.dir(v, src.Pod.UID))
	return p, err
}

// groupOf is the group that a pod's volumes belong to; -1: none.
func groupOf(pod *corev1.Pod) int {
	if s := pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		return int(*s.FSGroup)
	}
	return -1
}

// writeVolume makes the directory of a volume of files hold what it should.
func writeVolume(root *os.Root, src podspec.Sources, v *corev1.Volume) error {
	files, err := src.Files(v)
	if err != nil {
		return err
	}
	name := volumePath(src.Pod.UID, v.Name)
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := root.Chmod(name, 0o755); err != nil { // whatever the umask is
		return err
	}
	dir, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	return errors.Join(writeFiles(dir, files, groupOf(src.Pod)), dir.Close())
}

// emptyDir makes the directory of an emptyDir, whole or not at all.
func (d *disk) emptyDir(root *os.Root, src podspec.Sources, v *corev1.Volume) error {
	name, group := volumePath(src.Pod.UID, v.Name), groupOf(src.Pod)
	if v.EmptyDir.Medium == corev1.StorageMediumMemory && d.mounts.why == "" {
		path := filepath.Join(d.memory, name)
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

// refresh brings the files of a pod's volumes up to date.
func (d *disk) refresh(src podspec.Sources) error {
	var errs []error
	for i := range src.Pod.Spec.Volumes {
		v := &src.Pod.Spec.Volumes[i]
		if v.HostPath != nil || v.EmptyDir != nil || v.PersistentVolumeClaim != nil || v.Image != nil || !podspec.IsUID(src.Pod.UID) {
			continue
		}
		if _, err := os.Stat(d.dir(v, src.Pod.UID)); err != nil {
			continue // nothing mounts it yet
		}
		p, err := d.volume(src, v, Policy{})
		if err == nil {
			err = p.file.Close()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("volume %q: %w", v.Name, err))
		}
	}
	return errors.Join(errs...)
}
