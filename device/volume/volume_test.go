package volume

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/wire"
)

// The engine mounts the file that was checked, even if its path has changed meanwhile.
func TestTheMountIsTheCheckedFile(t *testing.T) {
	d := newDisk(t)
	out := outside(t)
	shared := t.TempDir()
	src := sourcesFor("uid-1", emptyDir("v", ""), corev1.Volume{Name: "h", VolumeSource: onHost(shared + "/d")})
	policy := allowing(shared)
	c := &src.Pod.Spec.Containers[0]
	c.VolumeMounts[0].SubPath = "d/file"
	empty := d.Dir(&src.Pod.Spec.Volumes[0], "uid-1")
	tree(t, empty, "d/file")
	tree(t, shared, "d/inside")
	m, err := d.PrepareMounts(src, c, policy)
	must(t, err)
	tree(t, out, "file")
	for _, dir := range []string{empty, shared} {
		must(t, os.Rename(dir+"/d", dir+"/was"))
		link(t, out, dir+"/d")
	}
	if got := m.List[0].Source; !sameFile(t, got, empty+"/was/file") {
		t.Errorf("the engine mounts %s for the subPath, not the checked file", got)
	}
	if got := m.List[1].Source; !sameFile(t, got, shared+"/was") {
		t.Errorf("the engine mounts %s for the host path, not the checked file", got)
	}
	for _, x := range m.List {
		if !strings.HasPrefix(x.Source, d.Memory+"/") {
			t.Errorf("the mount's source %s is in a directory that containers can write", x.Source)
		}
	}
	must(t, m.Close())
	if left := names(t, filepath.Join(d.Memory, bindsDir)); len(left) > 0 {
		t.Errorf("after Close the binds %v are left", left)
	}
	if got := names(t, shared+"/was"); !slices.Equal(got, []string{"inside"}) {
		t.Errorf("after Close the mounted directory contains %v", got)
	}
	if _, err := d.PrepareMounts(src, c, policy); err == nil {
		t.Error("a path that leads out of its volume is mounted")
	}
}

