package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
