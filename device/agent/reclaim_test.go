package agent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/policy/policytest"
)

func TestUnderMemoryPressureAPodAboveItsRequestIsEvicted(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		hog := func(_ engine.Spec, _ int) enginetest.Play { return enginetest.Play{MemoryBytes: 200 << 20} }
		d.fake.AddImage("hog", 1, hog)
		best, requested := makePod("best-effort", ""), requestingPod("requested", "100m", "64Mi")
		for _, p := range []*corev1.Pod{&best, &requested} {
			p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "hog", corev1.PullNever
		}
		d.desire(1, best, requested)
		time.Sleep(5 * time.Second)
		d.board.set(func(b *board) { b.stats.Memory = hardware.Amount{Available: 10 << 20, Capacity: 2 << 30} })
		time.Sleep(15 * time.Second)
		st := d.wantPhase("best-effort", corev1.PodFailed, "Evicted")
		if st.Message != "The node was low on resource: memory. Container c0 was using 200Mi, request is 0, has larger consumption of memory. " {
			t.Errorf("the pod was evicted with %q", st.Message)
		}
		if c := condition(st, corev1.DisruptionTarget); c.Status != corev1.ConditionTrue ||
			c.Reason != corev1.PodReasonTerminationByKubelet || c.Message != st.Message {
			t.Errorf("the condition DisruptionTarget is %+v, want TerminationByKubelet with the pod's message", c)
		}
		d.wantPhase("requested", corev1.PodRunning, "")
		pressure := func() corev1.ConditionStatus {
			for _, c := range d.agent.Status().Status.Conditions {
				if c.Type == corev1.NodeMemoryPressure {
					return c.Status
				}
			}
			return ""
		}
		if s := pressure(); s != corev1.ConditionTrue {
			t.Errorf("MemoryPressure is %s, want True", s)
		}
		d.board.set(func(b *board) { b.stats.Memory.Available = 1 << 30 })
		time.Sleep(10 * time.Minute)
		if s := pressure(); s != corev1.ConditionFalse {
			t.Errorf("10 minutes after the last shortage MemoryPressure is %s, want False", s)
		}
		d.wantPhase("requested", corev1.PodRunning, "")
	})
}

func TestVictim(t *testing.T) {
	const mi = 1 << 20
	pod := func(name string, priority int32, request string, usage int64) Candidate {
		p := makePod(name, "")
		p.Spec.Priority = &priority
		if request != "" {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)}
		}
		return candidate(&p, corev1.ResourceMemory, usage)
	}
	for name, all := range map[string][2]Candidate{ // the first pod of each pair is evicted
		"usage above the request, despite a higher priority":        {pod("over", 1000, "10Mi", 11*mi), pod("within", 0, "500Mi", 400*mi)},
		"the lower priority of two pods above their request":        {pod("low", 0, "10Mi", 11*mi), pod("high", 1000, "10Mi", 200*mi)},
		"the larger excess at the same priority":                    {pod("more", 5, "10Mi", 30*mi), pod("less", 5, "100Mi", 110*mi)},
		"the lower priority, although the other pod has no request": {pod("burstable", 0, "10Mi", 300*mi), pod("best-effort", 1000, "", mi)},
		"a pod without a request, whose whole usage is excess":      {pod("best-effort", 0, "", 20*mi), pod("burstable", 0, "10Mi", 20*mi)},
		"the lower priority of two pods within their requests":      {pod("low", 0, "500Mi", 10*mi), pod("high", 1000, "500Mi", 400*mi)},
	} {
		for _, order := range [][]Candidate{{all[0], all[1]}, {all[1], all[0]}} {
			if v, ok := Victim(order); !ok || v.Pod.Name != all[0].Pod.Name {
				t.Errorf("%s: %s is evicted, want %s", name, v.Pod.Name, all[0].Pod.Name)
			}
		}
	}
}

// Under disk pressure the agent removes images that it pulled and that no pod needs. Images of the
// device's owner stay.
func TestUnderDiskPressureUnneededImagesAreRemovedFirst(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for _, owners := range []string{"owners:1", "shared:1"} {
			d.fake.AddImage(owners, 1<<30, nil)
		}
		d.fake.OfferImage("model:1", enginetest.Offer{Size: 5000, Tree: modelTree})
		d.fake.OfferImage("old:1", enginetest.Offer{Size: 1 << 30})
		d.fake.OfferImage("shared:1", enginetest.Offer{Size: 1 << 30})
		old, shared := makePod("old", "exit 0"), makePod("shared", "exit 0")
		old.Spec.Containers[0].Image, shared.Spec.Containers[0].Image = "old:1", "shared:1"
		shared.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
		d.desire(1, imagePod("web"), old, shared)
		time.Sleep(15 * time.Second)
		d.desire(2, imagePod("web"))
		time.Sleep(time.Minute)
		for _, pulled := range []string{"old:1", "shared:1", "model:1"} {
			if _, ok, _ := d.fake.HasImage(context.Background(), pulled); !ok {
				t.Fatalf("image %s is missing, want it pulled and not removed", pulled)
			}
		}
		d.board.set(func(b *board) { b.stats.ImageFs = hardware.Amount{Available: 1 << 20, Capacity: 2 << 30} })
		time.Sleep(15 * time.Second)
		for image, stays := range map[string]bool{"old:1": false, "owners:1": true, "shared:1": true, "model:1": true,
			enginetest.ToolImage: true} {
			if _, ok, _ := d.fake.HasImage(context.Background(), image); ok != stays {
				t.Errorf("image %s is present: %v, want %v", image, ok, stays)
			}
		}
		d.wantPhase("web", corev1.PodRunning, "")
	})
}

