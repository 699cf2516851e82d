package agent

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine/enginetest"
)

// After a power cut, with an uplink that drops every packet, a device starts the pods whose images
// are present, whatever their pull policy and the engine's timeout.
func TestASilentRegistryDoesNotDelayPresentImages(t *testing.T) {
	silent := func(d *device, image string, delay time.Duration) {
		d.fake.OfferImage(image, enginetest.Offer{Program: toolOrPause, Delay: delay, Err: errors.New("i/o timeout")})
	}
	pods := func(d *device, n int, image string) (all []corev1.Pod) {
		for i := range n {
			p := makePod(fmt.Sprint(image[:1], i), "wait")
			p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, corev1.PullAlways
			all = append(all, p)
		}
		return all
	}
	runs := func(d *device) (n int) {
		for _, c := range d.containers() {
			if c[len(c)-len("running"):] == "running" {
				n++
			}
		}
		return n
	}
	for name, c := range map[string]func(t *testing.T, d *device){
		"Docker gives up after a while":      func(t *testing.T, d *device) { silent(d, "web:1", 15*time.Second) },
		"Podman gives up after many minutes": func(t *testing.T, d *device) { silent(d, "web:1", 7*time.Minute) },
		"other pods wait for missing images": func(t *testing.T, d *device) {
			silent(d, "web:1", 7*time.Minute)
			d.desire(1, pods(d, 2, "new:1")...)
			time.Sleep(10 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.fake.AddImage("web:1", 1, toolOrPause)
				silent(d, "new:1", 7*time.Minute)
				c(t, d)
				all := pods(d, 12, "web:1")
				d.desire(2, slices.Concat(pods(d, 2, "new:1"), all)...)
				time.Sleep(45 * time.Second)
				if n := runs(d); n != len(all) {
					t.Errorf("%d of %d pods run after 45 s", n, len(all))
				}
				if !slices.Contains(d.reasons(), "PullFailedUsingPresent") {
					t.Errorf("events %q do not say that the image could not be pulled", d.reasons())
				}
			})
		})
	}
	t.Run("pods wait for a pull while the registry responds", func(t *testing.T) {
		bubble(t, func(t *testing.T, d *device) {
			d.fake.AddImage("web:1", 1, toolOrPause)
			silent(d, "web:1", time.Minute)
			d.desire(1, pods(d, 1, "web:1")...)
			time.Sleep(40 * time.Second)
			d.fake.OfferImage("web:1", enginetest.Offer{ID: "sha256:new", Size: 1 << 20, Program: toolOrPause,
				Delay: 20 * time.Minute, Tells: 10 * time.Second})
			time.Sleep(time.Minute)
			d.desire(2, pods(d, 4, "web:1")...)
			time.Sleep(15 * time.Minute)
			if n := runs(d); n != 1 {
				t.Errorf("%d pods run during the newest pull, want 1", n)
			}
			time.Sleep(10 * time.Minute)
			if n := runs(d); n != 3 {
				t.Errorf("%d pods run after two pulls, want 3", n)
			}
		})
	})
}
