package agent

import (
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/memory"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

// Desired stores a desired state as Store does. It logs errors at intervals only, because the hub
// repeats the state while the stored generation is too old.
func (a *Agent) Desired(d wire.Desired) {
	err := a.Store(d)
	if errors.Is(err, memory.ErrOlder) {
		a.log.Info("ignored a desired state that is older than the stored one", "err", err)
		return
	}
	a.post(func() { a.trouble("the desired state was not stored", err, "generation", d.Generation) })
}

// Store stores a desired state durably, applies it, and reports the stored generation to the hub.
// It returns memory.ErrOlder if the device has a newer desired state of the same hub.
func (a *Agent) Store(d wire.Desired) error {
	d, dropped := podspec.DropInvalid(d)
	for _, why := range dropped[:min(len(dropped), 10)] {
		a.event(corev1.EventTypeWarning, "DesiredStateInvalid", nil, "", "left out of the desired state: %s", why)
	}
	if err := a.storeDesired(d); err != nil {
		return err
	}
	a.post(func() {
		d, a.loop.desiredKnown = a.c.Memory.Desired() // the stored state may be newer than d
		a.applyDesired(d)
	})
	a.published.Lock()
	hub := a.published.hub
	a.published.Unlock()
	if hub != nil {
		hub.DesiredStored()
	}
	return nil
}

// applyDesired applies a desired state in the loop.
func (a *Agent) applyDesired(d wire.Desired) {
	l := &a.loop
	l.desired, l.o.Requested = plan.SplitGrants(d)
	l.o.Node.Generation = d.Generation
	a.judgeDesired()
	l.o.RetryWaiting()
}

// storeDesired stores a desired state with the resources that the device has granted. It never
// waits for the loop, which may grant more resources meanwhile.
func (a *Agent) storeDesired(d wire.Desired) error {
	a.desiredMutex.Lock()
	defer a.desiredMutex.Unlock()
	was, _ := a.c.Memory.Desired()
	return a.c.Memory.SetDesired(plan.KeepGrants(was, d))
}

// judgeDesired rejects invalid pods of the desired state, even if they were admitted before, and
// ends pods whose phase on the hub is final.
func (a *Agent) judgeDesired() {
	l := &a.loop
	for i := range l.desired.Pods {
		pod := &l.desired.Pods[i]
		if plan.IsFinal(pod.Status.Phase) { // the agent's own record of the pod's end may be lost
			if r := l.o.RecordOf(pod.UID); r.Final == nil && r.Verdict == nil {
				r.Final = pod.Status.DeepCopy()
			}
		}
		why := podspec.Malformed(pod)
		if why == "" {
			continue
		}
		r := l.o.RecordOf(pod.UID)
		if r.Verdict != nil || r.Final != nil {
			continue
		}
		if r.Start.IsZero() {
			r.Start = time.Now()
		}
		r.Verdict = &plan.Verdict{Reason: "Invalid", Message: why}
		a.event(corev1.EventTypeWarning, r.Verdict.Reason, pod, "", "%s", why)
	}
}

// Leave stops and removes every workload with its grace period, and stores that, so that a
// restarted agent continues. Call it only when the enrolment has ended. If storing fails, Leave
// returns the error and the workloads stop anyway; the hub repeats the dismissal after a restart.
func (a *Agent) Leave() error {
	d, ok := a.c.Memory.Desired()
	if !ok {
		return nil
	}
	a.post(func() { a.loop.o.Dismissed = true })
	now := time.Now()
	d.Pods = slices.Clone(d.Pods)
	for i := range d.Pods {
		p := &d.Pods[i]
		if p.DeletionTimestamp != nil {
			continue
		}
		grace := int64(30)
		if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
			grace = max(*g, 1)
		}
		at := metav1.NewTime(now.Add(time.Duration(grace) * time.Second))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
	}
	err := a.Store(d)
	if err != nil {
		a.post(func() { a.applyDesired(d) })
	}
	return err
}
