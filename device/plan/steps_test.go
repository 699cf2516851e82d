package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
)

var Epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Each row changes a settled world, and lists the first steps that follow.
func TestSteps(t *testing.T) {
	one, two := makePod("one", "wait"), makePod("two", "wait", "wait")
	set := func(pods ...corev1.Pod) func(*world) { return func(w *world) { w.d.Pods = pods } }
	end := func(name string, code int) func(*world) {
		return func(w *world) {
			for i := range w.containers {
				if c := &w.containers[i]; c.Labels[LabelContainer] == name && c.State == engine.Running {
					c.State, c.ExitCode, c.FinishedAt = engine.Exited, code, w.now
				}
			}
		}
	}
	cut := func(delay time.Duration, net string) func(*world) { // changes start and network of the sandbox
		return func(w *world) {
			for i := range w.containers {
				c := &w.containers[i]
				if c.Net = "net:[1]"; c.Labels[LabelKind] == podspec.KindSandbox {
					c.StartedAt, c.Net = c.StartedAt.Add(delay), net
				} else if c.Labels[LabelContainer] == "c1" {
					c.Net, c.StartedAt = net, c.StartedAt.Add(delay)
				}
			}
		}
	}
	for _, c := range []struct {
		name   string
		before []corev1.Pod
		change func(*world)
		want   []string
	}{
		{"a settled world needs no step", []corev1.Pod{one, two}, func(*world) {}, []string{}},
		{"a new pod is admitted first", nil, set(one), []string{"admit default/one"}},
		{"a container that has ended is started again", []corev1.Pod{one}, end("c0", 1), []string{"run default/one container c0, attempt 1"}},
		{"only the container that has ended is started again", []corev1.Pod{two}, end("c1", 0), []string{"run default/two container c1, attempt 1"}},
		{"a succeeded job is not restarted", []corev1.Pod{With(one, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure })}, end("c0", 0), []string{}},
		{"a failed job is restarted", []corev1.Pod{With(one, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure })}, end("c0", 1),
			[]string{"run default/one container c0, attempt 1"}},
		{"an ended pod that never restarts needs no step", []corev1.Pod{With(one, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })}, end("c0", 1), []string{}},
		{"the sandbox is stopped when every container has ended", []corev1.Pod{With(two, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })},
			func(w *world) { end("c0", 0)(w); end("c1", 0)(w) },
			[]string{"stop default/two sandbox within 30s: the pod has ended"}},
		{"a pod that is being deleted is stopped within its grace", []corev1.Pod{one}, set(deletedPod(one, 7)), []string{"stop default/one container c0 within 7s: the pod is being deleted"}},
		{"the sandbox is stopped after the containers", []corev1.Pod{two}, set(deletedPod(two, 7)),
			[]string{"stop default/two container c0 within 7s: the pod is being deleted",
				"stop default/two container c1 within 7s: the pod is being deleted"}},
		{"a pod that was deleted before it started leaves nothing", nil, set(deletedPod(one, 7)), []string{"clean default/one"}},
		{"an undesired pod is stopped with the grace in its labels", []corev1.Pod{With(one, func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = seconds(9) })}, set(),
			[]string{"stop uid-one container c0 within 9s: the pod is no longer desired on this node"}},
		{"a container whose image has changed is replaced", []corev1.Pod{one}, set(With(one, func(p *corev1.Pod) {
			p.Spec.Containers = slices.Clone(p.Spec.Containers)
			p.Spec.Containers[0].Image = "newer"
		})),
			[]string{"stop default/one container c0 within 30s: Container c0 definition changed, will be restarted"}},
		{"a pod past its deadline is ended", []corev1.Pod{With(one, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = seconds(60) })}, func(w *world) { w.now = w.now.Add(time.Minute) },
			[]string{"reject default/one: DeadlineExceeded: Pod was active on the node longer than the specified deadline"}},
		{"the containers of an ended sandbox are stopped first", []corev1.Pod{two}, func(w *world) {
			for i := range w.containers {
				if c := &w.containers[i]; c.Labels[LabelKind] == podspec.KindSandbox {
					c.State = engine.Exited
				}
			}
		}, []string{"stop default/two container c0 within 30s: the pod's network has gone",
			"stop default/two container c1 within 30s: the pod's network has gone"}},
		{"a container that was created but never started is tried again with the same restart count", []corev1.Pod{one}, func(w *world) {
			w.containers[0].State = engine.Created
			w.o.Pods = nil // the agent restarts
		}, []string{"run default/one container c0, attempt 0"}},
		{"a container that another client removed is started again", []corev1.Pod{one}, func(w *world) { w.containers = nil }, []string{"run default/one container c0, attempt 1"}},
		{"an older instance that another client started is stopped", []corev1.Pod{one}, func(w *world) {
			end("c0", 1)(w)
			w.settle(t)
			w.containers[0].State = engine.Running
		}, []string{"stop default/one container c0 within 30s: an older instance of the container runs beside it"}},
		{"an older instance that another client started is stopped before the next instance runs", []corev1.Pod{one}, func(w *world) {
			end("c0", 1)(w)
			w.settle(t)
			end("c0", 1)(w)
			w.containers[0].State = engine.Running
			w.look()
			w.now = w.now.Add(time.Minute)
		}, []string{"stop default/one container c0 within 30s: an older instance of the container runs beside it"}},
		{"an unused older sandbox that another client started is stopped", []corev1.Pod{two}, func(w *world) {
			old := w.containers[0]
			old.ID, old.Labels = "old", maps.Clone(old.Labels)
			w.containers[0].Labels[LabelRestarts] = "1"
			w.containers[0].Name = NameOf("", "two", "default", "uid-two", "1")
			w.containers = append(w.containers, old)
		}, []string{"stop default/two sandbox within 30s: an older instance of the container runs beside it"}},
		{"an older sandbox in use stays", []corev1.Pod{two}, func(w *world) {
			for _, id := range []string{"old", "older"} {
				box := w.containers[0]
				box.ID, box.Labels = id, maps.Clone(box.Labels)
				box.Labels[LabelRestarts] = strconv.Itoa(len(id)) // restart counts 3 and 5; the current sandbox has 9
				box.Name = NameOf("", "two", "default", "uid-two", box.Labels[LabelRestarts])
				w.containers = append(w.containers, box)
			}
			w.containers[0].Labels = maps.Clone(w.containers[0].Labels)
			w.containers[0].Labels[LabelRestarts], w.containers[0].Name = "9",
				NameOf("", "two", "default", "uid-two", "9")
			w.containers[1].Labels[LabelShares], w.containers[2].Labels[LabelShares] = "old", "older"
		}, []string{}},
		{"a container in an old network of its pod is restarted", []corev1.Pod{two}, cut(time.Second, "net:[2]"), []string{
			"stop default/two container c0 within 30s: Container c0 will be restarted: the pod's network was replaced"}},
		{"a program that entered another network by itself is not restarted", []corev1.Pod{two}, cut(0, "net:[2]"), []string{}},
		{"a container with an unknown network is not restarted", []corev1.Pod{two}, cut(time.Second, ""), []string{}},
		{"a container that started before the clock was set is not restarted", []corev1.Pod{two}, cut(time.Second, "net:[1]"), []string{}},
		{"a job in an old network is not restarted, because it would have the phase Succeeded", []corev1.Pod{With(two, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure })}, cut(time.Second, "net:[2]"), []string{}},
		{"a step in progress is not repeated", []corev1.Pod{one}, func(w *world) {
			end("c0", 1)(w)
			w.o.Busy = []RunningStep{{Step: Step{Action: Run, Place: Place{"uid-one", "c0"}}, Since: w.now}}
		}, []string{}},
		{"a pull for a deleted pod is cancelled", nil, func(w *world) {
			w.d.Pods = []corev1.Pod{deletedPod(one, 7)}
			w.o.RecordOf("uid-one").Admitted = true
			w.o.Busy = []RunningStep{{Step: Step{Action: Run, Place: Place{"uid-one", "c0"}}, Since: w.now}}
		}, []string{"cancel default/one container c0"}},
		{"a stop in progress is shortened", []corev1.Pod{one}, func(w *world) {
			w.d.Pods = []corev1.Pod{deletedPod(one, 2)}
			w.o.Busy = []RunningStep{{Step: Step{Action: Stop, Place: Place{"uid-one", "c0"}, ID: "id1",
				Grace: time.Minute},
				Since: w.now}}
		}, []string{"stop default/one container c0 within 2s: the pod is being deleted"}},
		{"a stop in progress is not extended", []corev1.Pod{one}, func(w *world) {
			w.d.Pods = []corev1.Pod{deletedPod(one, 90)}
			w.o.Busy = []RunningStep{{Step: Step{Action: Stop, Place: Place{"uid-one", "c0"}, ID: "id1",
				Grace: time.Minute},
				Since: w.now}}
		}, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(c.before...)
			w.settle(t)
			w.now = w.now.Add(time.Second)
			c.change(w)
			if got := sentences(w.look()); !slices.Equal(got, c.want) {
				t.Errorf("steps:\n%q\nwant:\n%q", got, c.want)
			}
		})
	}
}

