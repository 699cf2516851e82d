package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/pause"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

// A board is hardware that tests change.
type board struct {
	mu    sync.Mutex
	boot  string
	stats hardware.Stats
	load  float64       // busy CPUs
	slow  time.Duration // duration of Probe
	fault error         // error of Probe
	cut   bool          // it has no address
	dual  bool          // it has an IPv6 address too

	devices []hardware.Device
	swap    int64
	numa    []hardware.NUMANode
}

func newBoard() *board {
	full := hardware.Amount{Available: 1 << 30, Capacity: 2 << 30}
	return &board{boot: "boot-1", stats: hardware.Stats{Memory: full, NodeFs: full, ImageFs: full, NodeFsInodes: full, ImageFsInodes: full, PIDs: full}}
}

func (b *board) Probe(context.Context, string) (hardware.Report, error) {
	b.mu.Lock()
	slow, fault := b.slow, b.fault
	b.mu.Unlock()
	time.Sleep(slow)
	if fault != nil {
		return hardware.Report{}, fault
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return hardware.Report{
		Host:      hardware.Host{Hostname: "pi", OS: "linux", Arch: "arm64", BootID: b.boot, MachineID: "0123456789abcdef"},
		Capacity:  hardware.Capacity{CPUs: 4, Memory: 2 << 30, Ephemeral: 8 << 30, Pods: 110, Swap: b.swap},
		Addresses: b.addresses(),
		Devices:   b.devices,
		NUMA:      b.numa,
	}, nil
}

// Look finds a device of the board; group 44 may open it.
func (b *board) Look(d hardware.Device) (hardware.Device, []hardware.Node, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.devices, func(e hardware.Device) bool { return d.Same(e) || d.On != "" && d.On == e.ID })
	if i < 0 {
		return d, nil, errors.New(d.ID + " is unplugged")
	}
	var nodes []hardware.Node
	for _, p := range b.devices[i].Nodes {
		nodes = append(nodes, hardware.Node{Path: p, Host: p, Group: 44})
	}
	if d.On != "" {
		return d, nodes, nil
	}
	return b.devices[i], nodes, nil
}

func (b *board) Measure(context.Context, string) hardware.Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Addresses = b.addresses()
	s.Busy = time.Duration(float64(time.Since(time.Unix(0, 0))) * b.load)
	return s
}

func (b *board) addresses() []corev1.NodeAddress {
	list := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}, {Type: corev1.NodeHostName, Address: "pi"}}
	if b.cut {
		return list[1:]
	}
	if b.dual {
		list = slices.Insert(list, 1, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "2001:db8::7"})
	}
	return list
}

func (b *board) set(f func(*board)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(b)
}

// testLog discards its output unless LOUD is set.
func testLog() *slog.Logger {
	if os.Getenv("LOUD") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A device is everything that outlives its agent.
type device struct {
	t      testing.TB
	fake   *enginetest.Fake
	engine engine.Engine // for the agent; the fake unless a test wraps it
	board  *board
	dir    string
	config Config
	booted time.Time

	agent *Agent
	end   func()

	mu     sync.Mutex
	events []wire.Event
	status int
	pods   int
}

func newDevice(t testing.TB) *device {
	d := &device{t: t, fake: enginetest.New(), board: newBoard(), dir: t.TempDir(), config: Config{Flags: anyDisk(t), Policy: plan.DefaultPolicy()}}
	d.engine = d.fake
	d.fake.AddImage(enginetest.ToolImage, 6<<20, toolOrPause)
	return d
}

// anyDisk allows copies of images on a test machine however full its disk is: tests set the board's
// values instead.
func anyDisk(t testing.TB) hardware.Limits {
	hard, err := hardware.ParseThresholds("nodefs.available<0,outofdisk.available<0")
	if err != nil {
		t.Fatal(err)
	}
	return hardware.Limits{Hard: hard}
}

// toolOrPause plays the test image, or the sandbox's program mounted into it.
func toolOrPause(s engine.Spec, run int) enginetest.Play {
	if len(s.Entrypoint) > 0 && s.Entrypoint[0] == pause.Target {
		return enginetest.Play{} // it waits until it is stopped
	}
	return enginetest.ToolProgram(s, run)
}

func (d *device) StatusChanged()               { d.mu.Lock(); d.status++; d.mu.Unlock() }
func (d *device) podChanges() int              { d.mu.Lock(); defer d.mu.Unlock(); return d.pods }
func (d *device) PodsChanged()                 { d.mu.Lock(); d.pods++; d.mu.Unlock() }
func (d *device) DesiredStored()               {}
func (d *device) Stream(string) request.Stream { return nil }
func (d *device) Event(e wire.Event) {
	d.mu.Lock()
	d.events = append(d.events, e)
	d.mu.Unlock()
}

// reasons are the reasons of all events so far.
func (d *device) reasons() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		out = append(out, e.Reason)
	}
	return out
}

