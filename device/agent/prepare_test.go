package agent

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/wire"
)

// desireImages stores a desired state with images to prepare.
func (d *device) desireImages(generation int64, prepare ...wire.Preparation) {
	d.t.Helper()
	if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "hub-1", Images: &wire.Images{Prepare: prepare}}); err != nil {
		d.t.Fatal(err)
	}
}

// statusNames reports whether the node's status has an image of that name.
func (d *device) statusNames(image string) bool {
	return slices.ContainsFunc(d.agent.Status().Status.Images, func(i corev1.ContainerImage) bool {
		return slices.Contains(i.Names, image)
	})
}

func TestImagesArePulledInAdvance(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.OfferImage("web:2", enginetest.Offer{Err: errors.New("the registry is away")})
		d.fake.OfferImage("other:1", enginetest.Offer{Size: 1 << 20})
		d.desireImages(1, wire.Preparation{Namespace: "default", Image: "web:2"}, wire.Preparation{Image: "other:1"})
		time.Sleep(10 * time.Second)
		if d.statusNames("web:2") || !d.statusNames("other:1") {
			t.Fatalf("the status has the images %v", d.agent.Status().Status.Images)
		}
		d.fake.OfferImage("web:2", enginetest.Offer{Size: 1 << 20})
		time.Sleep(30 * time.Second)
		if !d.statusNames("web:2") {
			t.Fatalf("after the registry is back the status has the images %v", d.agent.Status().Status.Images)
		}
		d.fake.Record()
		d.end()
		d.start()
		time.Sleep(10 * time.Second)
		if pulls := d.fake.Calls(); slices.Contains(pulls, "Pull web:2") || !d.statusNames("web:2") {
			t.Errorf("after a restart: calls %v, images %v", pulls, d.agent.Status().Status.Images)
		}
		d.desireImages(2)
		time.Sleep(10 * time.Second)
		synctest.Wait() // the agent's loop sleeps
		if len(d.agent.loop.preparations) != 0 {
			t.Error("images that are not in the list any more are still prepared")
		}
	})
}

func TestAnImageThatThePolicyForbidsIsNotPulledInAdvance(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		p := policy.Default()
		p.Registries = []string{"registry.example.org"}
		d.config.Policy.Document = p
		d.start()
		d.fake.OfferImage("web:2", enginetest.Offer{Size: 1 << 20})
		d.fake.Record()
		d.desireImages(1, wire.Preparation{Image: "web:2"})
		time.Sleep(time.Minute)
		if slices.Contains(d.fake.Calls(), "Pull docker.io/library/web:2") || count(d.reasons(), "PrepullForbidden") != 1 {
			t.Errorf("calls %v, events %v", d.fake.Calls(), d.reasons())
		}
	})
}