// The next agent unmounts the binds of a crashed agent, and the mounted files stay.
func TestBindsOfACrashedAgentAreUnmounted(t *testing.T) {
	d := newDisk(t)
	shared := t.TempDir()
	tree(t, shared, "d/precious")
	must(t, unix.Mount("x", shared+"/d", "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { must(t, unix.Unmount(shared+"/d", unix.MNT_DETACH)) })
	tree(t, shared, "d/on-another-disk")
	src := sourcesFor("uid-1", corev1.Volume{Name: "h", VolumeSource: onHost(shared + "/sub/..")}, secretVolume("s"),
		emptyDir("m", corev1.StorageMediumMemory))
	src.Pod.Spec.Volumes[0].HostPath.Path = shared + "/d"
	if _, err := d.PrepareMounts(src, &src.Pod.Spec.Containers[0], allowing(filepath.Dir(shared))); err != nil {
		t.Fatal(err)
	}
	if got := mountsUnder(t, filepath.Join(d.Memory, bindsDir)); len(got) != 2 {
		t.Fatalf("mounts of the crashed agent: %v, want 2", got)
	}
	next := &Disk{Root: d.Root, Memory: d.Memory, MayMount: true}
	must(t, next.Prepare())
	if got := mountsUnder(t, filepath.Join(d.Memory, bindsDir)); len(got) != 1 {
		t.Errorf("mounts after Prepare: %v, want the tmpfs", got)
	}
	if !isMounted(next.Dir(&src.Pod.Spec.Volumes[2], "uid-1")) {
		t.Error("the volume in memory is unmounted")
	}
	if b, err := os.ReadFile(next.Dir(&src.Pod.Spec.Volumes[1], "uid-1") + "/key"); err != nil || string(b) != "hush" {
		t.Errorf("the secret is %q (%v)", b, err)
	}
	must(t, next.Clean("uid-1"))
	if got := names(t, shared+"/d"); !slices.Equal(got, []string{"on-another-disk"}) {
		t.Errorf("the device's own directory contains %v", got)
	}
}

// Other users of the device cannot access pods' volumes, even if an earlier version left them open.
// Inside a volume the pod decides the modes.
func TestVolumesArePrivate(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077} {
		d := newDisk(t)
		must(t, RemoveVolumes(d.Root, d.Memory))
		tree(t, d.Root, "pods/old/data/x")
		tree(t, d.Memory, "pods/")
		for _, dir := range []string{d.Root + "/pods", d.Memory, d.Memory + "/pods"} {
			must(t, os.Chmod(dir, 0o755))
		}
		old := umask(mask)
		t.Cleanup(func() { umask(old) })
		must(t, d.Prepare())
		group := int64(4321)
		src := sourcesFor("uid-1", emptyDir("v", ""), emptyDir("m", corev1.StorageMediumMemory), secretVolume("s"))
		src.Pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
		m, err := d.PrepareMounts(src, &src.Pod.Spec.Containers[0], policy.Document{})
		must(t, err)
		must(t, m.Close())
		umask(old)
		for path, want := range map[string]os.FileMode{
			d.Root + "/pods":                  0o700,
			d.Root + "/pods/uid-1":            0o700,
			d.Root + "/pods/uid-1/v":          0o777 | os.ModeSetgid,
			d.Memory:                          0o700,
			d.Memory + "/binds":               0o700,
			d.Memory + "/pods":                0o700,
			d.Memory + "/pods/uid-1":          0o700,
			d.Memory + "/pods/uid-1/m":        0o777 | os.ModeSetgid,
			d.Memory + "/pods/uid-1/s":        0o755,
			d.Memory + "/pods/uid-1/s/..data": 0o755,
			d.Memory + "/pods/uid-1/s/key":    0o644,
		} {
			if info, err := os.Stat(path); err != nil || info.Mode()&^os.ModeDir != want {
				t.Errorf("with umask %03o the mode of %s is %v (%v), want %v", mask, path, info.Mode(), err, want)
			}
		}
		for _, path := range []string{d.Memory + "/pods/uid-1/s/key", d.Memory + "/pods/uid-1/m"} {
			var st unix.Statfs_t
			must(t, unix.Statfs(path, &st))
			if st.Type != unix.TMPFS_MAGIC {
				t.Errorf("%s is on file system %x, want a tmpfs", path, st.Type)
			}
		}
		must(t, d.Clean("uid-1"))
		if got := mountsUnder(t, d.Memory+"/pods"); len(got) > 0 {
			t.Errorf("after Clean the mounts %v are left", got)
		}
	}
}

func TestAVolumeInMemoryHasALimit(t *testing.T) {
	limit := func(s string) *resource.Quantity { q := resource.MustParse(s); return &q }
	for _, c := range []struct {
		name      string
		sizeLimit *resource.Quantity
		memory    string // memory limit of the container
		want      string
	}{
		{"the limit of the volume", limit("1Mi"), "", "size=1048576"},
		{"at most the pod's limit", limit("1Gi"), "32Mi", "size=33554432"},
		{"at most the node's allocatable memory", nil, "", "size=67108864"},
		{"a size of 0 means no limit", limit("0"), "", "size=67108864"},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := sourcesFor("uid-1", emptyDir("m", corev1.StorageMediumMemory))
			src.Pod.Spec.Volumes[0].EmptyDir.SizeLimit = c.sizeLimit
			if c.memory != "" {
				src.Pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: *limit(c.memory)}
			}
			if got := memorySize(src, &src.Pod.Spec.Volumes[0]); got != c.want {
				t.Errorf("the mount option is %s, want %s", got, c.want)
			}
		})
	}
	d := newDisk(t)
	src := sourcesFor("uid-1", emptyDir("m", corev1.StorageMediumMemory))
	src.Pod.Spec.Volumes[0].EmptyDir.SizeLimit = limit("1Mi")
	m, err := d.PrepareMounts(src, &src.Pod.Spec.Containers[0], policy.Document{})
	must(t, err)
	defer func() { must(t, m.Close()) }()
	if err := os.WriteFile(m.List[0].Source+"/big", make([]byte, 2<<20), 0o600); err == nil {
		t.Error("a volume of 1 MiB accepts 2 MiB")
	}
}

