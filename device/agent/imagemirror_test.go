package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/mirror"
	"flotilla.dev/shared/wire"
)

// An image of a mirrored registry is pulled from the hub, and from the registry if the hub does not
// have it or is away.
func TestAnImageIsPulledFromTheHubFirst(t *testing.T) {
	const atHub, atRegistry = "127.0.0.1:5443/docker.io/library/web:1", "web:1"
	offer := enginetest.Offer{Size: 1 << 20, Program: toolOrPause}
	away := enginetest.Offer{Err: errors.New("the hub does not answer")}
	for _, c := range []struct {
		rule   string
		offers map[string]enginetest.Offer
		local  string // an image that is on the device
		policy corev1.PullPolicy
		pulls  string
	}{
		{"the hub has it", map[string]enginetest.Offer{atHub: offer, atRegistry: offer}, "", corev1.PullIfNotPresent, atHub},
		{"the hub does not have it", map[string]enginetest.Offer{atRegistry: offer}, "", corev1.PullIfNotPresent,
			atHub + " " + atRegistry},
		{"the hub is away", map[string]enginetest.Offer{atHub: away, atRegistry: offer}, "", corev1.PullIfNotPresent,
			atHub + " " + atRegistry},
		{"the registry's is on the device", map[string]enginetest.Offer{atHub: offer}, atRegistry, corev1.PullIfNotPresent, ""},
		{"the hub's is on the device", map[string]enginetest.Offer{atRegistry: offer}, atHub, corev1.PullIfNotPresent, ""},
		{"both are away, and the image is on the device", map[string]enginetest.Offer{atHub: away, atRegistry: away}, atRegistry,
			corev1.PullAlways, atHub + " " + atRegistry},
		{"both are away, and the hub's image is on the device", map[string]enginetest.Offer{atHub: away, atRegistry: away}, atHub,
			corev1.PullAlways, atHub + " " + atRegistry},
	} {
		t.Run(c.rule, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.end()
				d.config.Policy.Mirror = "127.0.0.1:5443"
				d.start()
				for name, o := range c.offers {
					d.fake.OfferImage(name, o)
				}
				if c.local != "" {
					d.fake.AddImage(c.local, 1<<20, toolOrPause)
				}
				d.fake.Record()
				pod := makePod("web", "wait")
				pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = atRegistry, c.policy
				d.agent.Desired(wire.Desired{Hub: "hub", Generation: 1, Pods: []corev1.Pod{pod},
					Images: &wire.Images{Mirrors: []string{"docker.io"}}})
				time.Sleep(10 * time.Second)
				var pulls []string
				for _, call := range d.fake.Calls() {
					if image, is := strings.CutPrefix(call, "Pull "); is && !slices.Contains(pulls, image) {
						pulls = append(pulls, image)
					}
				}
				if got := strings.Join(pulls, " "); got != c.pulls {
					t.Errorf("it pulled %q, want %q", got, c.pulls)
				}
				d.wantContainers("web/c0#0 running")
			})
		})
	}
}

// hubImage is an image on a hub with one layer.
type hubImage struct {
	size    int64
	missing bool
}

func (h hubImage) Parts(context.Context, string, string, mirror.Platform) (mirror.Parts, error) {
	if h.missing {
		return mirror.Parts{}, mirror.ErrNotFound
	}
	return mirror.Parts{Layers: []mirror.Layer{{Digest: "sha256:aa", Size: h.size}}}, nil
}

func (h hubImage) Passed(string) int64 { return 0 }

func (h hubImage) Unpacked(context.Context, mirror.Parts) ([]string, error) {
	return []string{"sha256:bb"}, nil
}

func TestAnImageWithoutRoomIsNotPulled(t *testing.T) {
	const image = "127.0.0.1:5443/web:1"
	for _, c := range []struct {
		rule   string
		hub    hubImage
		layers []string // on the device
		pulls  bool
		says   string
	}{
		{"there is room", hubImage{size: 400 << 20}, nil, true, "Pulling image \"hub/web:1\" (400.0 MiB)"},
		{"there is no room", hubImage{size: 600 << 20}, nil, false,
			"it needs at least 1200.0 MiB, and 1024.0 MiB are free"},
		{"its layer is on the device", hubImage{size: 600 << 20}, []string{"sha256:bb"}, true, "(600.0 MiB)"},
		{"the hub does not have it", hubImage{missing: true}, nil, false, "the hub does not have it"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.end()
				d.config.Policy.Mirror, d.config.Images = "127.0.0.1:5443", c.hub
				d.start()
				d.fake.OfferImage("other:1", enginetest.Offer{Layers: c.layers})
				if err := d.fake.Pull(t.Context(), "other:1", nil, nil); err != nil {
					t.Fatal(err)
				}
				d.fake.OfferImage(image, enginetest.Offer{Size: 1 << 20, Program: toolOrPause})
				d.fake.Record()
				pod := makePod("web", "wait")
				pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = "hub/web:1", corev1.PullIfNotPresent
				d.desire(1, pod)
				time.Sleep(10 * time.Minute)
				if pulled := slices.Contains(d.fake.Calls(), "Pull "+image); pulled != c.pulls {
					t.Errorf("it was pulled: %t", pulled)
				}
				if said := strings.Join(append(d.messagesOf("Failed"), d.messagesOf("Pulling")...), "\n"); !strings.Contains(said, c.says) {
					t.Errorf("the events say %s; want %q", said, c.says)
				}
				if n := len(d.messagesOf("Failed")); n > 1 && !c.hub.missing {
					t.Errorf("%d events in ten minutes", n)
				}
				d.board.set(func(b *board) { b.stats.ImageFs.Available = 10 << 30 })
				time.Sleep(10 * time.Minute)
				if !c.hub.missing {
					d.wantContainers("web/c0#0 running")
				}
			})
		})
	}
}

func TestAPodsStatusShowsHowMuchOfItsImageHasCome(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.OfferImage("web:1", enginetest.Offer{Size: 100 << 20, Delay: 40 * time.Second, Tells: time.Second,
			Program: toolOrPause})
		pod := makePod("web", "wait")
		pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = "web:1", corev1.PullIfNotPresent
		d.desire(1, pod)
		time.Sleep(time.Second) // the changes of a new pod are over
		changes := d.podChanges()
		time.Sleep(20 * time.Second)
		st := d.wantPhase("web", corev1.PodPending, "").ContainerStatuses[0]
		if st.State.Waiting == nil || !strings.HasPrefix(st.State.Waiting.Message, "pulling image: ") ||
			!strings.HasSuffix(st.State.Waiting.Message, " of 100.0 MiB") {
			t.Errorf("it is %+v", st.State)
		}
		if n := d.podChanges() - changes; n > 3 {
			t.Errorf("its status changed %d times in 20 s, want one change in 10 s", n)
		}
		time.Sleep(30 * time.Second)
		d.wantContainers("web/c0#0 running")
	})
}
