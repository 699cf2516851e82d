package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// startStep runs a step outside the loop.
func (a *Agent) startStep(s plan.Step, now time.Time) {
	l := &a.loop
	d := plan.RunningStep{Step: s, Since: now}
	l.o.Busy = append(l.o.Busy, d)
	if !s.Action.RunsBeside() {
		a.log.Debug(s.String(), "pod", s.Place.Pod)
	}
	timeout := 2 * time.Minute
	switch s.Action {
	case plan.Run:
		timeout = 2 * time.Hour // images can be large and uplinks slow; a Cancel step ends the run
	case plan.Hook:
		timeout = 0 // no limit; stopping the container ends the hook
	case plan.Stop:
		timeout = s.Grace + time.Minute
	}
	var ctx context.Context
	var cancel context.CancelFunc // the agent's context cancels all other steps
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(l.ctx, timeout)
	} else {
		ctx, cancel = context.WithCancel(l.ctx)
	}
	if s.Action == plan.Run || s.Action == plan.Hook {
		l.cancels[flightOf(s)] = cancel
	}
	j := job{step: s, engine: l.engine, info: l.info, src: a.sourcesOf(s), node: l.o.Node, block: l.desired.PodCIDR}
	if s.Action == plan.Run {
		j.hard = a.limits().Hard
	}
	a.work.Go(func() {
		defer cancel()
		err := a.do(ctx, j)
		a.post(func() { a.stepDone(d, err) })
	})
}

func (a *Agent) sourcesOf(s plan.Step) podspec.Sources {
	if s.Pod == nil {
		return podspec.Sources{}
	}
	l := &a.loop
	src := plan.SourcesOf(l.desired, s.Pod, l.o.Node, plan.PodIP(s.Pod, l.o.Pods[s.Pod.UID], l.o.Node))
	src.Devices, src.Booting = s.Devices, time.Since(l.o.Node.Booted) < plan.BootTime
	return src
}

// release removes a step from those in progress.
func (a *Agent) release(d plan.RunningStep) {
	l := &a.loop
	l.o.Busy = slices.DeleteFunc(l.o.Busy, func(b plan.RunningStep) bool {
		return b.Since.Equal(d.Since) &&
			b.Step.Same(d.Step)
	})
}

// stepDone records the result of a step.
func (a *Agent) stepDone(d plan.RunningStep, err error) {
	l := &a.loop
	now := time.Now()
	s := d.Step
	r := l.o.RecordOf(s.Place.Pod)
	if s.Action == plan.Probe {
		a.release(d)
		a.probeDone(s, err, now)
		return
	}
	if s.Action == plan.Hook {
		delete(l.cancels, flightOf(s))
		if errors.Is(err, engine.ErrUnavailable) { // the container is not at fault
			l.heldSteps = append(l.heldSteps, heldStep{d, now.Add(plan.HoldFailed)})
			return
		}
		a.release(d)
		a.hookDone(s, err)
		return
	}
	l.changed()
	if s.Action == plan.Run {
		delete(l.cancels, flightOf(s))
		c := r.ContainerOf(s.Place.Container)
		switch {
		case err == nil:
			c.Failure, c.Failures, c.RetryAt = nil, 0, time.Time{}
		case errors.Is(err, context.Canceled):
		case errors.Is(err, engine.ErrUnavailable):
			c.RetryAt = now.Add(retryEngine) // the pod is not at fault
		default:
			a.runFailed(s, c, err, now)
		}
		a.release(d)
		return
	}
	if s.Action == plan.Update && !errors.Is(err, engine.ErrUnavailable) && l.ctx.Err() == nil {
		a.release(d)
		a.updateDone(s, err, now)
		return
	}
	if s.Action == plan.Refresh {
		a.release(d)
		a.refreshDone(s, r, err, now)
		return
	}
	if l.ctx.Err() == nil {
		a.trouble(fmt.Sprintf("%s failed, it is tried again", s), err)
	}
	if s.Action == plan.Clean && l.ctx.Err() == nil {
		a.cleanFailed(s, r, err, now)
		err = nil
	}
	if s.Action == plan.Remove && err != nil && !errors.Is(err, engine.ErrUnavailable) && l.ctx.Err() == nil &&
		a.removeFailed(s, err, now) {
		a.release(d)
		return
	}
	if err != nil && l.ctx.Err() == nil {
		l.heldSteps = append(l.heldSteps, heldStep{d, now.Add(plan.HoldFailed)})
		return
	}
	a.release(d)
	if s.Action == plan.Clean {
		r.Cleaned = true
	}
}