// start starts an agent on the device. d.end ends it like a kill: the engine goes on.
func (d *device) start() {
	d.t.Helper()
	log := d.config.Log
	if log == nil {
		log = testLog()
	}
	m, err := memory.Open(d.dir, log)
	if err != nil {
		d.t.Fatal(err)
	}
	c := d.config
	if d.booted.IsZero() {
		d.booted = time.Now()
	}
	if c.Uptime == nil { // the system's does not follow the bubble's time
		c.Uptime = func() time.Duration { return time.Since(d.booted) }
	}
	c.Node, c.Memory, c.Hardware, c.Log = "pi-1", m, d.board, log
	c.OpenEngine = func(ctx context.Context) (engine.Engine, error) {
		if _, err := d.fake.Info(ctx); err != nil {
			return nil, fmt.Errorf("find a container engine: %w", err)
		}
		return d.engine, nil
	}
	a, err := New(c)
	if err != nil {
		d.t.Fatal(err)
	}
	a.SetHub(d)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	d.agent = a
	d.end = func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Error(err)
		}
		if err := m.Close(); err != nil {
			d.t.Error(err)
		}
	}
}

// desire stores a desired state of these pods.
func (d *device) desire(generation int64, pods ...corev1.Pod) {
	d.t.Helper()
	if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "hub-1", Pods: pods}); err != nil {
		d.t.Fatal(err)
	}
}

// pod is the status of a pod; false: it is not reported.
func (d *device) pod(name string) (corev1.PodStatus, bool) {
	for _, p := range heldPods(d.agent) {
		if p.Name == name {
			return p.Status, true
		}
	}
	return corev1.PodStatus{}, false
}

// containers lists the engine's containers: name, attempt and state.
func (d *device) containers() []string {
	list, err := d.fake.Containers(context.Background(), plan.LabelAgent+"=pi-1")
	if err != nil {
		d.t.Fatal(err)
	}
	var out []string
	for _, c := range list {
		name := c.Labels[plan.LabelContainer]
		if name == "" {
			name = "POD"
		}
		out = append(out, fmt.Sprintf("%s/%s#%s %s", c.Labels[plan.LabelPodName], name, c.Labels[plan.LabelRestarts], c.State))
	}
	slices.Sort(out)
	return out
}

// heldPods are the reported pods without deleted ones that have ended.
func heldPods(a *Agent) []wire.PodStatus {
	deleted := map[types.UID]bool{}
	d, _ := a.c.Memory.Desired()
	for _, p := range d.Pods {
		deleted[p.UID] = p.DeletionTimestamp != nil
	}
	return slices.DeleteFunc(slices.Clone(a.Pods().Pods), func(p wire.PodStatus) bool { return deleted[p.UID] && plan.IsFinal(p.Status.Phase) })
}

func (d *device) wantContainers(want ...string) {
	d.t.Helper()
	synctest.Wait()
	if got := d.containers(); !slices.Equal(got, want) {
		d.t.Fatalf("the engine holds %q, want %q", got, want)
	}
}

func (d *device) wantPhase(name string, want corev1.PodPhase, reason string) corev1.PodStatus {
	d.t.Helper()
	st, ok := d.pod(name)
	if !ok || st.Phase != want || st.Reason != reason {
		d.t.Fatalf("pod %s is held=%v, phase %s, reason %q (%s); want %s, %q", name, ok, st.Phase, st.Reason, st.Message, want, reason)
	}
	return st
}

// makePod makes a pod of containers that run the test image with these arguments.
func makePod(name string, commands ...string) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)}}
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	for i, c := range commands {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: enginetest.ToolImage, Args: strings.Fields(c)})
	}
	return p
}

func deletedPod(p corev1.Pod, grace int64) corev1.Pod {
	now := metav1.Now()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace
	return p
}

func bubble(t *testing.T, f func(t *testing.T, d *device)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.start()
		defer func() { d.end() }()
		f(t, d)
	})
}

