package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/probe"
	"flotilla.dev/device/volume"
)

// Hooks follow the kubelet. A container counts as starting until its postStart hook has ended; a
// failed hook ends the container. A preStop hook runs before the container stops, within its grace
// period. A hook runs at least once: notes on the disk record which hooks have ended and which
// probes have passed, so that a restarted agent does not repeat them.

const minGrace = 2 * time.Second // time between TERM and KILL if a preStop hook has used up the grace period

// hookDone records the result of a postStart hook.
func (a *Agent) hookDone(s plan.Step, err error) {
	r := a.loop.o.Pods[s.Place.Pod]
	if r == nil {
		return
	}
	c := r.Container[s.Place.Container]
	switch {
	case c == nil || c.ID != s.ID || !c.Running() || errors.Is(err, context.Canceled): // the container is stopping
	case err != nil:
		a.event(corev1.EventTypeWarning, "FailedPostStartHook", s.Pod, s.Place.Container, "PostStartHook failed: %v", err)
		c.PostStarted, c.KillReason, c.HookError = true, "FailedPostStartHook", fmt.Sprintf("PostStartHook failed: %v", err)
	default:
		c.PostStarted = true
	}
}

// endHooks cancels the postStart hooks of ended containers. Otherwise an HTTP hook may wait without
// a response, and engines may not detect that a command in a shared PID namespace has ended.
func (a *Agent) endHooks() {
	l := &a.loop
	for _, b := range l.o.Busy {
		s := b.Step
		if s.Action != plan.Hook {
			continue
		}
		cancel := l.cancels[flightOf(s)]
		if c := l.o.Pods[s.Place.Pod].Peek(s.Place.Container); cancel != nil && (c.ID != s.ID || !c.Running()) {
			cancel()
		}
	}
}

// postStart runs the hook of a started container.
func (a *Agent) postStart(ctx context.Context, j job) error {
	err := a.hook(ctx, j, podspec.Hook(j.step.Spec, podspec.PostStart))
	if err == nil {
		a.disk.noteHook(j.step, podspec.PostStart)
	}
	return err
}

// stop runs the preStop hook and stops a container. A sandbox does not wait for other containers.
func (a *Agent) stop(ctx context.Context, j job) error {
	if j.step.Place.Container == "" {
		return j.engine.Stop(ctx, j.step.ID, j.step.Grace)
	}
	grace := a.preStop(ctx, j)
	grace = a.preStops.waitFor(ctx, j.step.StopAfter, grace)
	return j.engine.Stop(ctx, j.step.ID, max(grace, minGrace))
}

// preStopHooks are the running preStop hooks by container id. A second stop with a shorter grace
// period waits for the hook of the first stop.
type preStopHooks struct {
	sync.Mutex
	hooks   map[string]*stopHook
	running map[string]bool // containers, by id
	changed chan struct{}   // closed when running changes; nil if no stop waits
}

type stopHook struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// preStop runs a container's hook before its stop, for at most its grace period, and returns the
// rest of the grace period. As with the kubelet, a grace period of 0 means that no hook runs. That
// happens only after a failed probe, see podGrace.
func (a *Agent) preStop(ctx context.Context, j job) time.Duration {
	s := j.step
	h := podspec.Hook(s.Spec, podspec.PreStop)
	if h == nil || s.Grace <= 0 || a.disk.hookEnded(s, podspec.PreStop) {
		return s.Grace
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.Grace)
	defer cancel()
	a.preStops.Lock()
	run := a.preStops.hooks[s.ID]
	if run != nil {
		a.preStops.Unlock()
		select {
		case <-run.ended:
		case <-ctx.Done():
			run.cancel()
		}
	} else {
		run = &stopHook{cancel, make(chan struct{})}
		if a.preStops.hooks == nil {
			a.preStops.hooks = map[string]*stopHook{}
		}
		a.preStops.hooks[s.ID] = run
		a.preStops.Unlock()
		err := a.hook(ctx, j, h)
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			err = fmt.Errorf("it has not ended within the grace period of %s", s.Grace)
		case ctx.Err() != nil: // the agent stops, or another stop with a shorter grace period takes over the hook
			err = nil
		}
		if err != nil {
			a.event(corev1.EventTypeWarning, "FailedPreStopHook", s.Pod, s.Place.Container, "PreStopHook failed: %v", err)
		}
		if !errors.Is(ctx.Err(), context.Canceled) {
			a.disk.noteHook(s, podspec.PreStop)
		}
		a.preStops.Lock()
		delete(a.preStops.hooks, s.ID)
		a.preStops.Unlock()
		close(run.ended)
	}
	return s.Grace - time.Since(began)
}

