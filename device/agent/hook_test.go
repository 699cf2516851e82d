package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/pause"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/volume"
)

// A commandLog records the commands that a device's containers ran, with their times.
type commandLog struct {
	mu    sync.Mutex
	began time.Time
	lines []string
}

func (y *commandLog) note(format string, args ...any) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.lines = append(y.lines, fmt.Sprintf("%.0fs ", time.Since(y.began).Seconds())+fmt.Sprintf(format, args...))
}

func (y *commandLog) want(t *testing.T, want ...string) {
	t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	if !slices.Equal(y.lines, want) {
		t.Errorf("the commands are:\n%s\nwant:\n%s", strings.Join(y.lines, "\n"), strings.Join(want, "\n"))
	}
	y.lines = nil
}

// offerHookApp offers the image "app". A command takes as many seconds as its second word says and
// exits with the code of the third word. The container stops at once.
func (d *device) offerHookApp() *commandLog {
	y := &commandLog{began: time.Now()}
	d.fake.AddImage("app", 1, func(s engine.Spec, run int) enginetest.Play {
		if len(s.Entrypoint) > 0 && s.Entrypoint[0] == pause.Target {
			return enginetest.Play{}
		}
		y.note("start %s/%d", s.Labels[plan.LabelContainer], run)
		return enginetest.Play{Exec: func(c []string) enginetest.ExecResult {
			y.note("%s in %s", c[0], s.Labels[plan.LabelContainer])
			var r enginetest.ExecResult
			if len(c) > 1 {
				var seconds int
				_, _ = fmt.Sscan(c[1]+" "+c[2], &seconds, &r.Code)
				r.After = time.Duration(seconds) * time.Second
			}
			return r
		}}
	})
	return y
}

func execHook(words ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: words}}
}

func hookPod(l *corev1.Lifecycle, containers int) corev1.Pod {
	p := makePod("app", make([]string, containers)...)
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		c.Image, c.ImagePullPolicy = "app", corev1.PullNever
	}
	p.Spec.Containers[0].Lifecycle = l
	return p
}

func TestAPostStartHookDelaysProbesReadinessAndTheNextContainer(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		y := d.offerHookApp()
		p := hookPod(&corev1.Lifecycle{PostStart: execHook("hook", "20", "0")}, 2)
		p.Spec.Containers[0].ReadinessProbe = execProbe(corev1.Probe{InitialDelaySeconds: 21, PeriodSeconds: 100})
		d.desire(1, p)
		time.Sleep(10 * time.Second)
		st := d.wantPhase("app", corev1.PodPending, "")
		if s := st.ContainerStatuses[0]; s.State.Waiting == nil || s.Ready || *s.Started {
			t.Errorf("the container's status while the hook runs is %+v, want it waiting, not ready, not started", s)
		}
		time.Sleep(15 * time.Second)
		st = d.wantPhase("app", corev1.PodRunning, "")
		if !ready(&st) {
			t.Errorf("the container's status after the hook is %+v, want it ready", st.ContainerStatuses)
		}
		d.end() // a restarted agent does not run the hook again
		d.start()
		time.Sleep(5 * time.Second)
		if st := d.wantPhase("app", corev1.PodRunning, ""); st.ContainerStatuses[0].State.Running == nil {
			t.Errorf("the container's status after a restart of the agent is %+v, want it running",
				st.ContainerStatuses[0].State)
		}
		y.want(t, "0s start c0/0", "0s hook in c0", "20s start c1/0", "21s check in c0", "25s check in c0")
	})
}