func TestAPodRunsAndIsReported(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Second)
		d.wantContainers("web/c0#0 running")
		st := d.wantPhase("web", corev1.PodRunning, "")
		if st.PodIP == "" || st.HostIP != "192.0.2.7" || st.StartTime == nil {
			t.Errorf("podIP %q, hostIP %q, startTime %v: want all of them", st.PodIP, st.HostIP, st.StartTime)
		}
		for _, c := range st.Conditions {
			if c.Status != corev1.ConditionTrue {
				t.Errorf("condition %s is %s (%s), want True", c.Type, c.Status, c.Message)
			}
		}
		if g := d.agent.Pods().Generation; g != 1 {
			t.Errorf("the pods reflect generation %d, want 1", g)
		}
		if got, want := d.reasons(), []string{"Pulled", "Created", "Started"}; !slices.Equal(got, want) {
			t.Errorf("events %q, want %q", got, want)
		}
		ready := d.agent.Status().Status.Conditions
		if last := ready[len(ready)-1]; last.Type != corev1.NodeReady || last.Status != corev1.ConditionTrue {
			t.Errorf("the last condition is %s=%s (%s), want Ready=True", last.Type, last.Status, last.Message)
		}
	})
}

func TestADeletedPodIsStoppedWithinItsGraceAndThenAbsent(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "stubborn")
		d.desire(1, p)
		time.Sleep(time.Second)
		d.desire(2, deletedPod(p, 20))
		time.Sleep(19 * time.Second)
		d.wantPhase("web", corev1.PodRunning, "")
		time.Sleep(2 * time.Second)
		d.wantContainers()
		if _, held := d.pod("web"); held {
			t.Error("the pod has stopped and is still held")
		}
	})
}

// How a deleted pod ended is reported until the hub drops the pod, also after a long time without
// network and restarts of the agent.
func TestHowADeletedPodEndedIsReportedUntilTheHubDropsIt(t *testing.T) {
	for _, c := range []struct {
		name    string
		pod     corev1.Pod
		phase   corev1.PodPhase
		reasons []string
	}{
		{"killed", makePod("web", "stubborn"), corev1.PodFailed, []string{"Error"}},
		{"stopped well", makePod("web", "wait"), corev1.PodSucceeded, []string{"Completed"}},
		{"one of each", makePod("web", "wait", "stubborn"), corev1.PodFailed, []string{"Completed", "Error"}},
		{"in a crash loop", makePod("web", "exit 3"), corev1.PodFailed, []string{"Error"}},
		{"done, and to be started again", makePod("web", "exit 0"), corev1.PodSucceeded, []string{"Completed"}},
		{"never started", with(makePod("web", "wait"), func(p *corev1.Pod) { p.Spec.Containers[0].Image = "missing" }), corev1.PodFailed, []string{"ContainerStatusUnknown"}},
		{"never initialized", with(makePod("web", "wait"), func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "missing"}}
		}), corev1.PodFailed, []string{""}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.desire(1, c.pod)
				time.Sleep(25 * time.Second)
				d.desire(2, deletedPod(c.pod, 5))
				for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
					if st, held := d.pod("web"); !held && len(d.containers()) > 0 {
						t.Fatalf("reported as %s while there is %q", st.Phase, d.containers())
					}
				}
				d.wantContainers()
				d.wantEnd("web", c.phase, c.reasons...)
				d.end()
				time.Sleep(time.Hour)
				d.start()
				time.Sleep(5 * time.Second)
				d.wantEnd("web", c.phase, c.reasons...)
				d.desire(3)
				time.Sleep(5 * time.Second)
				if pods := d.agent.Pods().Pods; len(pods) > 0 {
					t.Errorf("dropped by the hub, and still reported: %+v", pods)
				}
				if notes := d.agent.c.Memory.Notes(); len(notes) > 0 {
					t.Errorf("the notes are %+v", notes)
				}
			})
		})
	}
}

// After a dismissal the hub needs no final statuses: without containers the device has left.
func TestADismissedDeviceHoldsNoPodsInTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"), makePod("done", "exit 0"))
		time.Sleep(time.Second)
		if err := d.agent.Leave(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if pods := d.agent.Pods().Pods; len(pods) > 0 {
			t.Errorf("still reported: %+v", pods)
		}
	})
}