func seconds(n int64) *int64 { return &n }

func TestInitContainersRunInOrder(t *testing.T) {
	w := newWorld(withInit(makePod("p", "wait"), "first", "second"))
	var order []string
	w.ends = func(name string, _ *corev1.Pod) (int, bool) {
		order = append(order, name)
		return 0, name != "c0"
	}
	w.settle(t)
	if want := []string{"first", "second", "c0"}; !slices.Equal(order, want) {
		t.Errorf("the started containers are %q, want %q", order, want)
	}
}

func TestAFailedInitContainerDelaysThePod(t *testing.T) {
	for policy, phase := range map[corev1.RestartPolicy]corev1.PodPhase{corev1.RestartPolicyNever: corev1.PodFailed,
		corev1.RestartPolicyAlways: corev1.PodPending} {
		w := newWorld(With(withInit(makePod("p", "wait"), "first"),
			func(p *corev1.Pod) { p.Spec.RestartPolicy = policy }))
		w.ends = func(name string, _ *corev1.Pod) (int, bool) { return 1, name == "first" }
		w.settle(t)
		if got := Statuses(w.d, &w.o, "docker", w.now)[0].Status.Phase; got != phase {
			t.Errorf("with restartPolicy %s the phase is %s, want %s", policy, got, phase)
		}
	}
}

