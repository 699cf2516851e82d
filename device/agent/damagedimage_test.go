package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine/enginetest"
)

const damagedImage = "registry.test/web:1"

func count(list []string, item string) (n int) {
	for _, s := range list {
		if s == item {
			n++
		}
	}
	return n
}

// damage removes a layer of the image of an ended container, as a power cut may do.
func (d *device) damage(t *testing.T, policy corev1.PullPolicy) {
	offer := enginetest.Offer{Size: 1 << 20, Program: toolOrPause}
	d.fake.OfferImage(damagedImage, offer)
	pod := makePod("web", "wait")
	pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = damagedImage, corev1.PullIfNotPresent
	d.desire(1, pod)
	time.Sleep(5 * time.Second)
	d.wantContainers("web/c0#0 running")
	pod.Spec.Containers[0].ImagePullPolicy = policy
	d.desire(2, pod)
	d.end()
	d.fake.Damage(damagedImage)
	d.fake.PowerCut()
	d.board.set(func(b *board) { b.boot = "boot-2" })
	d.fake.Record()
	d.start()
}

func TestADamagedImageIsRemovedAndPulledAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.damage(t, corev1.PullIfNotPresent)
		time.Sleep(time.Minute)
		d.wantContainers("web/c0#1 running")
		if n := count(d.reasons(), "ImageDamaged"); n != 1 {
			t.Errorf("the damage was reported %d times: %q", n, d.reasons())
		}
	})
}

// A damaged image is not removed if it cannot be pulled again: the registry may be unreachable for
// months, and the disk may be the cause of the damage.
func TestADamagedImageIsNotRemovedIfItCannotBePulled(t *testing.T) {
	for name, of := range map[string]struct {
		policy corev1.PullPolicy
		away   error
	}{
		"the registry is unreachable": {corev1.PullIfNotPresent, errors.New("i/o timeout")},
		"the pull policy is Never":    {corev1.PullNever, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.fake.OfferImage(damagedImage, enginetest.Offer{Size: 1 << 20, Program: toolOrPause})
				d.damage(t, of.policy)
				d.fake.OfferImage(damagedImage, enginetest.Offer{Err: of.away, Program: toolOrPause})
				time.Sleep(10 * time.Minute)
				d.wantContainers("web/c0#0 exited")
				if slices.ContainsFunc(d.fake.Calls(), func(c string) bool { return strings.HasPrefix(c, "Remove") }) {
					t.Errorf("the agent called %q, want no removal", d.fake.Calls())
				}
				if count(d.reasons(), "ImageDamaged") == 0 {
					t.Errorf("the events lack the damage: %q", d.reasons())
				}
				st := d.wantPhase("web", corev1.PodRunning, "").ContainerStatuses[0]
				if st.State.Waiting == nil || st.State.Waiting.Reason != "ImageInspectError" {
					t.Errorf("the container's status is %+v, want ImageInspectError", st.State)
				}
				if of.policy == corev1.PullNever {
					return
				}
				d.fake.OfferImage(damagedImage, enginetest.Offer{Size: 1 << 20, Program: toolOrPause})
				time.Sleep(10 * time.Minute)
				d.wantContainers("web/c0#1 running")
			})
		})
	}
}

// If an image is damaged again at once, the cause is the disk, or a layer that a running container
// of the owner uses.
func TestAnImageThatStaysDamagedIsPulledOnceAnHourAtMost(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.damage(t, corev1.PullIfNotPresent)
		again := make(chan bool)
		go func() {
			for {
				select {
				case <-again:
					return
				case <-time.After(20 * time.Millisecond):
					d.fake.Damage(damagedImage)
				}
			}
		}()
		time.Sleep(55 * time.Minute)
		close(again)
		if n := count(d.fake.Calls(), "RemoveImage "+damagedImage); n != 1 {
			t.Errorf("the image was removed %d times", n)
		}
	})
}
