package agent

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/policy"
)

var modelTree = []enginetest.Entry{
	packed(tar.TypeDir, "model/", ""), packed(tar.TypeReg, "model/weights", strings.Repeat("w", 5000), moded(0o644)), packed(tar.TypeSymlink, "latest", "model"),
}

var modelLines = []string{"latest Lrwxrwxrwx -> model", "model drwxr-xr-x", `model/weights -rw-r--r-- "wwwwwwwwwwwwwwwwwwww"`}

// imagePod mounts the image "model:1".
func imagePod(name string, change ...func(*corev1.Pod)) corev1.Pod {
	p := makePod(name, "wait")
	p.UID = types.UID("uid-" + name)
	p.Spec.Volumes = []corev1.Volume{{Name: "m", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "model:1", PullPolicy: corev1.PullIfNotPresent}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "m", MountPath: "/models"}, {Name: "m", MountPath: "/w", SubPath: "model"}}
	for _, f := range change {
		f(&p)
	}
	return p
}

// copies are the names in the directory of copies.
func (d *device) copies() []string { return entries(filepath.Join(d.config.VolumesDir, imagesDir)) }

func (d *device) withModels() {
	d.config.VolumesDir = d.t.TempDir()
	d.twin.OfferImage("model:1", enginetest.Offer{Size: 5000, Tree: modelTree, Delay: time.Second})
}

func TestAnImageVolumeIsPulledCopiedOnceAndRemovedWithItsLastPod(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.withModels()
		d.start()
		d.twin.Record()
		a, b := imagePod("a"), imagePod("b")
		d.desire(1, a, b)
		time.Sleep(5 * time.Second)
		d.wantPhase("a", corev1.PodRunning, "")
		d.wantPhase("b", corev1.PodRunning, "")
		names := d.copies()
		if len(names) != 1 {
			t.Fatalf("there are the copies %q", names)
		}
		copied := filepath.Join(d.config.VolumesDir, imagesDir, names[0])
		if got := treeOf(t, copied); !slices.Equal(got, modelLines) {
			t.Errorf("it holds\n%s", strings.Join(got, "\n"))
		}
		if n := strings.Count(strings.Join(d.twin.Calls(), ";"), "ImageTree"); n != 1 {
			t.Errorf("the image was read %d times", n)
		}
		if r := d.reasons(); !slices.Contains(r, "Pulling") {
			t.Errorf("events %q", r)
		}
		list, err := d.twin.Containers(t.Context(), LabelImageOf)
		if err != nil || len(list) != 0 {
			t.Errorf("what reads images is left: %v, %v", list, err)
		}
		d.desire(2, a)
		time.Sleep(5 * time.Second)
		if got := d.copies(); !slices.Equal(got, names) {
			t.Errorf("with one pod less there are %q", got)
		}
		d.end()
		d.start()
		time.Sleep(5 * time.Second)
		if got := d.copies(); !slices.Equal(got, names) {
			t.Errorf("under another agent there are %q", got)
		}
		d.desire(3)
		time.Sleep(5 * time.Second)
		if got := d.copies(); len(got) != 0 {
			t.Errorf("without pods there are %q", got)
		}
	})
}

// Where a tag moves, each start of a container may have another image. What no container shows any more goes, and does
// not wait for the pod, which may never go.
func TestACopyGoesWithTheLastContainerThatShowsIt(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.withModels()
		d.start()
		always := func(p *corev1.Pod) { p.Spec.Volumes[0].Image.PullPolicy = corev1.PullAlways }
		move := func(to string) {
			d.twin.OfferImage("model:1", enginetest.Offer{ID: "sha256:" + strings.Repeat(to, 64), Size: 5000, Tree: modelTree, Delay: time.Second})
		}
		restart := func(pod string, want int, which string) {
			t.Helper()
			d.twin.Exit(d.newest(t, pod), 1)
			time.Sleep(time.Minute)
			d.wantPhase(pod, corev1.PodRunning, "")
			if got := d.copies(); len(got) != want || !slices.Contains(got, strings.Repeat(which, 64)) {
				t.Errorf("after the start of %s there are the copies %.8q", pod, got)
			}
		}
		move("a")
		d.desire(1, imagePod("a", always), imagePod("b", always))
		time.Sleep(5 * time.Second)
		if got := d.copies(); len(got) != 1 {
			t.Fatalf("there are the copies %q", got)
		}
		restart("a", 1, "a")
		move("b")
		restart("a", 2, "a") // b shows it
		move("c")
		restart("a", 2, "c")
		restart("b", 1, "c")
	})
}