// For any pods and any history, FuzzSteps checks that Steps settles, changes only the agent's
// containers, and never runs two instances of one container. In the end exactly the desired pods
// run.
func FuzzSteps(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Add([]byte("\x10\x21\x32\x43\x54\x65\x76\x87\x98\xa9\xba\xcb\xdc\xed\xfe\x0f"))
	f.Fuzz(func(t *testing.T, history []byte) {
		w := newWorld()
		w.containers = []engine.Container{
			{ID: "f1", Name: "theirs", State: engine.Running},
			{ID: "f2", Labels: map[string]string{LabelAgent: "pi-2", LabelStateDir: "state", LabelPodUID: "uid-0", LabelContainer: "c0"}, State: engine.Exited},
			{ID: "f3", Labels: map[string]string{LabelAgent: "pi-1", LabelStateDir: "other", LabelPodUID: "uid-0", LabelContainer: "c0"}, State: engine.Running},
		}
		for _, c := range w.containers {
			w.foreign[c.ID] = true
		}
		pods := map[string]corev1.Pod{} // pods by name; a uid is never used twice
		generation := 0
		for i := 0; i+1 < len(history) && i < 60; i += 2 {
			event, arg := history[i], history[i+1]
			w.now = w.now.Add(time.Duration(arg) * time.Second)
			name := fmt.Sprint("p", arg%4)
			switch event % 8 {
			case 0, 1: // a pod is added
				if _, has := pods[name]; !has {
					generation++
					p := makePod(name, slices.Repeat([]string{"wait"}, int(arg/4%3)+1)...)
					if arg&0x40 != 0 {
						p = withInit(p, "init")
					}
					if arg&0x80 != 0 {
						p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
					}
					p.UID = types.UID(fmt.Sprint("uid-", name, "-", generation))
					pods[name] = p
				}
			case 2: // a pod is deleted
				if p, has := pods[name]; has {
					pods[name] = deletedPod(p, int64(arg%5))
				}
			case 3: // a pod is dropped
				delete(pods, name)
			case 4: // a container ends
				for j := range w.containers {
					if c := &w.containers[j]; !w.foreign[c.ID] && c.State == engine.Running && j%3 == int(arg%3) {
						c.State, c.ExitCode = engine.Exited, int(arg%2)
					}
				}
			case 5: // another client removes a container
				w.containers = slices.DeleteFunc(w.containers,
					func(c engine.Container) bool { return !w.foreign[c.ID] && c.ID[len(c.ID)-1]%4 == arg%4 })
			case 6: // the agent restarts
				w.o.Pods, w.o.Busy = nil, nil
			case 7: // the device reboots
				w.o.Pods, w.o.Busy = nil, nil
				w.o.Node.Boot = fmt.Sprint("boot-", i)
				for j := range w.containers {
					if c := &w.containers[j]; !w.foreign[c.ID] && c.State == engine.Running {
						c.State, c.ExitCode = engine.Exited, 255
					}
				}
			}
			w.d.Pods = nil
			for _, name := range slices.Sorted(maps.Keys(pods)) {
				w.d.Pods = append(w.d.Pods, pods[name])
			}
			w.ends = func(name string, _ *corev1.Pod) (int, bool) { return 0, name == "init" }
			if event&0x80 == 0 { // with the bit, the next event happens before the world has settled
				w.settle(t)
			} else if steps := w.look(); len(steps) > 0 {
				w.take(t, steps[0])
			}
		}
		w.now = w.now.Add(time.Hour) // longer than every back-off
		w.settle(t)
		var want []string
		for _, name := range slices.Sorted(maps.Keys(pods)) {
			p := pods[name]
			r := w.o.Pods[p.UID]
			if p.DeletionTimestamp == nil && phaseOf(&p, r, w.o.Node.Boot) == corev1.PodRunning {
				for i := range p.Spec.Containers {
					c := r.Peek(p.Spec.Containers[i].Name)
					if p.Spec.RestartPolicy == corev1.RestartPolicyAlways || c.Ended == nil || c.Ended.ExitCode != 0 {
						want = append(want, p.Name+"/"+p.Spec.Containers[i].Name)
					}
				}
			} else if p.DeletionTimestamp == nil && phaseOf(&p, r, w.o.Node.Boot) != corev1.PodSucceeded {
				t.Fatalf("pod %s is %s, want Running or Succeeded", p.Name, phaseOf(&p, r, w.o.Node.Boot))
			}
		}
		var got []string
		for _, c := range w.containers {
			if !w.foreign[c.ID] && c.State == engine.Running && c.Labels[LabelKind] == podspec.KindApp {
				got = append(got, c.Labels[LabelPodName]+"/"+c.Labels[LabelContainer])
			}
			if w.foreign[c.ID] && c.ID != "f2" && c.State != engine.Running {
				t.Fatalf("another client's container %s is %s, want it running", c.ID, c.State)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			for uid, r := range w.o.Pods {
				for name, c := range r.Container {
					t.Logf("%s/%s: %+v", uid, name, *c)
				}
			}
			t.Fatalf("the running pods are %q, want %q; all containers: %s", got, want, strings.Join(w.states(), ", "))
		}
	})
}

func TestAfterARebootInitContainersRunAgainFirst(t *testing.T) {
	w := newWorld(withInit(makePod("p", "wait"), "init"))
	var order []string
	w.ends = func(name string, _ *corev1.Pod) (int, bool) {
		order = append(order, name)
		return 0, name == "init"
	}
	w.settle(t)
	for i := range w.containers {
		w.containers[i].State = engine.Exited
	}
	w.o.Pods, w.o.Node.Boot, order = nil, "boot-2", nil
	w.settle(t)
	if want := []string{"init", "c0"}; !slices.Equal(order, want) {
		t.Errorf("after the reboot the started containers are %q, want %q", order, want)
	}
}

// The engine's clock may jump by years, so back-offs use the agent's clock.
func TestBackOffIgnoresTheEnginesClock(t *testing.T) {
	c := &ContainerRecord{Attempt: -1}
	now := Epoch
	crash := func(id string, ran time.Duration) time.Duration {
		c.see(Instance{Container: engine.Container{ID: id, State: engine.Running,
			StartedAt: now.AddDate(30, 0, 0)}}, now)
		now = now.Add(ran)
		c.see(Instance{Container: engine.Container{ID: id, State: engine.Exited, ExitCode: 1,
			StartedAt: now.AddDate(30, 0, 0), FinishedAt: now.AddDate(-50, 0, 0)}}, now)
		return c.RestartAt.Sub(now)
	}
	for i, x := range []struct{ ran, want time.Duration }{
		{time.Second, 0}, {time.Second, 10 * time.Second}, {time.Second, 20 * time.Second}, {9 * time.Minute, 40 * time.Second},
		{10 * time.Minute, 0}, {time.Second, 10 * time.Second}, // ten minutes without a crash reset the back-off
	} {
		if got := crash(fmt.Sprint("id", i), x.ran); got != x.want {
			t.Errorf("crash %d after %s waits %s, want %s", i, x.ran, got, x.want)
		}
	}
}