// wantEnd checks the reported phase of a deleted pod and the reasons with which its containers
// ended; empty: they never started.
func (d *device) wantEnd(name string, phase corev1.PodPhase, reasons ...string) {
	d.t.Helper()
	synctest.Wait()
	for _, p := range d.agent.Pods().Pods {
		if p.Name != name {
			continue
		}
		var got []string
		for _, cs := range p.Status.ContainerStatuses {
			reason := ""
			if end := cs.State.Terminated; end != nil {
				reason = end.Reason
				if (end.ExitCode == 0) != (reason == "Completed") {
					d.t.Errorf("container %s: code %d and %s", cs.Name, end.ExitCode, reason)
				}
			}
			got = append(got, reason)
		}
		if p.Status.Phase != phase || !slices.Equal(got, reasons) {
			d.t.Errorf("pod %s is %s with %q, want %s with %q", name, p.Status.Phase, got, phase, reasons)
		}
		return
	}
	d.t.Errorf("pod %s is not reported, want %s", name, phase)
}

func TestASecondDeletionShortensTheGrace(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "stubborn")
		d.desire(1, p)
		time.Sleep(time.Second)
		d.desire(2, deletedPod(p, 600))
		time.Sleep(5 * time.Second)
		d.desire(3, deletedPod(p, 1))
		time.Sleep(3 * time.Second)
		d.wantContainers()
	})
}

func TestACrashLoopBacksOff(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "exit 3"))
		began := time.Now()
		var starts []time.Duration
		last := int32(-1)
		for time.Since(began) < 16*time.Minute {
			time.Sleep(time.Second)
			st, _ := d.pod("web")
			if n := st.ContainerStatuses[0].RestartCount; n != last {
				starts, last = append(starts, time.Since(began).Truncate(time.Second)), n
			}
		}
		var waits []string
		for i := 1; i < len(starts); i++ {
			waits = append(waits, (starts[i] - starts[i-1]).String())
		}
		// the first restart is immediate
		if want := []string{"10s", "20s", "40s", "1m20s", "2m40s", "5m0s", "5m0s"}; !slices.Equal(waits, want) {
			t.Errorf("waits %q, want %q", waits, want)
		}
		st := d.wantPhase("web", corev1.PodRunning, "")
		w := st.ContainerStatuses[0].State.Waiting
		if w == nil || w.Reason != "CrashLoopBackOff" {
			t.Errorf("it waits %v, want CrashLoopBackOff", w)
		}
		if l := st.ContainerStatuses[0].LastTerminationState.Terminated; l == nil || l.ExitCode != 3 || l.Reason != "Error" {
			t.Errorf("last state %v, want exit code 3, Error", l)
		}
	})
}

func TestPodsThatEndStayEnded(t *testing.T) {
	for _, c := range []struct {
		policy  corev1.RestartPolicy
		command string
		phase   corev1.PodPhase
		reason  string
	}{
		{corev1.RestartPolicyNever, "exit 0", corev1.PodSucceeded, "Completed"},
		{corev1.RestartPolicyNever, "exit 2", corev1.PodFailed, "Error"},
		{corev1.RestartPolicyOnFailure, "exit 0", corev1.PodSucceeded, "Completed"},
	} {
		t.Run(string(c.policy)+" "+c.command, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				p := makePod("job", c.command)
				p.Spec.RestartPolicy = c.policy
				d.desire(1, p)
				time.Sleep(2 * time.Second)
				st := d.wantPhase("job", c.phase, "")
				if term := st.ContainerStatuses[0].State.Terminated; term == nil || term.Reason != c.reason {
					t.Errorf("terminated %v, want reason %s", term, c.reason)
				}
				d.wantContainers("job/c0#0 exited")
				// also without its container, after a restart of the agent
				d.end()
				d.fake.Lose("flotilla_c0_job_default_uid-job_0")
				d.start()
				time.Sleep(time.Minute)
				d.wantPhase("job", c.phase, "")
				d.wantContainers()
			})
		})
	}
}

func TestARestartOfTheAgentRestartsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait", "wait")
		d.desire(1, p)
		time.Sleep(time.Second)
		before := d.containers()
		if len(before) != 3 {
			t.Fatalf("the engine holds %q, want a sandbox and two containers", before)
		}
		d.fake.Record()
		d.end()
		d.start()
		time.Sleep(2 * time.Minute)
		if calls := d.fake.Calls(); len(calls) > 0 {
			t.Errorf("after its restart the agent called %q, want no call", calls)
		}
		d.wantPhase("web", corev1.PodRunning, "")
	})
}

