package agent

import (
	"archive/tar"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/policy"
)

var modelTree = []enginetest.Entry{
	tarEntry(tar.TypeDir, "model/", ""), tarEntry(tar.TypeReg, "model/weights", strings.Repeat("w", 5000),
		withMode(0o644)), tarEntry(tar.TypeSymlink, "latest", "model"),
}

// imagePod mounts the image "model:1" as a volume.
func imagePod(name string, change ...func(*corev1.Pod)) corev1.Pod {
	p := makePod(name, "wait")
	p.UID = types.UID("uid-" + name)
	p.Spec.Volumes = []corev1.Volume{{Name: "m",
		VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "model:1",
			PullPolicy: corev1.PullIfNotPresent}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "m", MountPath: "/models"},
		{Name: "m", MountPath: "/w", SubPath: "model"}}
	for _, f := range change {
		f(&p)
	}
	return p
}

// copies are the names of the image copies on the disk.
func (d *device) copies() []string { return namesIn(filepath.Join(d.config.VolumesDir, "images")) }

func (d *device) withModels() {
	d.config.VolumesDir = d.t.TempDir()
	d.fake.OfferImage("model:1", enginetest.Offer{Size: 5000, Tree: modelTree, Delay: time.Second})
}

func TestAnImageVolumeIsPulledCopiedOnceAndRemovedWithItsLastPod(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.withModels()
		d.start()
		d.fake.Record()
		a, b := imagePod("a"), imagePod("b")
		d.desire(1, a, b)
		time.Sleep(5 * time.Second)
		d.wantPhase("a", corev1.PodRunning, "")
		d.wantPhase("b", corev1.PodRunning, "")
		names := d.copies()
		if len(names) != 1 {
			t.Fatalf("the image copies are %q, want one", names)
		}
		copied := filepath.Join(d.config.VolumesDir, "images", names[0])
		if got, err := os.ReadFile(filepath.Join(copied, "latest", "weights")); err != nil || len(got) != 5000 {
			t.Errorf("the copied file has %d bytes: %v", len(got), err)
		}
		if n := strings.Count(strings.Join(d.fake.Calls(), ";"), "ImageTree"); n != 1 {
			t.Errorf("the image was read %d times, want once", n)
		}
		if r := d.reasons(); !slices.Contains(r, "Pulling") {
			t.Errorf("the events are %q, want Pulling", r)
		}
		list, err := d.fake.Containers(t.Context(), volume.LabelImageOf)
		if err != nil || len(list) != 0 {
			t.Errorf("containers that read images are left: %v, %v", list, err)
		}
		d.desire(2, a)
		time.Sleep(5 * time.Second)
		if got := d.copies(); !slices.Equal(got, names) {
			t.Errorf("after the end of one pod the image copies are %q, want %q", got, names)
		}
		d.end()
		d.start()
		time.Sleep(5 * time.Second)
		if got := d.copies(); !slices.Equal(got, names) {
			t.Errorf("after a restart of the agent the image copies are %q, want %q", got, names)
		}
		d.desire(3)
		time.Sleep(5 * time.Second)
		if got := d.copies(); len(got) != 0 {
			t.Errorf("without pods the image copies are %q, want none", got)
		}
	})
}

// If a tag moves, each start of a container may use another image. A copy that no container uses is
// removed before the pod ends.
func TestACopyIsRemovedWithItsLastContainer(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.withModels()
		d.start()
		always := func(p *corev1.Pod) { p.Spec.Volumes[0].Image.PullPolicy = corev1.PullAlways }
		move := func(to string) {
			d.fake.OfferImage("model:1", enginetest.Offer{ID: "sha256:" + strings.Repeat(to, 64), Size: 5000,
				Tree:  modelTree,
				Delay: time.Second})
		}
		restart := func(pod string, want int, which string) {
			t.Helper()
			d.fake.Exit(d.newest(t, pod), 1)
			time.Sleep(time.Minute)
			d.wantPhase(pod, corev1.PodRunning, "")
			if got := d.copies(); len(got) != want || !slices.Contains(got, strings.Repeat(which, 64)) {
				t.Errorf("after the start of %s the image copies are %.8q, want %d with %s", pod, got, want, which)
			}
		}
		move("a")
		d.desire(1, imagePod("a", always), imagePod("b", always))
		time.Sleep(5 * time.Second)
		if got := d.copies(); len(got) != 1 {
			t.Fatalf("the image copies are %q, want one", got)
		}
		restart("a", 1, "a")
		move("b")
		restart("a", 2, "a") // container b uses the copy of image a
		move("c")
		restart("a", 2, "c")
		restart("b", 1, "c")
	})
}

// A container waits for the image of a volume in the same way as for its own image.
func TestAnImageVolumeWithoutItsImage(t *testing.T) {
	sign := policy.Default()
	sign.Signatures = []policy.Signature{{Images: []string{"registry.example.org"},
		Keys: []string{"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA21pH8j/5r0SJr/OpXaaTBLTdkWERZPdTImd+IMII/e0=\n-----END PUBLIC KEY-----\n"}}, {Unsigned: true}}
	for name, c := range map[string]struct {
		change  func(d *device)
		pull    corev1.PullPolicy
		image   string
		reason  string
		message string
	}{
		"the image cannot be pulled": {func(d *device) { d.fake.OfferImage("model:1", enginetest.Offer{Err: errors.New("no route to host")}) }, corev1.PullIfNotPresent, "", "ErrImagePull", "no route to host"},
		"the pull policy is Never":   {nil, corev1.PullNever, "", "ErrImageNeverPull", `container image "model:1" is not present with pull policy of Never`},
		"the image name is invalid":  {nil, corev1.PullIfNotPresent, "MODEL", "InvalidImageName", `failed to parse image name "MODEL"`},
		"a path leads out of the image": {func(d *device) {
			d.fake.OfferImage("model:1", enginetest.Offer{Tree: []enginetest.Entry{tarEntry(tar.TypeReg, "a", "x"),
				tarEntry(tar.TypeReg, "../a", "x")}})
		}, corev1.PullIfNotPresent, "", "CreateContainerError",
			`ImageVolumeMountFailed: volume "m": image model:1: read image model:1: "../a" leads out of the image`},
		"the image is too large": {func(d *device) { d.fake.OfferImage("model:1", enginetest.Offer{Size: 1 << 50}) }, corev1.PullIfNotPresent, "", "CreateContainerError", "its files have 1125899906842624 bytes, and "},
		"the image is not signed": {func(d *device) {
			d.config.Policy = plan.Policy{Document: sign}
			d.config.Verify = (&fakeRegistry{err: errors.New("registry.example.org/model:1: it is not signed")}).verify
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
				if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != c.reason ||
					!strings.Contains(w.Message, c.message) {
					t.Errorf("the container's state is %v, want %s", w, c.message)
				}
				if got := d.copies(); len(got) != 0 {
					t.Errorf("the image copies are %q, want none", got)
				}
				d.wantContainers()
				if c.reason == "ErrImagePull" && c.image == "" {
					time.Sleep(16 * time.Second)
					st := d.wantPhase("a", corev1.PodPending, "")
					if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ImagePullBackOff" {
						t.Errorf("after the next attempt the container's state is %v, want ImagePullBackOff", w)
					}
					d.fake.OfferImage("model:1", enginetest.Offer{Tree: modelTree})
					time.Sleep(5 * time.Minute)
					d.wantPhase("a", corev1.PodRunning, "")
				}
			})
		})
	}
}
