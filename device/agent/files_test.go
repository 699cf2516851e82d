package agent

import (
	"archive/tar"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/engine/enginetest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func emptyDir(name string, medium corev1.StorageMedium) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}
}

func secretVolume(name string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}
}

const dataUID = "0c6a2b1e-8a44-8c0e-9d43-0a1b2c3d4e5f"

// nestDirs makes directories down to a depth and returns a descriptor of the deepest.
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

func tarEntry(kind byte, name, data string, change ...func(*tar.Header)) (e enginetest.Entry) {
	e.Header, e.Data = tar.Header{Typeflag: kind, Name: name, Mode: 0o755, Size: int64(len(data)),
		ModTime: time.Unix(1e9, 0)}, data
	if kind == tar.TypeSymlink || kind == tar.TypeLink {
		e.Header.Linkname, e.Header.Size, e.Data = data, 0, ""
	}
	for _, f := range change {
		f(&e.Header)
	}
	return e
}

func withMode(mode int64) func(*tar.Header) { return func(h *tar.Header) { h.Mode = mode } }

// namesIn are the names in a directory; the result is empty if the directory is missing.
func namesIn(dir string) (names []string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func with(p corev1.Pod, f func(*corev1.Pod)) corev1.Pod { f(&p); return p }

func requestingPod(name, cpu, memory string) corev1.Pod {
	return with(makePod(name, "wait"), func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory)}
	})
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
