package agent

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// By a hard threshold a pod goes at once, by a soft one when it has been crossed for so long, and with its grace, which
// the profile may shorten. The pod here takes an hour to end.
func TestPodsGoByHardAndSoftThresholds(t *testing.T) {
	const mi = 1 << 20
	for _, c := range []struct {
		rule    string
		max     int64
		stats   func(*hardware.Stats)
		runs    time.Duration // still, after it was crossed
		over    time.Duration // no more
		message string
	}{
		{"hard memory", 0, func(s *hardware.Stats) { s.Memory = hardware.Amount{Available: 50 * mi, Capacity: 2 << 30} }, 0, 20 * time.Second, "low on resource: memory"},
		{"soft memory", 0, func(s *hardware.Stats) { s.Memory = hardware.Amount{Available: 150 * mi, Capacity: 2 << 30} }, 9*time.Minute + 50*time.Second, 11*time.Minute + 30*time.Second, "low on resource: memory"},
		{"soft memory with a shorter grace", 5, func(s *hardware.Stats) { s.Memory = hardware.Amount{Available: 150 * mi, Capacity: 2 << 30} }, 58 * time.Second, 90 * time.Second, "low on resource: memory"},
		{"soft heat", 5, func(s *hardware.Stats) { s.Temperature = hardware.Amount{Available: 83_000, Capacity: 1} }, 118 * time.Second, 150 * time.Second, "too hot"},
		{"hard heat", 5, func(s *hardware.Stats) { s.Temperature = hardware.Amount{Available: 89_000, Capacity: 1} }, 0, 20 * time.Second, "too hot"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.twin.AddImage("slow", 1, func(engine.Spec, int) enginetest.Play {
					return enginetest.Play{MemoryBytes: 300 * mi, StopTakes: time.Hour}
				})
				p, grace := makePod("app", ""), int64(540)
				p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy, p.Spec.TerminationGracePeriodSeconds = "slow", corev1.PullNever, &grace
				profile := &fleet.BoardProfile{}
				profile.Spec.Resources = fleet.BoardResources{
					EvictionHard: map[string]string{fleet.SignalMemoryAvailable: "100Mi", fleet.SignalTemperature: "88"},
					EvictionSoft: map[string]fleet.SoftThreshold{
						fleet.SignalMemoryAvailable: {Value: "200Mi", For: metav1.Duration{Duration: time.Minute}},
						fleet.SignalTemperature:     {Value: "82", For: metav1.Duration{Duration: 2 * time.Minute}},
					},
					EvictionMaxPodGracePeriod: c.max,
				}
				if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "hub-1", Pods: []corev1.Pod{p}, Profile: profile}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(20 * time.Second)
				d.wantPhase("app", corev1.PodRunning, "")
				d.board.set(func(b *board) { c.stats(&b.stats) })
				time.Sleep(c.runs)
				if d.running() == nil {
					t.Fatalf("it has ended within %s", c.runs)
				}
				time.Sleep(c.over - c.runs)
				if st := d.wantPhase("app", corev1.PodFailed, "Evicted"); !strings.Contains(st.Message, c.message) {
					t.Errorf("it was evicted with %q", st.Message)
				}
				if run := d.running(); run != nil {
					t.Errorf("%q still run after %s", run, c.over)
				}
			})
		})
	}
}