// hook runs a hook. It discards a command's output, which may contain secrets.
func (a *Agent) hook(ctx context.Context, j job, h *corev1.LifecycleHandler) error {
	s := j.step
	switch {
	case h.Exec != nil:
		out := &probe.Limited{Max: 1 << 10}
		id := ""
		code, err := j.engine.Exec(ctx, s.ID, h.Exec.Command, engine.Streams{Stdout: out, Stderr: out,
			Began: func(exec string) { id = exec; a.noteExec(exec) }})
		if id != "" && a.loop.ctx.Err() == nil { // the next agent ends a command that runs longer than this agent
			a.forgetExec(id)
		}
		if err != nil {
			return err
		}
		if code != 0 {
			a.log.Debug("a hook failed", "pod", s.Place.Pod, "container", s.Place.Container, "output",
				string(bytes.TrimSpace(out.Bytes)))
			return fmt.Errorf("command exited with %d", code)
		}
	case h.HTTPGet != nil:
		answer, err := a.prober.Get(ctx, targetOf(s), h.HTTPGet, "kube-lifecycle/flotilla")
		if err != nil {
			return err
		}
		return answer.Body.Close() // as with the kubelet, any response is a success
	case h.Sleep != nil:
		select {
		case <-time.After(time.Duration(min(h.Sleep.Seconds, 1<<31)) * time.Second):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	default:
		return errors.New("this type of hook is not supported on devices: use exec, httpGet or sleep")
	}
	return nil
}

// hookNote is the path of a note. The note is next to the pod's volumes that do not outlive a boot,
// under a name that a volume cannot have.
func (d *notebook) hookNote(uid types.UID, kind, id string) string {
	return filepath.Join(d.Memory, volume.PodsDir, string(uid), "."+kind+"-"+filepath.Base(id))
}

// noteHook records that a hook has ended. Without the note a restarted agent runs the hook again.
func (d *notebook) noteHook(s plan.Step, kind string) {
	path := d.hookNote(s.Place.Pod, kind, s.ID)
	if d.Root == "" || !podspec.IsUID(s.Place.Pod) || os.MkdirAll(filepath.Dir(path), 0o700) != nil {
		return
	}
	_ = os.WriteFile(path, nil, 0o600)
}

// noteProbe records for a restarted agent whether a probe has passed.
func (d *notebook) noteProbe(s plan.Step, passed bool) {
	if passed {
		d.noteHook(s, s.Probe.String())
	} else if d.Root != "" && podspec.IsUID(s.Place.Pod) {
		// If the note remains, the next agent's probes correct the result.
		_ = os.Remove(d.hookNote(s.Place.Pod, s.Probe.String(), s.ID))
	}
}

// forgetHooks removes the notes of a container that the agent removes.
func (d *notebook) forgetHooks(s plan.Step) {
	if d.Root == "" || !podspec.IsUID(s.Place.Pod) || s.Place.Container == "" {
		return
	}
	for _, kind := range []string{podspec.PostStart, podspec.PreStop, podspec.Startup.String(),
		podspec.Readiness.String()} {
		_ = os.Remove(d.hookNote(s.Place.Pod, kind, s.ID)) // a note that remains is removed with the pod
	}
}

func (d *notebook) hookEnded(s plan.Step, kind string) bool {
	if d.Root == "" || !podspec.IsUID(s.Place.Pod) {
		return false
	}
	_, err := os.Lstat(d.hookNote(s.Place.Pod, kind, s.ID))
	return err == nil
}

// loadHookNotes reads which containers of an earlier agent have completed their postStart hook, and
// which have passed their probes.
func (a *Agent) loadHookNotes() {
	for uid, r := range a.loop.o.Pods {
		for name, c := range r.Container {
			has := func(kind string) bool {
				return c.Running() && a.disk.hookEnded(plan.Step{Place: plan.Place{Pod: uid, Container: name}, ID: c.ID}, kind)
			}
			c.PostStarted = c.PostStarted || has(podspec.PostStart)
			c.Probe[podspec.Startup].Passed, c.Probe[podspec.Readiness].Passed = has(podspec.Startup.String()),
				has(podspec.Readiness.String())
		}
	}
}

// see updates the running containers.
func (s *preStopHooks) see(all []plan.Instance) {
	s.Lock()
	defer s.Unlock()
	s.running = make(map[string]bool, len(all))
	for _, in := range all {
		if plan.IsRunning(in) {
			s.running[in.ID] = true
		}
	}
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// waitFor waits until the containers that must stop earlier have ended, for at most the grace
// period, and returns the rest of the grace period.
func (s *preStopHooks) waitFor(ctx context.Context, before []string, grace time.Duration) time.Duration {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for {
		s.Lock()
		waits := slices.ContainsFunc(before, func(id string) bool { return s.running[id] })
		if waits && s.changed == nil {
			s.changed = make(chan struct{})
		}
		news := s.changed
		s.Unlock()
		if !waits {
			return grace - time.Since(began)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return grace - time.Since(began)
		}
	}
}
