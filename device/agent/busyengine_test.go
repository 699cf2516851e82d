package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
)

// A restlessEngine sends an event twice a second, and needs a second to list its containers.
type restlessEngine struct{ *enginetest.Fake }

func (e restlessEngine) Events(ctx context.Context, _ string, changed func()) error {
	for ctx.Err() == nil {
		changed()
		time.Sleep(time.Second / 2)
	}
	return ctx.Err()
}

func (e restlessEngine) Containers(ctx context.Context, label string) ([]engine.Container, error) {
	list, err := e.Fake.Containers(ctx, label)
	time.Sleep(time.Second)
	return list, err
}

// A container that runs out of memory again and again does not delay starts, restarts and removals
// of other containers, even if the engine lists containers slowly.
func TestConstantEventsOfTheEngineDelayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.engine = restlessEngine{d.fake}
		d.start()
		defer func() { d.end() }()
		web, job := makePod("web", "wait"), makePod("job", "sleep 1m then exit 0")
		job.Spec.RestartPolicy = corev1.RestartPolicyNever
		d.desire(1, web, job)
		time.Sleep(2 * time.Minute)
		d.wantContainers("job/c0#0 exited", "web/c0#0 running")
		d.wantPhase("job", corev1.PodSucceeded, "")
		d.stop("web")
		time.Sleep(time.Minute)
		d.wantContainers("job/c0#0 exited", "web/c0#0 exited", "web/c0#1 running")
		d.desire(2, deletedPod(web, 1), job)
		time.Sleep(2 * time.Minute)
		d.wantContainers("job/c0#0 exited")
	})
}