// A container whose volume's image is not there waits as for its own.
func TestAnImageVolumeWithoutItsImage(t *testing.T) {
	sign := policy.Default()
	sign.Signatures = []policy.Signature{{Images: []string{"registry.example.org"}, Keys: []string{"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA21pH8j/5r0SJr/OpXaaTBLTdkWERZPdTImd+IMII/e0=\n-----END PUBLIC KEY-----\n"}}, {Unsigned: true}}
	for name, c := range map[string]struct {
		change  func(d *device)
		pull    corev1.PullPolicy
		image   string
		reason  string
		message string
	}{
		"it cannot be pulled": {func(d *device) { d.twin.OfferImage("model:1", enginetest.Offer{Err: errors.New("no route to host")}) }, corev1.PullIfNotPresent, "", "ErrImagePull", "no route to host"},
		"it may not be":       {nil, corev1.PullNever, "", "ErrImageNeverPull", `container image "model:1" is not present with pull policy of Never`},
		"it has no name":      {nil, corev1.PullIfNotPresent, "MODEL", "InvalidImageName", `failed to parse image name "MODEL"`},
		"it is hostile": {func(d *device) {
			d.twin.OfferImage("model:1", enginetest.Offer{Tree: []enginetest.Entry{packed(tar.TypeReg, "a", "x"), packed(tar.TypeReg, "../a", "x")}})
		}, corev1.PullIfNotPresent, "", "CreateContainerError", `ImageVolumeMountFailed: volume "m": image model:1: read image model:1: "../a" leads out of the image`},
		"it is too large": {func(d *device) { d.twin.OfferImage("model:1", enginetest.Offer{Size: 1 << 50}) }, corev1.PullIfNotPresent, "", "CreateContainerError", "its files have 1125899906842624 bytes, and "},
		"nobody has signed it": {func(d *device) {
			d.config.Policy = Policy{sign}
			d.config.Verify = (&notary{err: errors.New("registry.example.org/model:1: it is not signed")}).verify
		}, corev1.PullIfNotPresent, "registry.example.org/model:1", "ErrImagePull", "its signature cannot be checked"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.end()
				d.withModels()
				if c.change != nil {
					c.change(d)
				}
				d.start()
				d.desire(1, imagePod("a", func(p *corev1.Pod) {
					v := p.Spec.Volumes[0].Image
					v.PullPolicy = c.pull
					if c.image != "" {
						v.Reference = c.image
					}
				}))
				time.Sleep(5 * time.Second)
				st := d.wantPhase("a", corev1.PodPending, "")
				if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != c.reason || !strings.Contains(w.Message, c.message) {
					t.Errorf("it waits: %v", w)
				}
				if got := d.copies(); len(got) != 0 {
					t.Errorf("of it there is %q", got)
				}
				d.wantContainers()
				if c.reason == "ErrImagePull" && c.image == "" {
					time.Sleep(16 * time.Second)
					st := d.wantPhase("a", corev1.PodPending, "")
					if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ImagePullBackOff" {
						t.Errorf("later it waits: %v", w)
					}
					d.twin.OfferImage("model:1", enginetest.Offer{Tree: modelTree})
					time.Sleep(5 * time.Minute)
					d.wantPhase("a", corev1.PodRunning, "")
				}
			})
		})
	}
}

// A telling engine says of each file of an image before it hands it over.
type telling struct {
	engine.Engine
	at func()
}

