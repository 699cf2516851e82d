package volume

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/wire"
)

// claiming returns the sources of a pod that mounts the claim "data", as sent by the hub.
func claiming(pod string, volume wire.Volume) (podspec.Sources, *corev1.Volume) {
	v := corev1.Volume{
		Name: "v",
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		},
	}
	src := sourcesFor(pod, v)
	src.Pod.Namespace = "default"
	volume.Namespace, volume.Claim = "default", "data"
	src.Volumes = []wire.Volume{volume}
	return src, &src.Pod.Spec.Volumes[0]
}

func (d *Disk) claim(t *testing.T, pod string, volume wire.Volume, change ...func(*corev1.Pod)) (string, error) {
	t.Helper()
	src, v := claiming(pod, volume)
	for _, f := range change {
		f(src.Pod)
	}
	p, err := d.volume(src, v, policy.Document{})
	if err != nil {
		return "", err
	}
	path, err := pathOf(p.file)
	must(t, err)
	return path, p.file.Close()
}

func TestPersistentVolumes(t *testing.T) {
	volume := wire.Volume{UID: dataUID}
	group := func(id int64, policy corev1.PodFSGroupChangePolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &id, FSGroupChangePolicy: &policy}
		}
	}
	owner := func(t *testing.T, path string) (uint32, os.FileMode) {
		t.Helper()
		info, err := os.Lstat(path)
		must(t, err)
		return info.Sys().(*syscall.Stat_t).Gid, info.Mode()
	}
	for name, check := range map[string]func(t *testing.T, d *Disk){
		"a new volume is made for all users in a private directory": func(t *testing.T, d *Disk) {
			path, err := d.claim(t, "a", volume)
			must(t, err)
			if path != filepath.Join(d.Root, PersistentDir, dataUID) {
				t.Errorf("the volume is at %s, want its uid in %s", path, PersistentDir)
			}
			if _, mode := owner(t, path); mode.Perm() != 0o777 {
				t.Errorf("the volume has mode %v, want 0777", mode)
			}
			if _, mode := owner(t, filepath.Dir(path)); mode.Perm() != 0o700 {
				t.Errorf("the parent directory has mode %v, want 0700", mode)
			}
		},
		"a lost volume is not made again": func(t *testing.T, d *Disk) {
			lost := volume
			lost.Made = true
			if _, err := d.claim(t, "a", lost); err == nil || !strings.Contains(err.Error(), "is missing; put it back") {
				t.Errorf("got error %v", err)
			}
			if _, err := os.Lstat(filepath.Join(d.Root, PersistentDir, dataUID)); err == nil {
				t.Error("the lost volume was made again")
			}
		},
		"an unknown volume, or one to be removed, is not mounted": func(t *testing.T, d *Disk) {
			removed := volume
			removed.Remove = true
			if _, err := d.claim(t, "a", removed); err == nil || !strings.Contains(err.Error(), "no volume on this device") {
				t.Errorf("got error %v", err)
			}
			src, v := claiming("a", volume)
			src.Pod.Namespace = "other"
			if _, err := d.volume(src, v, policy.Document{}); err == nil {
				t.Error("a pod of another namespace mounts the volume")
			}
		},
		"names with a path are refused": func(t *testing.T, d *Disk) {
			for _, uid := range []types.UID{"..", "../x", "a/b", ""} {
				if _, err := d.claim(t, "a", wire.Volume{UID: uid}); err == nil {
					t.Errorf("a volume with uid %q is mounted", uid)
				}
				must(t, d.RemovePersistent(wire.Volume{UID: uid, Remove: true}))
			}
		},
		"a link is not a volume": func(t *testing.T, d *Disk) {
			must(t, makePrivate(filepath.Join(d.Root, PersistentDir)))
			out := t.TempDir()
			must(t, os.WriteFile(filepath.Join(out, "canary"), nil, 0o600))
			must(t, os.Symlink(out, filepath.Join(d.Root, PersistentDir, dataUID)))
			if _, err := d.claim(t, "a", volume); err == nil {
				t.Error("a link is mounted")
			}
			must(t, d.RemovePersistent(wire.Volume{UID: dataUID, Remove: true}))
			if _, err := os.Stat(filepath.Join(out, "canary")); err != nil {
				t.Error(err)
			}
		},
		"a volume outlives its pod and its agent": func(t *testing.T, d *Disk) {
			path, err := d.claim(t, "a", volume)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(path, "f"), []byte("x"), 0o600))
			must(t, d.Clean("a"))
			must(t, RemoveVolumes(d.Root, d.Memory))
			if _, err := os.Stat(filepath.Join(path, "f")); err != nil {
				t.Error(err)
			}
		},
		"only a removal request removes a volume": func(t *testing.T, d *Disk) {
			path, err := d.claim(t, "a", volume)
			must(t, err)
			must(t, os.MkdirAll(filepath.Join(path, "d", "e"), 0o700))
			must(t, d.RemovePersistent(volume))
			if _, err := os.Stat(filepath.Join(path, "d", "e")); err != nil {
				t.Fatal(err)
			}
			requested := []wire.Volume{{UID: dataUID, Remove: true}}
			if got := d.States(requested); len(got) != 0 {
				t.Errorf("before the removal States returns %v, want nothing", got)
			}
			must(t, d.RemovePersistent(requested[0]))
			if got := d.States(requested); len(got) != 1 || !got[0].Gone {
				t.Errorf("States returns %v", got)
			}
			if _, err := os.Lstat(path); err == nil {
				t.Error("the removed volume still exists")
			}
		},
		"only the state of named volumes is reported": func(t *testing.T, d *Disk) {
			_, err := d.claim(t, "a", volume)
			must(t, err)
			other := wire.Volume{UID: "1c6a2b1e-8a44-8c0e-9d43-0a1b2c3d4e5f"}
			if got := d.States([]wire.Volume{volume, other}); len(got) != 1 || got[0] != (wire.VolumeState{UID: dataUID}) {
				t.Errorf("States returns %v", got)
			}
			if got := d.States(nil); len(got) != 0 {
				t.Errorf("States returns %v", got)
			}
		},
		"the files of a volume get the pod's group, once for each pod": func(t *testing.T, d *Disk) {
			path, err := d.claim(t, "a", volume, group(1234, corev1.FSGroupChangeAlways))
			must(t, err)
			if gid, mode := owner(t, path); gid != 1234 || mode&os.ModeSetgid == 0 {
				t.Errorf("the volume has group %d, mode %v, want group 1234 and set-group-ID", gid, mode)
			}
			f, sub := filepath.Join(path, "f"), filepath.Join(path, "sub")
			must(t, os.WriteFile(f, nil, 0o600))
			must(t, os.Chmod(f, 0o600))
			must(t, os.Lchown(f, 0, 0))
			must(t, os.Mkdir(sub, 0o700))
			out := filepath.Join(t.TempDir(), "out")
			must(t, os.WriteFile(out, nil, 0o600))
			must(t, os.Symlink(out, filepath.Join(path, "link")))
			_, err = d.claim(t, "b", volume, group(1234, corev1.FSGroupChangeOnRootMismatch))
			must(t, err)
			if gid, _ := owner(t, f); gid != 0 {
				t.Errorf("a file got group %d although the volume's root has the group", gid)
			}
			_, err = d.claim(t, "b", volume, group(1234, corev1.FSGroupChangeAlways))
			must(t, err)
			if gid, mode := owner(t, f); gid != 1234 || mode.Perm() != 0o660 {
				t.Errorf("a file has group %d, mode %v, want 1234, 0660", gid, mode)
			}
			if gid, mode := owner(t, sub); gid != 1234 || mode.Perm() != 0o770 || mode&os.ModeSetgid == 0 {
				t.Errorf("a directory has group %d, mode %v, want 1234, 0770 and set-group-ID", gid, mode)
			}
			if gid, mode := owner(t, out); gid == 1234 || mode.Perm() != 0o600 {
				t.Errorf("a link's target has group %d, mode %v, want both unchanged", gid, mode)
			}
			must(t, os.Lchown(f, 0, 0))
			_, err = d.claim(t, "b", volume, group(1234, corev1.FSGroupChangeAlways))
			must(t, err)
			if gid, _ := owner(t, f); gid != 0 {
				t.Error("the group is set at each start of a container")
			}
		},
	} {
		t.Run(name, func(t *testing.T) { check(t, newDisk(t)) })
	}
}