func TestARebootWithoutTheHubBringsEverythingUpAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		one, two := makePod("one", "wait"), makePod("two", "wait", "wait")
		two.Spec.InitContainers = []corev1.Container{{Name: "init", Image: enginetest.ToolImage, Args: []string{"exit", "0"}}}
		d.desire(7, one, two)
		time.Sleep(5 * time.Second)
		d.end()
		d.fake.PowerCut()
		d.board.set(func(b *board) { b.boot = "boot-2" })
		d.start()
		time.Sleep(10 * time.Second)
		d.wantPhase("one", corev1.PodRunning, "")
		st := d.wantPhase("two", corev1.PodRunning, "")
		for _, c := range st.ContainerStatuses {
			if !c.Ready || c.RestartCount != 1 {
				t.Errorf("container %s is ready=%v after %d restarts, want ready after 1", c.Name, c.Ready, c.RestartCount)
			}
		}
		if g := d.agent.StoredGeneration(); g != 7 {
			t.Errorf("stored generation %d, want 7", g)
		}
	})
}

func TestUndesiredPodsAreStoppedAndRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"), makePod("old", "wait", "wait"))
		time.Sleep(time.Second)
		d.desire(2, makePod("web", "wait"))
		time.Sleep(5 * time.Second)
		d.wantContainers("web/c0#0 running")
		if _, held := d.pod("old"); held {
			t.Error("old is still reported")
		}
	})
}

func TestWithoutItsDesiredStateADeviceRemovesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Second)
		d.end()
		for _, copy := range []string{"/desired.0.state", "/desired.1.state"} {
			if err := os.Truncate(d.dir+copy, 0); err != nil {
				t.Fatal(err)
			}
		}
		d.start()
		time.Sleep(5 * time.Minute)
		d.wantContainers("web/c0#0 running")
		if g := d.agent.StoredGeneration(); g != 0 {
			t.Errorf("it claims to have generation %d", g)
		}
		d.desire(1, makePod("web", "wait")) // the hub sends it again
		time.Sleep(time.Second)
		d.wantContainers("web/c0#0 running")
		d.wantPhase("web", corev1.PodRunning, "")
	})
}

func TestContainersOfOthersAreLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for _, l := range []map[string]string{
			nil, {plan.LabelAgent: "pi-2", plan.LabelStateDir: "x", plan.LabelPodUID: "u1"}, {plan.LabelAgent: "pi-1", plan.LabelStateDir: "another", plan.LabelPodUID: "u2"},
		} {
			id, err := d.fake.Create(context.Background(), engine.Spec{Name: fmt.Sprint("other", len(l), l[plan.LabelAgent]), Image: enginetest.ToolImage, Labels: l, Args: []string{"wait"}})
			if err == nil {
				err = d.fake.Start(context.Background(), id)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		d.fake.Record()
		d.desire(1)
		time.Sleep(5 * time.Minute)
		if calls := d.fake.Calls(); len(calls) > 0 {
			t.Errorf("the agent called %q for containers of others", calls)
		}
	})
}

// An image committed from a container of the agent has its labels, and an image's author may set
// them too: containers of such images that others started are not the agent's.
func TestLabelsOfAnImageDoNotMakeAContainerTheAgents(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Second)
		list, err := d.fake.Containers(t.Context(), plan.LabelAgent+"=pi-1")
		if err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		for i, uid := range []string{list[0].Labels[plan.LabelPodUID], "another"} {
			l := maps.Clone(list[0].Labels)
			l[plan.LabelPodUID], l[plan.LabelRestarts] = uid, "7"
			id, err := d.fake.Create(t.Context(), engine.Spec{Name: fmt.Sprint("debug", i), Image: enginetest.ToolImage, Labels: l, Args: []string{"wait"}})
			if err == nil {
				err = d.fake.Start(t.Context(), id)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		d.fake.Record()
		time.Sleep(5 * time.Minute)
		if pods := d.agent.Pods().Pods; len(pods) != 1 || pods[0].Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("the device says %+v", pods)
		}
		d.desire(2)
		time.Sleep(5 * time.Minute)
		if list, err = d.fake.Containers(t.Context(), plan.LabelAgent+"=pi-1"); err != nil || len(list) != 2 || list[0].State != engine.Running || list[1].State != engine.Running {
			t.Errorf("%v containers of others are left (%v); the agent called %q", list, err, d.fake.Calls())
		}
	})
}

