package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/wire"
)

// A world simulates the part of an engine that Steps observes. Its steps take no time.
type world struct {
	d          wire.Desired
	o          Observed
	containers []engine.Container
	now        time.Time
	made       int
	foreign    map[string]bool // ids of other clients' containers
	ends       func(id string, pod *corev1.Pod) (int, bool)
}

func newWorld(pods ...corev1.Pod) *world {
	w := &world{now: Epoch, foreign: map[string]bool{}}
	w.o.Node = Facts{Name: "pi-1", StateDir: "state", Boot: "boot-1", HostIP: "192.0.2.7", Generation: 1,
		Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("2Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
		}}
	w.o.Policy = DefaultPolicy()
	w.d = wire.Desired{Generation: 1, Hub: "hub", Pods: pods}
	return w
}

// look updates the observed state and returns the steps.
func (w *world) look() []Step {
	w.o.SetContainers(w.containers, w.now)
	steps, _ := Steps(w.d, &w.o, w.now)
	return steps
}

// sentences returns the steps as text.
func sentences(steps []Step) []string {
	out := []string{}
	for _, s := range steps {
		out = append(out, s.String())
	}
	return out
}

// take does one step.
func (w *world) take(t testing.TB, s Step) {
	r := w.o.RecordOf(s.Place.Pod)
	at := slices.IndexFunc(w.containers, func(c engine.Container) bool { return c.ID == s.ID })
	if (s.Action == Stop || s.Action == Remove) && w.foreign[s.ID] {
		t.Fatalf("%s touches a container that is not the agent's own", s)
	}
	switch s.Action {
	case Admit:
		r.Admitted, r.Start = true, w.now
	case Reject:
		r.Verdict = &s.Verdict
	case Run:
		for _, c := range w.containers {
			if in, ok := InstanceOf(c, w.o.Node); ok && in.Place == s.Place && c.State == engine.Running {
				t.Fatalf("%s although an instance of it runs", s)
			}
		}
		w.containers = slices.DeleteFunc(w.containers,
			func(c engine.Container) bool { return c.Name == containerName(s) })
		w.made++
		c := engine.Container{ID: fmt.Sprint("id", w.made), Name: containerName(s), Labels: labels(s, w.o.Node),
			State:   engine.Running,
			Created: w.now, StartedAt: w.now, IP: "10.0.0.1"}
		if s.Spec != nil {
			c.Limits = engine.LimitsOf(SizeOf(s.Pod, s.Spec, w.o.Node), w.o.Node.Engine)
		}
		if s.Network != "" && !slices.ContainsFunc(w.containers,
			func(c engine.Container) bool { return c.ID == s.Network && c.State == engine.Running }) {
			t.Fatalf("%s joins a network that does not exist", s)
		}
		if w.ends != nil && s.Spec != nil {
			if code, ends := w.ends(s.Spec.Name, s.Pod); ends {
				c.State, c.ExitCode, c.FinishedAt = engine.Exited, code, w.now
			}
		}
		w.containers = append(w.containers, c)
	case Stop:
		if at >= 0 {
			w.containers[at].State, w.containers[at].FinishedAt = engine.Exited, w.now
		}
	case Remove:
		if at >= 0 {
			w.containers = slices.Delete(w.containers, at, at+1)
		}
	case Clean:
		r.Cleaned = true
	case Refresh:
		r.Volumes = s.Generation
	case Grant:
		w.d.Pods = slices.Clone(w.d.Pods)
		w.d.Pods[slices.IndexFunc(w.d.Pods, func(p corev1.Pod) bool { return p.UID == s.Pod.UID })] = *s.Pod
		delete(w.o.Requested, s.Pod.UID)
		r.ResizePending = nil
	case Defer:
		r.ResizePending = &s.Verdict
	case Update:
		w.containers[at].Limits, r.ContainerOf(s.Place.Container).Limits = s.Limits, s.Limits
	case Probe:
		r.ContainerOf(s.Place.Container).Probed(s, nil, w.now)
	}
}

// settle takes steps until there are none.
func (w *world) settle(t testing.TB) {
	for range 200 {
		steps := w.look()
		if len(steps) == 0 && !w.note() {
			return
		}
		places := map[Place]string{}
		for _, s := range steps {
			if s.Action != Probe && s.Action != Cancel {
				if earlier := places[s.Place]; earlier != "" && s.Action != Refresh && s.Action != Reject &&
					s.Action != Admit &&
					s.Action != Grant && s.Action != Defer {
					t.Fatalf("two steps for one place: %s, and %s", earlier, s)
				}
				places[s.Place] = s.String()
			}
			w.take(t, s)
		}
	}
	t.Fatalf("the steps do not settle: %q", sentences(w.look()))
}

// note sets the final status of deleted pods that have ended, so that they can be removed.
func (w *world) note() (noted bool) {
	for i := range w.d.Pods {
		if p, r := &w.d.Pods[i], w.o.Pods[w.d.Pods[i].UID]; p.DeletionTimestamp != nil && r != nil &&
			w.o.Finished(p, r) {
			st := PodStatus(p, r, &w.o, "engine", w.now)
			r.Final, noted = &st, true
		}
	}
	return noted
}

func (w *world) states() []string {
	out := []string{}
	for _, c := range w.containers {
		out = append(out, fmt.Sprintf("%s/%s#%s %s", c.Labels[LabelPodName], c.Labels[LabelContainer],
			c.Labels[LabelRestarts], c.State))
	}
	slices.Sort(out)
	return out
}

func withInit(p corev1.Pod, names ...string) corev1.Pod {
	for _, n := range names {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{Name: n, Image: "i"})
	}
	return p
}

func With(p corev1.Pod, f func(*corev1.Pod)) corev1.Pod { f(&p); return p }
