package agent

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/fleet"
)

func TestRuntimeOf(t *testing.T) {
	docker := engine.Info{Name: "docker", Runtimes: []string{"nvidia", "runc", "runsc"}, DefaultRuntime: "runc"}
	podman := engine.Info{Name: "podman", Runtimes: []string{"crun", "runc"}, DefaultRuntime: "crun"}
	for _, c := range []struct {
		name           string
		info           engine.Info
		class, handler string // class "-": the pod has no RuntimeClass
		allowed        string
		want, refused  string
	}{
		{"no class", docker, "-", "", "", "", ""},
		{"no class, but an annotation", docker, "-", "nvidia", "nvidia", "", ""},
		{"the default runtime by name", docker, "plain", "runc", "", "", ""},
		{"an allowed runtime", docker, "safe", "runsc", "nvidia runsc", "runsc", ""},
		{"a runtime that is not allowed", docker, "fast", "nvidia", "runsc", "", "the device's owner does not allow runtime \"nvidia\""},
		{"an allowed but missing runtime", docker, "vm", "kata", "kata", "", "has no runtime \"kata\", it has nvidia, runc, runsc"},
		{"a class that the hub did not resolve", docker, "safe", "", "runsc", "", "the hub did not send"},
		{"Podman's default", podman, "plain", "crun", "", "", ""},
		{"another runtime of Podman", podman, "old", "runc", "runc", "", "Podman's API runs every container with the engine's default runtime, crun"},
	} {
		t.Run(c.name, func(t *testing.T) {
			pod := &corev1.Pod{}
			if c.class != "-" {
				pod.Spec.RuntimeClassName = &c.class
			}
			if c.handler != "" {
				pod.Annotations = map[string]string{fleet.RuntimeHandlerAnnotation: c.handler}
			}
			got, err := runtimeOf(strings.Fields(c.allowed), c.info, pod)
			if got != c.want || (err == nil) != (c.refused == "") ||
				err != nil && !strings.Contains(err.Error(), c.refused) {
				t.Errorf("the runtime is %q, error %v; want %q, error %q", got, err, c.want, c.refused)
			}
		})
	}
	var names []string
	for _, h := range runtimeHandlers([]string{"runsc", "kata"}, docker) {
		names = append(names, h.Name)
	}
	if want := []string{"", "runc", "runsc"}; !slices.Equal(names, want) {
		t.Errorf("the node's runtimes are %q, want %q", names, want)
	}
	if h := runtimeHandlers([]string{"runc", "crun"}, podman); h != nil {
		t.Errorf("the runtimes of a node with Podman are %v, want none", h)
	}
}

// specKeeper records the specs of created containers.
type specKeeper struct {
	engine.Engine
	info engine.Info
	made chan engine.Spec
}

func (e specKeeper) Info(ctx context.Context) (engine.Info, error) {
	info, err := e.Engine.Info(ctx)
	info.Runtimes, info.DefaultRuntime = e.info.Runtimes, e.info.DefaultRuntime
	return info, err
}

func (e specKeeper) Create(ctx context.Context, s engine.Spec) (string, error) {
	e.made <- s
	return e.Engine.Create(ctx, s)
}

// The sandbox and every container of a pod use the runtime of its class.
func TestAllContainersOfAPodUseItsRuntime(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		keeper := specKeeper{d.fake, engine.Info{Runtimes: []string{"runc", "runsc"}, DefaultRuntime: "runc"},
			make(chan engine.Spec, 9)}
		d.engine, d.config.Runtimes = keeper, []string{"runsc"}
		d.start()
		class := "safe"
		pod := makePod("a", "wait", "wait")
		pod.Spec.RuntimeClassName, pod.Annotations = &class, map[string]string{fleet.RuntimeHandlerAnnotation: "runsc"}
		d.desire(1, pod)
		time.Sleep(time.Second)
		d.wantPhase("a", corev1.PodRunning, "")
		close(keeper.made)
		n := 0
		for s := range keeper.made {
			if n++; s.Runtime != "runsc" {
				t.Errorf("%s has the runtime %q, want runsc", s.Name, s.Runtime)
			}
		}
		if n != 3 {
			t.Errorf("%d containers, want a sandbox and two", n)
		}
	})
}
