package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A status and its conditions have the generation of the pod that the device runs (KEP-5067).
func TestAStatusHasTheObservedGeneration(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait")
		for generation := int64(1); generation < 4; generation++ {
			p.Generation = generation
			d.desire(generation, p)
			time.Sleep(5 * time.Second)
			st := d.wantPhase("web", corev1.PodRunning, "")
			if st.ObservedGeneration != generation || len(st.Conditions) == 0 {
				t.Errorf("generation %d has the observed generation %d", generation, st.ObservedGeneration)
			}
			for _, c := range st.Conditions {
				if c.ObservedGeneration != generation {
					t.Errorf("generation %d: condition %s has the observed generation %d", generation, c.Type,
						c.ObservedGeneration)
				}
			}
		}
		d.wantContainers("web/c0#0 running")
	})
}
