package volume

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/podspec"
)

// makePod returns a pod with a container for each command.
func makePod(name string, commands ...string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}}
	for i, c := range commands {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c" + string(rune('0'+i)), Args: []string{c}})
	}
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func emptyDir(name string, medium corev1.StorageMedium) corev1.Volume {
	return corev1.Volume{
		Name:         name,
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}},
	}
}

func secretVolume(name string) corev1.Volume {
	return corev1.Volume{
		Name:         name,
		VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}},
	}
}

func nestDirs(t *testing.T, dir string, depth int) int {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY, 0)
	for i := 0; err == nil && i < depth; i++ {
		at := fd
		if err = unix.Mkdirat(at, "d", 0o700); err == nil {
			fd, err = unix.Openat(at, "d", unix.O_RDONLY, 0)
		}
		_ = unix.Close(at)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func outside(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "canary"), []byte("nobody's business"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func onHost(path string) corev1.VolumeSource {
	return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}
}

const dataUID = "0c6a2b1e-8a44-8c0e-9d43-0a1b2c3d4e5f"

func umask(mask int) int { return syscall.Umask(mask) }

// newDisk returns the disk of an agent that mounts, which needs root.
func newDisk(t *testing.T) *Disk {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	d := &Disk{Root: filepath.Join(base, "state"), Memory: filepath.Join(base, "run"), MayMount: true}
	t.Cleanup(func() {
		if err := RemoveVolumes(d.Root, d.Memory); err != nil {
			t.Error(err)
		}
	})
	must(t, d.Prepare())
	if d.mounts.why != "" {
		if os.Getenv("CI") == "true" {
			t.Fatal(d.mounts.why)
		}
		t.Skip(d.mounts.why)
	}
	return d
}

// sameFile reports whether two paths lead to the same file.
func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	must(t, err)
	y, err := os.Stat(b)
	must(t, err)
	return os.SameFile(x, y)
}

func mountsUnder(t *testing.T, dir string) (list []string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[4] == dir || strings.HasPrefix(f[4], dir+"/") {
			list = append(list, f[4])
		}
	}
	return list
}

// sourcesFor returns the sources of a pod whose first container mounts these volumes.
func sourcesFor(uid string, volumes ...corev1.Volume) podspec.Sources {
	p := makePod("p", "wait")
	p.UID = types.UID(uid)
	p.Spec.Volumes = volumes
	for _, v := range volumes {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return podspec.Sources{Pod: &p, Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
		Secrets: []corev1.Secret{
			{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: p.Namespace}, Data: map[string][]byte{"key": []byte("hush")}},
		}}
}
