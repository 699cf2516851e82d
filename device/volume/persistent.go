package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fsync"
	"flotilla.dev/shared/wire"
)

// PersistentDir is where, in the state directory, the persistent volumes are: a directory
// each, named by its uid. They outlive pods, agents and enrolments, and go by one word of
// the hub alone: that this one is to be removed. Nothing follows from one not being named.
const PersistentDir = "persistent"

// A claimed is which pod's group persistent volumes have been given to, by uid.
type claimed struct {
	turns // by volume
	given struct {
		sync.Mutex
		to map[types.UID]types.UID
	}
}

// has tells whether a volume was given to a pod's group last.
func (c *claimed) has(volume, pod types.UID) bool {
	c.given.Lock()
	defer c.given.Unlock()
	return c.given.to[volume] == pod
}

func (c *claimed) give(volume, pod types.UID) {
	c.given.Lock()
	defer c.given.Unlock()
	if c.given.to == nil {
		c.given.to = map[types.UID]types.UID{}
	}
	c.given.to[volume] = pod
}

// persistent opens the volume that a pod claims, and makes its directory at its first use.
func (d *Disk) persistent(src podspec.Sources, v *corev1.Volume) (p volumePlace, err error) {
	claim := v.PersistentVolumeClaim
	i := slices.IndexFunc(src.Volumes, func(have wire.Volume) bool {
		return have.Namespace == src.Pod.Namespace && have.Claim == claim.ClaimName && !have.Remove
	})
	if i < 0 {
		return p, fmt.Errorf("persistentvolumeclaim %q has no volume on this device", claim.ClaimName)
	}
	want := src.Volumes[i]
	if !podspec.IsUID(want.UID) {
		return p, fmt.Errorf("no directory is made for volume %q: such names lead elsewhere", want.UID)
	}
	defer d.claims.take(want.UID)()
	parent, name := filepath.Join(d.Root, PersistentDir), string(want.UID)
	if err := private(parent); err != nil {
		return p, err
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	group := groupOf(src.Pod)
	switch info, e := root.Lstat(name); {
	case e == nil && !info.IsDir():
		return p, fmt.Errorf("%s is no directory", filepath.Join(parent, name))
	case e == nil:
		if err := d.regroup(root, want.UID, info, src.Pod); err != nil {
			return p, fmt.Errorf("give the volume to group %d: %w", group, err)
		}
	case !errors.Is(e, fs.ErrNotExist):
		return p, e
	case want.Made:
		return p, fmt.Errorf("the data of persistentvolumeclaim %q is not on this device any more: %s is missing; put "+
			"it back, or delete the claim to begin anew",
			claim.ClaimName, filepath.Join(parent, name))
	default:
		if err := newDir(root, ".new-"+name, name, group); err != nil {
			return p, err
		}
		if err := errors.Join(fsync.Dir(parent), fsync.Dir(d.Root)); err != nil {
			return p, err
		}
	}
	p.fixed, p.readOnly = true, claim.ReadOnly
	p.file, err = hold(filepath.Join(parent, name))
	return p, err
}

// deepest is how many directories in each other a volume may have where its files are to
// be given to a group.
const deepest = 256

// regroup gives what is in a volume to a pod's group, as the kubelet does: once for each
// pod, or (fsGroupChangePolicy: OnRootMismatch) where the volume itself is not the group's.
func (d *Disk) regroup(root *os.Root, volume types.UID, top fs.FileInfo, pod *corev1.Pod) (err error) {
	group := groupOf(pod)
	if group < 0 || d.claims.has(volume, pod.UID) {
		return nil
	}
	const dirMode = fs.ModeSetgid | 0o770
	policy := pod.Spec.SecurityContext.FSGroupChangePolicy
	if st, ok := top.Sys().(*syscall.Stat_t); ok && policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch &&
		int(st.Gid) == group && top.Mode()&dirMode == dirMode {
		return nil
	}
	in, err := root.OpenRoot(string(volume))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	give := func(name string, info fs.FileInfo) error {
		if err := in.Lchown(name, -1, group); err != nil || info.Mode()&fs.ModeSymlink != 0 {
			return err
		}
		mode := info.Mode()&(fs.ModePerm|fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) | 0o660
		if info.IsDir() {
			mode |= dirMode
		}
		return in.Chmod(name, mode)
	}
	// The volume itself comes last: one that was not finished does not look like one that was.
	err = fs.WalkDir(in.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && name != "." {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				err = give(name, info)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // somebody else has removed it meanwhile
		}
		if strings.Count(name, "/") >= deepest {
			return fmt.Errorf("more than %d directories in each other", deepest)
		}
		return err
	})
	if err == nil {
		err = give(".", top)
	}
	if err == nil {
		d.claims.give(volume, pod.UID)
	}
	return err
}

// States says of the volumes that the hub names which are there, and which have gone
// as they were to go.
func (d *Disk) States(volumes []wire.Volume) (list []wire.VolumeState) {
	for _, v := range volumes {
		if !podspec.IsUID(v.UID) {
			continue
		}
		_, err := os.Lstat(filepath.Join(d.Root, PersistentDir, string(v.UID)))
		there, gone := err == nil, errors.Is(err, fs.ErrNotExist)
		if there && !v.Remove || gone && v.Remove {
			list = append(list, wire.VolumeState{UID: v.UID, Gone: gone})
		}
	}
	return list
}

// RemovePersistent removes the data of a volume.
func (d *Disk) RemovePersistent(v wire.Volume) error {
	if !v.Remove || !podspec.IsUID(v.UID) {
		return nil
	}
	parent := filepath.Join(d.Root, PersistentDir)
	root, err := os.OpenRoot(parent)
	if err != nil {
		return err
	}
	return errors.Join(removeTree(root, string(v.UID)), root.Close(), fsync.Dir(parent))
}