// An agent that cannot mount still runs pods that are safe without mounts, and refuses the others
// with the reason.
func TestWithoutMountsAnAgentRefusesPathsThatPodsCanRedirect(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	d := &Disk{Root: base, Memory: filepath.Join(base, "volatile")}
	must(t, d.Prepare())
	if c := d.mounts.condition(); c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "run it as root") {
		t.Errorf("the condition is %s, %s: %s", c.Type, c.Status, c.Message)
	}
	shared := t.TempDir()
	tree(t, shared, "d/")
	policy := allowing(shared)
	host := func(path string) corev1.Volume { return corev1.Volume{Name: "h", VolumeSource: onHost(path)} }
	for _, c := range []struct {
		name   string
		volume corev1.Volume
		sub    string
		ok     bool
	}{
		{"an emptyDir", emptyDir("v", ""), "", true},
		{"an emptyDir in memory", emptyDir("v", corev1.StorageMediumMemory), "", true},
		{"a secret", secretVolume("s"), "", true},
		{"a file of a secret", secretVolume("s"), "key", true},
		{"an allowed host path", host(shared), "", true},
		{"a subPath of an emptyDir", emptyDir("v", ""), "d", false},
		{"a host path below an allowed one", host(shared + "/d"), "", false},
		{"a subPath of an allowed host path", host(shared), "d", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := sourcesFor("uid-1", c.volume)
			src.Pod.Spec.Containers[0].VolumeMounts[0].SubPath = c.sub
			m, err := d.PrepareMounts(src, &src.Pod.Spec.Containers[0], policy)
			if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "does not run as root") {
				t.Error(err)
			}
			must(t, m.Close())
		})
	}
}

// A hostile hub cannot use names to create, bind or remove files outside of the volumes.
func TestNamesFromAHostileHubStayInside(t *testing.T) {
	for _, c := range []struct{ uid, volume string }{
		{"uid-1", "../../.."}, {"uid-1", ".."}, {"uid-1", "."}, {"uid-1", ""}, {"uid-1", "a/b"}, {"uid-1", "/"}, {"uid-1", ".new-v"},
		{"..", "v"}, {".", "v"}, {"", "v"}, {"../../x", "v"}, {"a/b", "v"}, {"a\x00b", "v"},
	} {
		for _, kind := range []corev1.Volume{emptyDir(c.volume, ""), emptyDir(c.volume, corev1.StorageMediumMemory),
			secretVolume(c.volume)} {
			base := t.TempDir()
			d := &Disk{Root: filepath.Join(base, "x/state"), Memory: filepath.Join(base, "x/run")}
			must(t, d.Prepare())
			tree(t, base, "precious", "x/precious", "x/state/precious", "x/run/precious", "x/state/pods/precious",
				"x/run/pods/other/precious")
			src := sourcesFor(c.uid, kind)
			if m, err := d.PrepareMounts(src, &src.Pod.Spec.Containers[0], policy.Document{}); err == nil {
				t.Errorf("volume %q of pod %q is at %s", c.volume, c.uid, m.List[0].Source)
			}
			if err := d.Refresh(src); err != nil {
				t.Log(err)
			}
			if !podspec.IsUID(types.UID(c.uid)) {
				must(t, d.Clean(types.UID(c.uid)))
			}
			for _, name := range []string{"precious", "x/precious", "x/state/precious", "x/run/precious",
				"x/state/pods/precious", "x/run/pods/other/precious"} {
				if _, err := os.Stat(filepath.Join(base, name)); err != nil {
					t.Errorf("volume %q of pod %q has removed a file outside: %v", c.volume, c.uid, err)
				}
			}
		}
	}
}