// A pod that restarts every five minutes for years has notes only for its existing containers.
func TestNotesOfHooksAreRemovedWithTheirContainers(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.offerHookApp()
		p := hookPod(&corev1.Lifecycle{PostStart: execHook("hook", "0", "0"), PreStop: execHook("bye", "0", "0")}, 1)
		p.Spec.Containers[0].LivenessProbe = execProbe(corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1})
		p.Spec.Containers[0].LivenessProbe.Exec.Command = []string{"check", "0", "1"}
		d.desire(1, p)
		time.Sleep(6 * time.Hour)
		st, _ := d.pod("app")
		notes := namesIn(filepath.Join(d.dir, "volatile", volume.PodsDir, string(p.UID)))
		notes = slices.DeleteFunc(notes, func(name string) bool {
			return !strings.HasPrefix(name, "."+podspec.PostStart) && !strings.HasPrefix(name, "."+podspec.PreStop)
		})
		if restarts := st.ContainerStatuses[0].RestartCount; restarts < 20 || len(notes) == 0 || len(notes) > 4 {
			t.Errorf("after %d restarts there are %d notes, want 1 to 4 after at least 20", restarts, len(notes))
		}
		// the hook takes longer than the grace period
		p = hookPod(&corev1.Lifecycle{PreStop: execHook("bye", "1000", "0")}, 1)
		p.UID, p.Name = "uid-slow", "slow"
		p.Spec.Containers[0].LivenessProbe = execProbe(corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1})
		p.Spec.Containers[0].LivenessProbe.Exec.Command = []string{"check", "0", "1"}
		d.desire(2, p)
		time.Sleep(6 * time.Hour)
		st, _ = d.pod("slow")
		if restarts, execs := st.ContainerStatuses[0].RestartCount,
			namesIn(filepath.Join(d.dir, "volatile", "execs")); restarts < 20 || len(execs) > 1 {
			t.Errorf("after %d restarts there are %d notes of commands", restarts, len(execs))
		}
	})
}

// A hook that waits for a response ends with its container, however the container ended, and leaves
// no note.
func TestAPostStartHookWithoutAResponseEndsWithItsContainer(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		var asking atomic.Int32
		d.config.Dial = func(context.Context, string, string) (net.Conn, error) {
			client, server := net.Pipe()
			asking.Add(1)
			go func() {
				_, _ = io.Copy(io.Discard, server)
				asking.Add(-1)
			}()
			return client, nil
		}
		d.start()
		d.offerHookApp()
		p := hookPod(&corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80)}}}, 1)
		d.desire(1, p)
		time.Sleep(20 * time.Second)
		for range 3 {
			d.fake.Exit(d.newest(t, "app"), 1)
			time.Sleep(time.Minute)
			if n := asking.Load(); n != 1 {
				t.Fatalf("%d hooks send requests", n)
			}
		}
		d.desire(2)
		time.Sleep(time.Minute)
		if n := asking.Load(); n != 0 {
			t.Errorf("%d hooks of a removed pod send requests", n)
		}
		a := d.agent
		d.end()
		d.start()
		if n := len(a.loop.cancels); n != 0 {
			t.Errorf("%d cancel functions of ended hooks are left", n)
		}
	})
}

// An endlessExec engine does not detect that the container of a command has ended, like Docker with
// a shared PID namespace.
type endlessExec struct {
	engine.Engine
	began, running atomic.Int32
}

func (e *endlessExec) Exec(ctx context.Context, _ string, _ []string, s engine.Streams) (int, error) {
	s.Began(fmt.Sprint("exec-", e.began.Add(1)))
	e.running.Add(1)
	defer e.running.Add(-1)
	<-ctx.Done()
	return 0, fmt.Errorf("run a command: %w", ctx.Err())
}

func TestACommandOfAPostStartHookEndsWithItsContainer(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		e := &endlessExec{Engine: d.fake}
		d.engine = e
		d.start()
		d.offerHookApp()
		notes := func() int { return len(namesIn(d.agent.disk.execs())) }
		d.desire(1, hookPod(&corev1.Lifecycle{PostStart: execHook("hook")}, 1))
		time.Sleep(20 * time.Second)
		for range 3 {
			d.fake.Exit(d.newest(t, "app"), 1)
			time.Sleep(time.Minute)
			if n := e.running.Load(); n != 1 || notes() != 1 {
				t.Fatalf("%d commands run and %d have a note", n, notes())
			}
		}
		d.desire(2)
		time.Sleep(time.Minute)
		if n := e.running.Load(); n != 0 || notes() != 0 || e.began.Load() < 3 {
			t.Errorf("of %d commands %d run and %d have a note", e.began.Load(), n, notes())
		}
	})
}

