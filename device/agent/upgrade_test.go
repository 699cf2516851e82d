package agent

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
)

// testdata/older has the state directories of killed earlier agents and their Docker containers:
// one directory with the desired state in one file, one with two slots, one with termination
// messages. A new agent adopts all containers and changes nothing.
func TestAnAgentAdoptsTheContainersOfOlderVersions(t *testing.T) {
	older, err := os.ReadDir("testdata/older")
	if err != nil || len(older) < 3 {
		t.Fatalf("testdata/older has %d agents, error %v; want at least 3", len(older), err)
	}
	for _, of := range older {
		t.Run(of.Name(), func(t *testing.T) {
			dir := filepath.Join("testdata/older", of.Name())
			synctest.Test(t, func(t *testing.T) {
				d := newDevice(t)
				ids := d.takeOver(dir)
				d.fake.Record()
				for range 2 { // the second start takes over from this version
					d.start()
					time.Sleep(3 * time.Minute)
					for _, p := range heldPods(d.agent) {
						if p.Status.Phase != corev1.PodRunning || !ready(&p.Status) {
							t.Errorf("%s is %s, want it running and ready: %+v", p.Name, p.Status.Phase, p.Status.Conditions)
						}
						for _, c := range p.Status.ContainerStatuses {
							if c.RestartCount != 0 ||
								!slices.Contains(ids, strings.TrimPrefix(c.ContainerID, "docker://")) {
								t.Errorf("container %s of %s is %s, restarted %d times", c.Name, p.Name,
									c.ContainerID, c.RestartCount)
							}
						}
					}
					if n := len(heldPods(d.agent)); n != 3 {
						t.Errorf("the agent reports %d pods, want 3", n)
					}
					d.end()
				}
				for _, call := range d.fake.Calls() {
					for _, touches := range []string{"Create ", "Start ", "Stop ", "Remove ", "Update ",
						"RemoveNetwork "} {
						if strings.HasPrefix(call, touches) {
							t.Errorf("the agent called %s, want no change of a container", call)
						}
					}
				}
			})
		})
	}
}

// takeOver gives a device the state of an older agent, and returns the ids of its containers.
func (d *device) takeOver(dir string) (ids []string) {
	d.t.Helper()
	ctx := context.Background()
	if err := os.CopyFS(d.dir, os.DirFS(dir)); err != nil {
		d.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "containers.json"))
	if err != nil {
		d.t.Fatal(err)
	}
	var made []struct {
		Name             string
		Entrypoint, Args []string
		Running          bool
		Labels           map[string]string
		Limits           engine.Spec // the container's limits
	}
	if err := json.Unmarshal(text, &made); err != nil {
		d.t.Fatal(err)
	}
	network := Network("pi-1", StateDirID(d.dir), "10.64.0.0/24")
	if err := d.fake.EnsureNetwork(ctx, network); err != nil {
		d.t.Fatal(err)
	}
	sandboxes := map[string]string{}
	for _, c := range made { // the labels' literal names, which must not change
		l := maps.Clone(c.Labels)
		l["flotilla.dev/agent"], l["flotilla.dev/state-dir"] = "pi-1", StateDirID(d.dir)
		d.board.boot = l["flotilla.dev/boot"]
		s := c.Limits
		s.Name, s.Image, s.Entrypoint, s.Args, s.Labels, s.Network, s.Env = c.Name, enginetest.ToolImage, c.Entrypoint,
			c.Args, l, network.Name, []string{"GREETING=hello"}
		if slices.Equal(s.Entrypoint, []string{"/tool"}) {
			s.Entrypoint = nil // the image has the entrypoint
		}
		if owner := sandboxes[l["flotilla.dev/pod-uid"]]; owner != "" {
			s.Network, s.NetworkOf = "", owner
		}
		id, err := d.fake.Create(ctx, s)
		if err == nil {
			err = d.fake.Start(ctx, id)
		}
		if err != nil {
			d.t.Fatal(err)
		}
		if l["flotilla.dev/kind"] == "sandbox" {
			sandboxes[l["flotilla.dev/pod-uid"]] = id
		}
		ids = append(ids, id)
	}
	synctest.Wait()
	list, err := d.fake.Containers(ctx, "flotilla.dev/agent=pi-1")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, c := range list {
		i := slices.Index(ids, c.ID)
		if running := c.State == engine.Running; i < 0 || running != made[i].Running {
			d.t.Fatalf("%s has changed to %s", c.Name, c.State)
		}
	}
	return ids
}
