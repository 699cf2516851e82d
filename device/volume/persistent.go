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

// PersistentDir is the directory of the persistent volumes in the state directory, each named by
// its uid. They outlive pods, agents and enrolments. The agent removes a volume only when the hub
// requests the removal by the volume's uid.
const PersistentDir = "persistent"

// A groupOwners records, for each volume, the pod whose group was set last.
type groupOwners struct {
	keyedLocks // one lock for each volume
	given      struct {
		sync.Mutex
		to map[types.UID]types.UID
	}
}

// has reports whether the group of this pod was set last.
func (c *groupOwners) has(volume, pod types.UID) bool {
	c.given.Lock()
	defer c.given.Unlock()
	return c.given.to[volume] == pod
}

func (c *groupOwners) give(volume, pod types.UID) {
	c.given.Lock()
	defer c.given.Unlock()
	if c.given.to == nil {
		c.given.to = map[types.UID]types.UID{}
	}
	c.given.to[volume] = pod
}

// persistent opens the volume of a claim, and makes its directory at the first use.
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
		return p, fmt.Errorf("volume uid %q is not valid for a directory", want.UID)
	}
	defer d.claims.take(want.UID)()
	parent, name := filepath.Join(d.Root, PersistentDir), string(want.UID)
	if err := makePrivate(parent); err != nil {
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
		return p, fmt.Errorf("%s is not a directory", filepath.Join(parent, name))
	case e == nil:
		if err := d.setGroup(root, want.UID, info, src.Pod); err != nil {
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
	p.file, err = openPath(filepath.Join(parent, name))
	return p, err
}

// maxDepth is the greatest depth of nested directories in a volume whose group is set.
const maxDepth = 256

// setGroup sets the group of a volume's files to the pod's, like the kubelet: once for each pod, or
// with fsGroupChangePolicy OnRootMismatch only if the volume's root has another group.
func (d *Disk) setGroup(root *os.Root, volume types.UID, top fs.FileInfo, pod *corev1.Pod) (err error) {
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
	// The volume's root comes last, so that an interrupted change is detected.
	err = fs.WalkDir(in.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err == nil && name != "." {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				err = give(name, info)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the file was removed meanwhile
		}
		if strings.Count(name, "/") >= maxDepth {
			return fmt.Errorf("more than %d nested directories", maxDepth)
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

// States reports which of the hub's volumes exist, and which were removed as requested.
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