// refreshDone records whether the volumes of a pod are up to date. Their source may be missing for
// months while the pod runs, so attempts become rarer until the desired state changes.
func (a *Agent) refreshDone(s plan.Step, r *plan.Record, err error, now time.Time) {
	switch {
	case err == nil:
		r.Volumes, r.StaleAt, r.StaleBackOff = s.Generation, time.Time{}, 0
	case a.loop.ctx.Err() == nil:
		r.StaleAt, r.StaleBackOff = now, min(max(2*r.StaleBackOff, plan.HoldFailed), fleet.MaxBackOff)
		if s.Generation != a.loop.o.Node.Generation { // the desired state has changed since the step began
			r.StaleBackOff = plan.HoldFailed
		}
		a.event(corev1.EventTypeWarning, plan.FailedMount, s.Pod, "", "%v", err)
	}
}

// runFailed records why a container could not run, and sets the next attempt with back-off.
func (a *Agent) runFailed(s plan.Step, c *plan.ContainerRecord, err error, now time.Time) {
	v := plan.Verdict{Reason: "RunContainerError", Message: err.Error()}
	var f *plan.RunError
	if errors.As(err, &f) {
		v = plan.Verdict{Reason: f.Reason, Message: f.Err.Error()}
	}
	c.Failure = &v
	c.Failures++
	wait := min(fleet.FirstBackOff<<min(c.Failures-1, 6), fleet.MaxBackOff)
	switch {
	case v.Reason == plan.FailedMount:
		wait = min(wait, plan.MaxMountBackOff)
	case slices.Contains(plan.WaitingReasons, v.Reason):
		wait = min(wait, time.Minute)
	}
	c.RetryAt = now.Add(wait)
}

// probeDone records the result of a probe.
func (a *Agent) probeDone(s plan.Step, err error, now time.Time) {
	r := a.loop.o.Pods[s.Place.Pod]
	if r == nil || errors.Is(err, context.Canceled) {
		return
	}
	c := r.Container[s.Place.Container]
	if c == nil {
		return
	}
	was := c.Probe[s.Probe].Passed
	message := c.Probed(s, err, now)
	if is := c.Probe[s.Probe].Passed; is != was && s.Probe != podspec.Liveness {
		a.work.Go(func() { a.disk.noteProbe(s, is) })
	}
	if message != "" {
		a.event(corev1.EventTypeWarning, "Unhealthy", s.Pod, s.Place.Container, "%s", message)
	}
	if c.KillReason != "" {
		a.event(corev1.EventTypeNormal, "Killing", s.Pod, s.Place.Container, "%s", c.KillReason)
	}
}

const (
	resizeStarted   = "ResizeStarted"
	resizeCompleted = "ResizeCompleted"
	retryResize     = time.Minute // wait after the engine has refused a resize
)

// grant stores a pod's resize before it is applied. If storing fails, the resize stays requested.
func (a *Agent) grant(pod *corev1.Pod, now time.Time) {
	l := &a.loop
	if l.savingGrant || now.Before(l.grantAt) {
		return
	}
	l.savingGrant = true
	hub, generation := l.desired.Hub, l.desired.Generation
	a.work.Go(func() {
		done, err := a.storeGrant(pod.UID, hub, generation)
		a.post(func() {
			l.savingGrant, l.grantAt = false, time.Time{}
			if a.trouble("store the resize of a pod; the resize stays requested", err, "pod", pod.UID); err != nil {
				l.grantAt = time.Now().Add(maxIdle)
			}
			if done {
				a.applyGrant(pod)
			}
		})
	})
}