func TestAPostStartHookThatFailsEndsTheContainer(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		y := d.offerHookApp()
		p := hookPod(&corev1.Lifecycle{PostStart: execHook("hook", "2", "3"), PreStop: execHook("bye", "1", "0")}, 1)
		d.desire(1, p)
		time.Sleep(10 * time.Second)
		st, _ := d.pod("app")
		if s := st.ContainerStatuses[0]; s.RestartCount != 1 || s.Ready {
			t.Errorf("restarted %d times, ready %v; want once, not ready", s.RestartCount, s.Ready)
		} else if w := s.State.Waiting; w == nil || w.Reason != "CrashLoopBackOff" ||
			!strings.Contains(w.Message, "PostStartHook failed: command exited with 3") {
			t.Errorf("the container's status is %+v, want the hook's failure", s.State)
		}
		y.want(t, "0s start c0/0", "0s hook in c0", "2s bye in c0", "3s start c0/0", "3s hook in c0", "5s bye in c0")
		if r := d.reasons(); !slices.Contains(r, "FailedPostStartHook") || !slices.Contains(r, "Killing") {
			t.Errorf("the events are %q, want FailedPostStartHook and Killing", r)
		}
	})
}

// A restarted agent runs an interrupted hook again.
func TestAnInterruptedHookRunsAgain(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		y := d.offerHookApp()
		d.desire(1, hookPod(&corev1.Lifecycle{PostStart: execHook("hook", "20", "0")}, 1))
		time.Sleep(10 * time.Second)
		d.end()
		d.start()
		time.Sleep(30 * time.Second)
		d.wantPhase("app", corev1.PodRunning, "")
		y.want(t, "0s start c0/0", "0s hook in c0", "10s hook in c0")
	})
}

// As with the kubelet, any HTTP response is a success. The request goes to the pod's address.
func TestAnHTTPHookSendsItsRequestToThePod(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.offerHookApp()
		var mu sync.Mutex
		var requests []string
		d.config.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if requests = append(requests, address); len(requests) > 1 {
				return nil, errors.New("refused")
			}
			client, server := net.Pipe()
			go func() {
				_, _ = server.Read(make([]byte, 2048))
				_, _ = server.Write([]byte("HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"))
				_ = server.Close()
			}()
			return client, nil
		}
		d.end()
		d.start()
		ask := &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80), Path: "/up"}}
		p := hookPod(&corev1.Lifecycle{PostStart: ask, PreStop: ask}, 1)
		d.desire(1, p)
		time.Sleep(5 * time.Second)
		st := d.wantPhase("app", corev1.PodRunning, "")
		if slices.Contains(d.reasons(), "FailedPostStartHook") {
			t.Errorf("the hook has failed: events %q", d.reasons())
		}
		d.desire(2, deletedPod(p, 30))
		time.Sleep(5 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if at := net.JoinHostPort(st.PodIP, "80"); !slices.Equal(requests, []string{at, at}) {
			t.Errorf("the hook sent the requests %q, want them at the address %s", requests, at)
		}
		if !slices.Contains(d.reasons(), "FailedPreStopHook") {
			t.Errorf("the events are %q, want FailedPreStopHook", d.reasons())
		}
	})
}

func TestProbesWaitForThePostStartHook(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		y := d.offerHookApp()
		p := hookPod(&corev1.Lifecycle{PostStart: execHook("hook", "12", "0")}, 1)
		p.Spec.Containers[0].StartupProbe = execProbe(corev1.Probe{PeriodSeconds: 60})
		d.desire(1, p)
		time.Sleep(10 * time.Second)
		y.want(t, "0s start c0/0", "0s hook in c0")
		time.Sleep(10 * time.Second)
		y.want(t, "12s check in c0")
	})
}
