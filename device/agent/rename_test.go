package agent

import (
	"testing"
	"time"

	"flotilla.dev/device/plan"
)

// A container's name can be changed at any time (docker rename), so the agent finds its containers
// by their noted ids.
func TestARenamedContainerStillBelongsToTheAgent(t *testing.T) {
	for _, test := range []struct{ name, container, attempt string }{
		{"an app container", "c0", "0"},
		{"a sandbox", "", "0"},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(test.name, func(t *testing.T) {
				bubble(t, func(t *testing.T, d *device) {
					pod := makePod("web", "wait", "wait")
					d.desire(1, pod)
					time.Sleep(time.Second)
					all := []string{"web/POD#0 running", "web/c0#0 running", "web/c1#0 running"}
					d.wantContainers(all...)
					if !d.fake.Rename(plan.NameOf(test.container, "web", "default", "uid-web", test.attempt), "debug") {
						t.Fatal("there is no such container")
					}
					if restart {
						d.end()
						d.start()
					}
					time.Sleep(2 * time.Minute)
					d.wantContainers(all...)
					if n := d.wantPhase("web", "Running", "").ContainerStatuses[0].RestartCount; n != 0 {
						t.Errorf("the container has been restarted %d times", n)
					}
					d.desire(2)
					time.Sleep(2 * time.Minute)
					d.wantContainers()
				})
			})
		}
	}
}

// The agent notes the ids of an earlier version's containers at the first list.
func TestAnEarlierVersionsContainerIsFoundByItsID(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Second)
		name := plan.NameOf("c0", "web", "default", "uid-web", "0")
		list, err := d.fake.Containers(t.Context(), plan.LabelAgent)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		d.end()
		d.agent.disk.forgetMade(plan.Step{Place: plan.Place{Pod: "uid-web", Container: "c0"}, ID: list[0].ID})
		d.start()
		time.Sleep(time.Minute)
		d.fake.Rename(name, "debug")
		time.Sleep(time.Minute)
		d.wantContainers("web/c0#0 running")
	})
}