// The engine lists an image without a name if it was pulled by digest, because the pod names the
// digest or the signature was verified. A running or starting container still needs the image:
// without network it cannot be pulled again.
func TestUnderDiskPressureImagesNeededByDigestStay(t *testing.T) {
	const repository = "registry.example.org/"
	model, web, old := repository+"model@"+digestOf("b"), repository+"web@"+digestOf("b"),
		repository+"old@"+digestOf("b")
	for name, tag := range map[string]string{"the pod names the digest": "@" + digestOf("b"),
		"the signature was verified": ":1"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.end()
				if tag == ":1" {
					doc := policy.Default()
					doc.Signatures = []policy.Signature{{Keys: []string{policytest.Ed25519}}}
					keys, err := policy.ParseKeys(policytest.Ed25519)
					if err != nil {
						t.Fatal(err)
					}
					d.config.Policy, d.config.Verify = plan.Policy{Document: doc},
						(&fakeRegistry{digest: digestOf("b"), key: keys[0].ID}).verify
				}
				d.start()
				d.fake.OfferImage(model, enginetest.Offer{Size: 5000, Tree: modelTree})
				d.fake.OfferImage(web, enginetest.Offer{Program: toolOrPause})
				d.fake.OfferImage(old, enginetest.Offer{Size: 1 << 30, Program: toolOrPause})
				needs := imagePod("needs", func(p *corev1.Pod) {
					p.Spec.Volumes[0].Image.Reference, p.Spec.Containers[0].Image = repository+"model"+tag,
						repository+"web"+tag
				})
				ended := makePod("ended", "exit 0")
				ended.Spec.Containers[0].Image = repository + "old" + tag
				d.desire(1, needs, ended)
				time.Sleep(15 * time.Second)
				wrong := makePod("wrong", "wait") // a pod with an invalid image name
				wrong.Spec.Containers[0].Image = "../../containers/json"
				d.desire(2, needs, wrong)
				time.Sleep(time.Minute)
				d.wantPhase("needs", corev1.PodRunning, "")
				d.board.set(func(b *board) { b.stats.ImageFs = hardware.Amount{Available: 1 << 20, Capacity: 2 << 30} })
				time.Sleep(15 * time.Second)
				for image, stays := range map[string]bool{model: true, web: true, old: false} {
					if _, ok, _ := d.fake.HasImage(context.Background(), image); ok != stays {
						t.Errorf("image %s is present: %v, want %v", image, ok, stays)
					}
				}
			})
		})
	}
}

// A pausedEngine does not return from Images until it continues.
type pausedEngine struct {
	engine.Engine
	until time.Time
}

func (s pausedEngine) Images(ctx context.Context) ([]engine.Image, error) {
	if time.Now().After(s.until) {
		return s.Engine.Images(ctx)
	}
	<-ctx.Done()
	return nil, fmt.Errorf("list the images: %w", ctx.Err())
}

// A hangingRemove engine does not return from Remove, like an engine with a busy mount.
type hangingRemove struct{ engine.Engine }

func (hangingRemove) Remove(ctx context.Context, id string) error {
	<-ctx.Done()
	return fmt.Errorf("remove container %s: %w", id, ctx.Err())
}