func (w telling) ImageTree(ctx context.Context, ref string, s engine.Spec, take func(int64) (func(*tar.Header, io.Reader) error, error)) error {
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

// Killed at any moment, an agent leaves no half copy that another one takes for a whole.
func TestAnAgentThatIsKilledWhileItCopiesAnImage(t *testing.T) {
	twin := enginetest.New()
	twin.AddImage("model:1", 5000, nil)
	twin.SetImageTree("model:1", modelTree...)
	newAgent := func(root string) *Agent {
		a := &Agent{log: slog.New(slog.DiscardHandler), disk: disk{root: root}, copying: make(chan struct{}, 1)}
		made(t, os.MkdirAll(filepath.Join(root, podsDir), 0o700))
		return a
	}
	pod := imagePod("a")
	root, moments := t.TempDir(), t.TempDir()
	n := 0
	killed := func() {
		n++
		made(t, os.CopyFS(filepath.Join(moments, string(rune('a'+n))), os.DirFS(root)))
	}
	work := func(e engine.Engine) job {
		return job{step: Step{Pod: &pod, Spec: &pod.Spec.Containers[0]}, engine: e, node: Facts{StateDir: "abc"}, hard: anyDisk(t).Hard}
	}
	whole := func(a *Agent, name string) {
		t.Helper()
		if got := treeOf(t, filepath.Join(a.disk.root, imagesDir, name)); !slices.Equal(got, modelLines) {
			t.Errorf("the copy holds\n%s", strings.Join(got, "\n"))
		}
	}
	first := newAgent(root)
	name, err := first.copyImage(t.Context(), work(telling{twin, killed}), "model:1")
	made(t, err)
	whole(first, name)
	killed()
	if n < 7 {
		t.Fatalf("it was killed %d times", n)
	}
	for _, moment := range entries(moments) {
		for start, do := range map[string]func(*Agent){"copies": func(*Agent) {}, "tidies, and copies": (*Agent).tidyImages} {
			state := filepath.Join(t.TempDir(), "state")
			made(t, os.CopyFS(state, os.DirFS(filepath.Join(moments, moment))))
			a := newAgent(state)
			do(a)
			for _, left := range entries(filepath.Join(state, imagesDir)) {
				if left == name {
					whole(a, name)
				} else if start != "copies" {
					t.Errorf("killed at %s: %s is left", moment, left)
				}
			}
			again, err := a.copyImage(t.Context(), work(twin), "model:1")
			if made(t, err); again != name {
				t.Errorf("it is called %s, and then %s", name, again)
			}
			whole(a, name)
			made(t, a.disk.clean(pod.UID))
			a.tidyImages()
			if left := entries(filepath.Join(state, imagesDir)); len(left) != 0 {
				t.Errorf("killed at %s, which then %s: of a pod that is gone there is %q", moment, start, left)
			}
		}
	}
}

func TestACopyIsMountedReadOnlyAndNothingOutsideOfIt(t *testing.T) {
	d := newDisk(t)
	id := strings.Repeat("ab", 32)
	dir := filepath.Join(d.root, imagesDir, id)
	made(t, os.MkdirAll(filepath.Join(dir, "model"), 0o755))
	made(t, os.WriteFile(filepath.Join(dir, "model", "weights"), []byte("w"), 0o644))
	made(t, os.Symlink("model", filepath.Join(dir, "latest")))
	made(t, os.Symlink("/etc", filepath.Join(dir, "out")))
	p := imagePod("a")
	for sub, want := range map[string]string{"": dir, "model": dir + "/model", "model/weights": dir + "/model/weights", "latest": dir + "/model", "out": "!leads out of the volume", "../..": "!must be a relative path", "none": "!no such file"} {
		c := &p.Spec.Containers[0]
		c.VolumeMounts = []corev1.VolumeMount{{Name: "m", MountPath: "/m", SubPath: sub}}
		m, err := d.prepareMounts(podspec.Sources{Pod: &p, Images: map[string]string{"m": id}}, c, Policy{})
		if why, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%q: %v, %v", sub, m.mounts, err)
			}
		} else if err != nil || len(m.mounts) != 1 || m.mounts[0].Source != want || !m.mounts[0].ReadOnly {
			t.Errorf("%q: %v, %v", sub, m.mounts, err)
		}
		made(t, m.close())
	}
	if _, err := imageID("sha256:../../" + strings.Repeat("a", 58)); err == nil {
		t.Error("an id leads elsewhere")
	}
}
