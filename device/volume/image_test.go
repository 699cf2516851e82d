package volume

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/policy"
)

// A reportingEngine reports every file of an image before it passes the file on.
type reportingEngine struct {
	engine.Engine
	at func()
}

func (w reportingEngine) ImageTree(ctx context.Context, ref string, s engine.Spec,
	take func(int64) (func(*tar.Header, io.Reader) error, error)) error {
	w.at()
	return w.Engine.ImageTree(ctx, ref, s, func(size int64) (func(*tar.Header, io.Reader) error, error) {
		w.at()
		put, err := take(size)
		return func(h *tar.Header, data io.Reader) error {
			w.at()
			return put(h, io.MultiReader(io.LimitReader(data, h.Size/2), &tellingReader{w.at, data}))
		}, err
	})
}

type tellingReader struct {
	at   func()
	from io.Reader
}

func (r *tellingReader) Read(b []byte) (int, error) {
	r.at()
	return r.from.Read(b)
}

// If the agent is killed at any moment, the next agent does not use an incomplete copy.
func TestAKilledAgentLeavesNoIncompleteCopy(t *testing.T) {
	fake := enginetest.New()
	fake.AddImage("model:1", 5000, nil)
	fake.SetImageTree("model:1", copiedTree...)
	newDisk := func(root string) *Disk {
		d := &Disk{Root: root}
		must(t, os.MkdirAll(filepath.Join(root, PodsDir), 0o700))
		return d
	}
	pod := showing("model:1")
	root, moments := t.TempDir(), t.TempDir()
	n := 0
	killed := func() {
		n++
		must(t, os.CopyFS(filepath.Join(moments, string(rune('a'+n))), os.DirFS(root)))
	}
	none, err := hardware.ParseThresholds("nodefs.available<0,outofdisk.available<0")
	must(t, err)
	work := ImageCopy{Image: "model:1", Pod: pod.UID, Container: "c0", State: "abc", Hard: none}
	whole := func(d *Disk, name string) {
		t.Helper()
		if got := treeOf(t, filepath.Join(d.Root, imagesDir, name)); !slices.Equal(got, modelLines) {
			t.Errorf("the copy contains\n%s", strings.Join(got, "\n"))
		}
	}
	first := newDisk(root)
	name, err := first.CopyImage(t.Context(), reportingEngine{fake, killed}, work)
	must(t, err)
	whole(first, name)
	killed()
	if n < 7 {
		t.Fatalf("the agent was killed only %d times, want at least 7", n)
	}
	for _, moment := range namesIn(moments) {
		for start, do := range map[string]func(*Disk){"copies": func(*Disk) {},
			"cleans up, and copies": (*Disk).RemoveUnusedImages} {
			state := filepath.Join(t.TempDir(), "state")
			must(t, os.CopyFS(state, os.DirFS(filepath.Join(moments, moment))))
			d := newDisk(state)
			do(d)
			for _, left := range namesIn(filepath.Join(state, imagesDir)) {
				if left == name {
					whole(d, name)
				} else if start != "copies" {
					t.Errorf("killed at %s: the clean-up has left %s", moment, left)
				}
			}
			again, err := d.CopyImage(t.Context(), fake, work)
			if must(t, err); again != name {
				t.Errorf("the copy's name was %s and is %s", name, again)
			}
			whole(d, name)
			must(t, d.Clean(pod.UID))
			d.RemoveUnusedImages()
			if left := namesIn(filepath.Join(state, imagesDir)); len(left) != 0 {
				t.Errorf("killed at %s, then %s: a removed pod has left %q", moment, start, left)
			}
		}
	}
}

func TestOnlyTheCopyIsMountedAndReadOnly(t *testing.T) {
	d := newDisk(t)
	id := strings.Repeat("ab", 32)
	dir := filepath.Join(d.Root, imagesDir, id)
	must(t, os.MkdirAll(filepath.Join(dir, "model"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "model", "weights"), []byte("w"), 0o644))
	must(t, os.Symlink("model", filepath.Join(dir, "latest")))
	must(t, os.Symlink("/etc", filepath.Join(dir, "out")))
	p := showing("model:1")
	for sub, want := range map[string]string{"": dir, "model": dir + "/model", "model/weights": dir + "/model/weights",
		"latest": dir + "/model", "out": "!leads out of the volume", "../..": "!must be a relative path",
		"none": "!no such file"} {
		c := &p.Spec.Containers[0]
		c.VolumeMounts = []corev1.VolumeMount{{Name: "m", MountPath: "/m", SubPath: sub}}
		m, err := d.PrepareMounts(podspec.Sources{Pod: &p, Images: map[string]string{"m": id}}, c, policy.Document{})
		if why, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("subPath %q: mounts %v, %v; want %s", sub, m.List, err, want)
			}
		} else if err != nil || len(m.List) != 1 || m.List[0].Source != want || !m.List[0].ReadOnly {
			t.Errorf("subPath %q: mounts %v, %v; want %s", sub, m.List, err, want)
		}
		must(t, m.Close())
	}
	if _, err := imageID("sha256:../../" + strings.Repeat("a", 58)); err == nil {
		t.Error("an id with a path is accepted")
	}
}

var copiedTree = []enginetest.Entry{
	entryOf(tar.TypeDir, "model/", ""), entryOf(tar.TypeReg, "model/weights", strings.Repeat("w", 5000),
		func(h *tar.Header) { h.Mode = 0o644 }), entryOf(tar.TypeSymlink, "latest", "model"),
}

var modelLines = []string{
	"latest Lrwxrwxrwx -> model",
	"model drwxr-xr-x",
	`model/weights -rw-r--r-- "wwwwwwwwwwwwwwwwwwww"`,
}

// showing returns a pod that mounts an image.
func showing(image string) corev1.Pod {
	p := makePod("a", "wait")
	p.Spec.Volumes = []corev1.Volume{
		{Name: "m", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image}}},
	}
	return p
}