// An engine that stops during a clean-up, for example for an upgrade, or that hangs at one
// container, does not cause an eviction while there are unneeded images.
func TestUnderDiskPressureAnEngineFailureEvictsNoPod(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(d *device)
		until time.Duration
	}{
		"the engine stops before it lists the images":       {func(d *device) { d.fake.Fail("Images", fmt.Errorf("list images: %w", engine.ErrUnavailable)) }, time.Minute},
		"the engine stops before it looks up needed images": {func(d *device) { d.fake.Fail("HasImage", fmt.Errorf("look for image: %w", engine.ErrUnavailable)) }, time.Minute},
		"the engine stops while it removes an image":        {func(d *device) { d.fake.Fail("RemoveImage", fmt.Errorf("remove image: %w", engine.ErrUnavailable)) }, time.Minute},
		"the engine hangs at an ended container":            {func(d *device) { d.end(); d.engine = hangingRemove{d.fake}; d.start(); time.Sleep(time.Second) }, 4 * time.Minute},
		"the engine hangs at nine ended containers":         {func(d *device) { d.end(); d.engine = hangingRemove{d.fake}; d.start(); time.Sleep(time.Second) }, 9 * time.Minute},
		"the engine is paused before it lists the images": {func(d *device) {
			d.end()
			d.engine = pausedEngine{d.fake, time.Now().Add(8 * time.Minute)}
			d.start()
			time.Sleep(time.Second)
		}, 15 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.fake.OfferImage("old:1", enginetest.Offer{Size: 1 << 30, Program: toolOrPause})
				old, ended := makePod("old", "exit 0"), makePod("ended", "exit 0")
				old.Spec.Containers[0].Image = "old:1"
				ended.Spec.RestartPolicy = corev1.RestartPolicyNever
				d.desire(1, old)
				time.Sleep(15 * time.Second)
				d.desire(2, makePod("web", "wait"))
				time.Sleep(10 * time.Second)
				if strings.Contains(name, "hangs") {
					pods := []corev1.Pod{makePod("web", "wait"), ended}
					for i := 0; i < 8 && strings.Contains(name, "nine"); i++ {
						p := *ended.DeepCopy()
						p.Name, p.UID = fmt.Sprint("ended-", i), types.UID(fmt.Sprint("uid-ended-", i))
						pods = append(pods, p)
					}
					d.desire(3, pods...)
					time.Sleep(10 * time.Second)
				}
				c.fault(d)
				d.board.set(func(b *board) { b.stats.ImageFs = hardware.Amount{Available: 1 << 20, Capacity: 2 << 30} })
				for range int(c.until / time.Second) {
					time.Sleep(time.Second)
					if slices.Contains(d.reasons(), "DiskFreed") {
						break
					}
				}
				d.wantPhase("web", corev1.PodRunning, "")
				if _, there, _ := d.fake.HasImage(t.Context(), "old:1"); there {
					t.Error("the unneeded image is still present")
				}
			})
		})
	}
}

// A lasting shortage is reported at intervals, because each event wears the flash of the device and
// of the hub.
func TestALastingShortageIsReportedOnceAnHour(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1)
		d.board.set(func(b *board) {
			b.stats.ImageFs = hardware.Amount{Available: 1 << 20, Capacity: 2 << 30}
			b.stats.Memory = hardware.Amount{Available: 1 << 20, Capacity: 2 << 30}
		})
		time.Sleep(10*time.Hour + time.Minute)
		if reports := d.messagesOf("EvictionThresholdMet"); len(reports) != 2*11 {
			t.Errorf("two shortages of ten hours were reported %d times: %q", len(reports), slices.Compact(reports))
		}
	})
}

// With nothing else to remove, the pod that fills the disk is evicted.
func TestUnderDiskPressureTheLargestPodIsEvicted(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for image, written := range map[string]int64{"much": 30 << 20, "little": 1 << 10} {
			d.fake.AddImage(image, 1, func(engine.Spec,
				int) enginetest.Play {
				return enginetest.Play{Written: written}
			})
		}
		var pods []corev1.Pod
		for i, image := range []string{"little", "much", "little", "little"} {
			p := makePod(fmt.Sprint("app-", i), "")
			p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, corev1.PullNever
			p.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Duration(i) * time.Second))
			pods = append(pods, p)
		}
		pods[2].Spec.Volumes = []corev1.Volume{{Name: "data",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		pods[2].Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		pods[3].Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Mi")}
		d.desire(1, pods...)
		time.Sleep(5 * time.Second)
		if err := os.WriteFile(filepath.Join(d.dir, volume.PodsDir, "uid-app-2", "data", "x"), make([]byte, 4<<20),
			0o600); err != nil {
			t.Fatal(err)
		}
		d.board.set(func(b *board) { b.stats.ImageFs = hardware.Amount{Available: 1 << 20, Capacity: 2 << 30} })
		order := []string{"app-1", "app-2", "app-0", "app-3"}
		for i, victim := range order {
			for range 30 { // the previous victim's dead containers are removed first
				if time.Sleep(5 * time.Second); slices.ContainsFunc(order[i:],
					func(name string) bool { st, _ := d.pod(name); return plan.IsFinal(st.Phase) }) {
					break
				}
			}
			if st := d.wantPhase(victim, corev1.PodFailed, "Evicted"); i == 0 &&
				st.Message != "The node was low on resource: ephemeral-storage. The pod was using 30Mi, request is 0. " {
				t.Errorf("the pod's message is %q, want low ephemeral-storage", st.Message)
			}
		}
	})
}