// If a link replaces a pod's directory, only the link is removed.
func TestCleaningFollowsNoLink(t *testing.T) {
	d := newDisk(t)
	out := outside(t)
	link(t, out, d.Root+"/pods/uid-1")
	link(t, out, d.Memory+"/pods/uid-1")
	tree(t, d.Root, "pods/uid-2/v/")
	link(t, out, d.Root+"/pods/uid-2/v/link")
	must(t, d.Clean("uid-1"))
	must(t, d.Clean("uid-2"))
	if got := names(t, d.Root+"/pods"); len(got) > 0 {
		t.Errorf("after Clean the directories %v are left", got)
	}
	if got := names(t, out); !slices.Equal(got, []string{"canary"}) {
		t.Errorf("the link's target contains %v", got)
	}
}

// If a privileged container has put links into a volume of files, they do not redirect the agent's
// writes.
func TestFilesAreWrittenInsideTheirVolumeOnly(t *testing.T) {
	for _, plant := range []string{dataLink, dataLink + "_tmp", "key"} {
		d := newDisk(t)
		out := outside(t)
		src := sourcesFor("uid-1", secretVolume("s"))
		dir := d.Dir(&src.Pod.Spec.Volumes[0], "uid-1")
		tree(t, dir, "x")
		link(t, out, filepath.Join(dir, plant))
		_, err := d.PrepareMounts(src, &src.Pod.Spec.Containers[0], policy.Document{})
		must(t, err)
		if got := names(t, out); !slices.Equal(got, []string{"canary"}) {
			t.Errorf("the target of a planted %s contains %v", plant, got)
		}
		if b, err := os.ReadFile(filepath.Join(dir, dataLink, "key")); err != nil || string(b) != "hush" {
			t.Errorf("with a planted %s the key is %q (%v)", plant, b, err)
		}
	}
}

// A volume that contains one secret many times is limited in size.
func TestAVolumeOfFilesIsLimited(t *testing.T) {
	d := newDisk(t)
	v := secretVolume("s")
	src := sourcesFor("uid-1", v)
	src.Secrets[0].Data["key"] = make([]byte, 1<<20)
	for i := range 17 {
		v.Secret.Items = append(v.Secret.Items, corev1.KeyToPath{Key: "key", Path: fmt.Sprint("copy-", i)})
	}
	if _, err := d.PrepareMounts(src, &src.Pod.Spec.Containers[0], policy.Document{}); err == nil ||
		!strings.Contains(err.Error(), "have 17825792 bytes, more than the limit of 16777216") {
		t.Error(err)
	}
	v.Secret.Items = v.Secret.Items[:16]
	_, err := d.PrepareMounts(src, &src.Pod.Spec.Containers[0], policy.Document{})
	must(t, err)
}

// allowing returns a policy that allows these host paths.
func allowing(paths ...string) policy.Document {
	p := policy.Default()
	p.HostPaths = paths
	return p
}

// Removing a million files of one pod, or changing their group, takes minutes on an SD card. Other
// pods must not wait for that.
func TestAPodDoesNotWaitForOtherPodsVolumes(t *testing.T) {
	d := &Disk{Root: t.TempDir(), Memory: t.TempDir()}
	d.mounts.dir, d.mounts.why = d.Memory, "not here"
	files := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	claim := corev1.Volume{
		Name: "v",
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "mine"},
		},
	}
	pod := makePod("web", "wait")
	src := podspec.Sources{Pod: &pod, Volumes: []wire.Volume{{UID: "volume", Namespace: pod.Namespace, Claim: "mine"}}}
	defer d.locks.take("uid-of-another")() // as if another pod's volumes are being removed
	defer d.claims.take("volume-of-another")()
	for _, v := range []*corev1.Volume{&files, &claim} {
		p, err := d.volume(src, v, policy.Document{})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.file.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Etc(&pod, &pod.Spec.Containers[0], "192.0.2.9"); err != nil {
		t.Error(err)
	}
	if err := d.Clean(pod.UID); err != nil {
		t.Error(err)
	}
	leave := d.locks.take(pod.UID)
	done := make(chan error)
	go func() { done <- d.Clean(pod.UID) }()
	leave()
	if err := <-done; err != nil { // Clean waits for the pod's own lock
		t.Error(err)
	}
	if n := len(d.locks.by); n != 1 {
		t.Errorf("%d locks are left, want only the other pod's", n)
	}
}
