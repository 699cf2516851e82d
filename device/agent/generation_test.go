package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/wire"
)

// What a status and its conditions are of is the pod's generation that the device has (KEP-5067).
func TestAStatusTellsOfWhichGenerationItIs(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait")
		for generation := int64(1); generation < 4; generation++ {
			p.Generation = generation
			d.desire(generation, p)
			time.Sleep(5 * time.Second)
			st := d.wantPhase("web", corev1.PodRunning, "")
			if st.ObservedGeneration != generation || len(st.Conditions) == 0 {
				t.Errorf("of generation %d it tells %d", generation, st.ObservedGeneration)
			}
			for _, c := range st.Conditions {
				if c.ObservedGeneration != generation {
					t.Errorf("of generation %d condition %s tells %d", generation, c.Type, c.ObservedGeneration)
				}
			}
		}
		d.wantContainers("web/c0#0 running")
	})
}

// What is asked for and neither granted nor refused yet is of a generation that the status does
// not tell of: whoever waits for it would take the pod for resized.
func TestWhatIsOnlyAskedForIsNotObserved(t *testing.T) {
	was, now := makePod("p", "wait"), makePod("p", "wait")
	was.Generation, now.Generation = 1, 2
	d := keepGrants(wire.Desired{Pods: []corev1.Pod{has(was, 0, "20m/30m 35Mi/45Mi")}}, wire.Desired{Pods: []corev1.Pod{has(now, 0, "25m/35m 40Mi/50Mi")}})
	run, asked := split(d)
	pod := &run.Pods[0]
	if len(asked) != 1 {
		t.Fatalf("it asks for %v", asked)
	}
	o := &Observed{Asked: asked, Pods: map[types.UID]*Record{}}
	r := o.record(pod.UID)
	observed := func() int64 { return podStatus(pod, r, o, "docker", time.Now()).ObservedGeneration }
	if got := observed(); got != 1 {
		t.Errorf("asked for, it tells of generation %d", got)
	}
	r.Pending = &Verdict{corev1.PodReasonDeferred, "no room"}
	if got := observed(); got != 2 {
		t.Errorf("deferred, it tells of generation %d", got)
	}
	r.Pending, o.Asked = nil, nil
	if got := observed(); got != 2 {
		t.Errorf("granted, it tells of generation %d", got)
	}
}
