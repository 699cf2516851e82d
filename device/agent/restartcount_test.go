package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/plan"
)

// As with the kubelet, a restart count never decreases, even if another client removes containers,
// with or without a running agent.
func TestARestartCountNeverDecreases(t *testing.T) {
	for name, agentOff := range map[string]bool{"while the agent runs": false, "while no agent runs": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.desire(1, makePod("web", "sleep 1s then exit 1", "wait"))
				time.Sleep(2 * time.Minute)
				was := d.wantPhase("web", corev1.PodRunning, "").ContainerStatuses
				if was[0].RestartCount < 3 {
					t.Fatalf("the container has been restarted only %d times", was[0].RestartCount)
				}
				if agentOff {
					d.end()
				}
				list, err := d.fake.Containers(t.Context(), plan.LabelAgent)
				if err != nil || len(list) == 0 {
					t.Fatal(list, err)
				}
				for _, c := range list {
					d.fake.Lose(c.Name)
				}
				if agentOff {
					d.start()
				}
				for i := range 20 {
					time.Sleep(3 * time.Second)
					st := d.wantPhase("web", corev1.PodRunning, "").ContainerStatuses
					for k := range st {
						if st[k].RestartCount < was[k].RestartCount {
							t.Fatalf("round %d: the restart count of %s changes from %d to %d", i, st[k].Name,
								was[k].RestartCount,
								st[k].RestartCount)
						}
					}
				}
				if n := d.wantPhase("web", corev1.PodRunning, "").ContainerStatuses[1].RestartCount; n != 1 {
					t.Errorf("the restart count of the removed container is %d, want 1", n)
				}
			})
		})
	}
}

// The newest instance is gone, but an older instance with a smaller restart count still exists.
func TestARestartCountIsNotTakenFromAnOlderInstance(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "sleep 1s then exit 1"))
		time.Sleep(50 * time.Second)
		n := d.wantPhase("web", corev1.PodRunning, "").ContainerStatuses[0].RestartCount
		if n < 2 {
			t.Fatal(n)
		}
		d.end()
		list, err := d.fake.Containers(t.Context(), plan.LabelAgent)
		if err != nil || len(list) != 2 {
			t.Fatal(list, err)
		}
		newest := list[0]
		if list[1].Created.After(newest.Created) {
			newest = list[1]
		}
		d.fake.Lose(newest.Name)
		d.start()
		time.Sleep(2 * time.Second)
		if is := d.wantPhase("web", corev1.PodRunning, "").ContainerStatuses[0].RestartCount; is <= n {
			t.Errorf("the restart count was %d and is %d, want more", n, is)
		}
	})
}