func TestAnEngineThatIsAwayMakesTheNodeNotReadyAfter30Seconds(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(time.Minute)
		ready := func() corev1.NodeCondition {
			cs := d.agent.Status().Status.Conditions
			return cs[len(cs)-1]
		}
		d.fake.SetDown(true)
		time.Sleep(28 * time.Second)
		if c := ready(); c.Status != corev1.ConditionTrue {
			t.Fatalf("after 28 s Ready is %s (%s), want True", c.Status, c.Message)
		}
		time.Sleep(15 * time.Second) // by the next ping or the end of the event stream
		if c := ready(); c.Status != corev1.ConditionFalse || c.Reason != "ContainerEngineUnavailable" {
			t.Fatalf("after 43 s Ready is %s, %s (%s), want False, ContainerEngineUnavailable", c.Status, c.Reason, c.Message)
		}
		d.wantPhase("web", corev1.PodRunning, "") // no change is known
		d.fake.SetDown(false)
		time.Sleep(5 * time.Second)
		if c := ready(); c.Status != corev1.ConditionTrue {
			t.Errorf("the engine is back and Ready is %s (%s)", c.Status, c.Message)
		}
		d.wantContainers("web/c0#0 running")
	})
}

// A hangingEngine accepts every call and never returns.
type hangingEngine struct {
	engine.Engine
	hangs atomic.Bool
}

func (h *hangingEngine) Ping(ctx context.Context) error {
	if h.hangs.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Engine.Ping(ctx)
}

func (h *hangingEngine) Containers(ctx context.Context, label string) ([]engine.Container, error) {
	if h.hangs.Load() {
		ctx, cancel := context.WithTimeout(ctx, engine.AnswerTime)
		defer cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return h.Engine.Containers(ctx, label)
}

// A slowList engine needs a long time to list many containers, as on a board with a slow card.
type slowList struct{ engine.Engine }

func (s slowList) Containers(ctx context.Context, label string) ([]engine.Container, error) {
	select {
	case <-time.After(45 * time.Second):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return s.Engine.Containers(ctx, label)
}

func TestAnEngineThatTakesLongForManyContainersIsNotDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.engine = slowList{d.fake}
		d.start()
		defer func() { d.end() }()
		d.desire(1, makePod("web", "wait"))
		time.Sleep(5 * time.Minute)
		d.wantPhase("web", corev1.PodRunning, "")
		for range 300 {
			time.Sleep(time.Second)
			cs := d.agent.Status().Status.Conditions
			if c := cs[len(cs)-1]; c.Status != corev1.ConditionTrue {
				t.Fatalf("Ready is %s (%s), want True", c.Status, c.Message)
			}
		}
		d.wantTurns(200)
	})
}

// wantTurns limits the number of cycles of the loop in five minutes, counted in tenths of a second.
func (d *device) wantTurns(most int) {
	d.t.Helper()
	turns, last := 0, time.Time{}
	for range 3000 {
		time.Sleep(100 * time.Millisecond)
		if at := d.agent.LastCycle(); at != last {
			turns, last = turns+1, at
		}
	}
	if turns > most {
		d.t.Errorf("the loop ran in %d of 3000 tenths of a second without any change", turns)
	}
}

// While slow hardware is measured, a new measurement may become due: the loop waits for the end of
// the first.
func TestTheLoopWaitsForHardwareThatIsSlow(t *testing.T) {
	for _, plugged := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := newDevice(t)
			d.board.slow = 59 * time.Second
			d.config.Watch = func(ctx context.Context, changed func()) error {
				for plugged && ctx.Err() == nil {
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Second):
						changed()
					}
				}
				return nil
			}
			d.start()
			defer func() { d.end() }()
			d.wantTurns(250)
		})
	}
}