// storeGrant stores the granted resize of a pod. It returns false if the desired state has changed.
func (a *Agent) storeGrant(uid types.UID, hub string, generation int64) (done bool, err error) {
	a.desiredMutex.Lock()
	defer a.desiredMutex.Unlock()
	d, _ := a.c.Memory.Desired()
	i := slices.IndexFunc(d.Pods, func(p corev1.Pod) bool { return p.UID == uid })
	if i < 0 || d.Hub != hub || d.Generation != generation {
		return false, nil // the loop receives a newer desired state soon
	}
	d.Pods = slices.Clone(d.Pods)
	d.Pods[i].Status.ContainerStatuses = nil
	err = a.c.Memory.SetDesired(d)
	return err == nil, err
}

// applyGrant applies a stored resize in the loop. A newer desired state already contains the
// resize.
func (a *Agent) applyGrant(pod *corev1.Pod) {
	l := &a.loop
	if d, _ := a.c.Memory.Desired(); d.Hub == l.desired.Hub && d.Generation == l.desired.Generation {
		l.desired, l.o.Requested = plan.SplitGrants(d)
	}
	if r := l.o.Pods[pod.UID]; r != nil {
		r.ResizePending, r.Resizing, r.Volumes = nil, true, -1 // files may contain resource fields
	}
	a.event(corev1.EventTypeNormal, resizeStarted, pod, "", "Pod resize started: %s", plan.DescribeSizes(pod))
}

// update applies a container's granted resources in the engine. It refuses a memory limit below the
// present usage, because the kernel would kill a process.
func (j job) update(ctx context.Context) error {
	s := j.step
	limit := s.Spec.Resources.Limits.Memory().Value()
	if limit > 0 && (s.OldLimits.Memory == 0 || s.Limits.Memory < s.OldLimits.Memory) {
		used, err := j.engine.Usage(ctx, s.ID)
		if err != nil {
			return err
		}
		if used.MemoryBytes >= uint64(limit) {
			return fmt.Errorf(
				"cannot decrease memory limits: attempting to set container %q memory limit (%d) below current usage (%d)",
				s.Spec.Name, limit, used.MemoryBytes)
		}
	}
	to := plan.SizeOf(s.Pod, s.Spec, j.node)
	to.CPUs = s.Limits.CPUs
	return j.engine.Update(ctx, s.ID, to)
}

// updateDone records the result of update.
func (a *Agent) updateDone(s plan.Step, err error, now time.Time) {
	c := a.loop.o.RecordOf(s.Place.Pod).ContainerOf(s.Place.Container)
	switch {
	case c.ID != s.ID:
	case err == nil:
		c.Limits, c.LimitsUnknown, c.Refused = s.Limits, false, nil
	default:
		if c.Refused == nil || c.Refused.Why != err.Error() {
			a.event(corev1.EventTypeWarning, "ResizeError", s.Pod, s.Place.Container, "Pod resize error: %v", err)
		}
		c.Refused = &plan.Refusal{Limits: s.Limits, Until: now.Add(retryResize), Why: err.Error()}
	}
}

// reportResized reports completed resizes.
func (a *Agent) reportResized() {
	l := &a.loop
	for i := range l.desired.Pods {
		pod := &l.desired.Pods[i]
		if r := l.o.Pods[pod.UID]; r != nil && r.Resizing {
			if busy, _ := plan.ResizeState(pod, r, l.o.Node); !busy {
				r.Resizing = false
				a.event(corev1.EventTypeNormal, resizeCompleted, pod, "", "Pod resize completed: %s", plan.DescribeSizes(pod))
			}
		}
	}
}