// An engine that hangs closes no connection and sends no event: only a ping detects it.
func TestAnEngineThatHangsMakesTheNodeNotReadyAfter40Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		h := &hangingEngine{Engine: d.fake}
		d.engine = h
		d.start()
		d.desire(1, makePod("web", "wait"))
		for _, into := range []time.Duration{time.Minute, 61 * time.Second, 75 * time.Second, 100 * time.Second} {
			time.Sleep(into)
			ready := func() corev1.NodeCondition {
				cs := d.agent.Status().Status.Conditions
				return cs[len(cs)-1]
			}
			if c := ready(); c.Status != corev1.ConditionTrue {
				t.Fatalf("Ready is %s (%s), want True", c.Status, c.Message)
			}
			h.hangs.Store(true)
			time.Sleep(29 * time.Second)
			if c := ready(); c.Status != corev1.ConditionTrue {
				t.Errorf("after 29 s Ready is %s (%s), want True", c.Status, c.Message)
			}
			time.Sleep(11*time.Second + 100*time.Millisecond)
			if c := ready(); c.Status != corev1.ConditionFalse || c.Reason != "ContainerEngineUnavailable" {
				t.Errorf("after 40 s Ready is %s, %s (%s), want False, ContainerEngineUnavailable", c.Status, c.Reason, c.Message)
			}
			h.hangs.Store(false)
			time.Sleep(15 * time.Second)
			if c := ready(); c.Status != corev1.ConditionTrue {
				t.Errorf("it responds again and Ready is %s (%s)", c.Status, c.Message)
			}
			d.wantContainers("web/c0#0 running")
		}
		d.end()
	})
}

func TestImagesThatCannotBePulled(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait")
		p.Spec.Containers[0].Image = "registry.test/none:1"
		d.desire(1, p)
		time.Sleep(time.Second)
		waiting := func() string {
			st, _ := d.pod("web")
			if w := st.ContainerStatuses[0].State.Waiting; w != nil {
				return w.Reason
			}
			return "none"
		}
		if w := waiting(); w != "ErrImagePull" {
			t.Errorf("it waits with %s, want ErrImagePull", w)
		}
		time.Sleep(15 * time.Second)
		if w := waiting(); w != "ImagePullBackOff" {
			t.Errorf("it waits with %s, want ImagePullBackOff", w)
		}
		d.wantPhase("web", corev1.PodPending, "")
		d.fake.OfferImage("registry.test/none:1", enginetest.Offer{Program: enginetest.ToolProgram})
		time.Sleep(time.Minute)
		d.wantPhase("web", corev1.PodRunning, "")
	})
}

// An image name becomes part of a path of the engine's API: an invalid one is not sent to an
// engine.
func TestAnInvalidImageNameIsNotSentToTheEngine(t *testing.T) {
	for _, image := range []string{"../../containers/json", "a/../../b:1", "a:1?all=1", "a b", "A", "a@sha256:00", "a/./b", "http://a/b"} {
		bubble(t, func(t *testing.T, d *device) {
			p := makePod("web", "wait")
			p.Spec.Containers[0].Image = image
			d.fake.OfferImage(image, enginetest.Offer{Program: enginetest.ToolProgram})
			d.desire(1, p)
			time.Sleep(time.Minute)
			st, _ := d.pod("web")
			if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "InvalidImageName" {
				t.Errorf("%q: %+v", image, st.ContainerStatuses[0].State)
			}
		})
	}
}

func TestAPresentImageIsUsedWhenTheRegistryFails(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		p := makePod("web", "wait")
		p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
		d.fake.OfferImage(enginetest.ToolImage, enginetest.Offer{Err: errors.New("no route to host")})
		d.desire(1, p)
		time.Sleep(time.Second)
		d.wantPhase("web", corev1.PodRunning, "")
		if !slices.Contains(d.reasons(), "PullFailedUsingPresent") {
			t.Errorf("events %q do not say that the image could not be pulled", d.reasons())
		}
	})
}

// After a reboot slow hardware is measured after the first list of containers. Restarted containers
// still get the device's values, such as the number of CPUs.
func TestContainersRestartedAfterARebootGetTheDevicesValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.board.slow = 3 * time.Second
		var told []string
		d.fake.AddImage("app", 1, func(s engine.Spec, run int) enginetest.Play {
			told = append(told, fmt.Sprint(s.Env, s.OOMScoreAdj))
			return enginetest.Play{}
		})
		d.start()
		defer func() { d.end() }()
		p := makePod("one", "wait")
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
		for _, name := range []string{"limits.cpu", "limits.memory"} {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: name}}})
		}
		d.desire(1, p)
		time.Sleep(10 * time.Second)
		d.end()
		d.fake.PowerCut()
		d.board.set(func(b *board) { b.boot = "boot-2" })
		d.start()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(told) != 2 || told[0] != told[1] || strings.Contains(told[0], "=0") {
			t.Errorf("the container was started with %q", told)
		}
	})
}
