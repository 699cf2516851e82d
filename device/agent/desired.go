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

// Desired takes what the hub wants; see Store. What goes wrong is logged, now and then as long as
// the hub sends it again, and the hub sees it by the generation that stays behind.
func (a *Agent) Desired(d wire.Desired) {
	err := a.Store(d)
	if errors.Is(err, memory.ErrOlder) {
		a.log.Info("the hub sent an older desired state than the device has; it is left aside", "err", err)
		return
	}
	a.post(func() { a.trouble("the desired state is not acted on", err, "generation", d.Generation) })
}

// Store stores a desired state durably, acts on it, and says so to the hub.
// memory.ErrOlder: the device has a newer one of the same hub.
func (a *Agent) Store(d wire.Desired) error {
	d, left := podspec.Sift(d)
	for _, why := range left[:min(len(left), 10)] {
		a.event(corev1.EventTypeWarning, "DesiredStateInvalid", nil, "", "left out of what the hub wants here: %s", why)
	}
	if err := a.remember(d); err != nil {
		return err
	}
	a.post(func() {
		d, a.loop.known = a.c.Memory.Desired() // or what came after it
		a.goBy(d)
	})
	a.told.Lock()
	hub := a.told.hub
	a.told.Unlock()
	if hub != nil {
		hub.DesiredStored()
	}
	return nil
}

// goBy makes the loop go by a desired state.
func (a *Agent) goBy(d wire.Desired) {
	l := &a.loop
	l.desired, l.o.Asked = plan.SplitGrants(d)
	l.o.Node.Generation = d.Generation
	a.judge()
	l.o.HasCome()
}

// remember stores a desired state with what of it the device has granted. Nothing that it waits for
// waits for the loop, which grants more.
func (a *Agent) remember(d wire.Desired) error {
	a.storing.Lock()
	defer a.storing.Unlock()
	was, _ := a.c.Memory.Desired()
	return a.c.Memory.SetDesired(plan.KeepGrants(was, d))
}

// judge rejects the pods of the desired state that are wrong in themselves, also those
// that were not when they were admitted, and ends those that have ended for the hub.
func (a *Agent) judge() {
	l := &a.loop
	for i := range l.desired.Pods {
		pod := &l.desired.Pods[i]
		if plan.IsFinal(pod.Status.Phase) { // the hub remembers what the journal may have lost
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

// Leave stops and removes every workload within its own grace, durably: after a
// restart of the agent it goes on. The list of Pods is empty when all are gone. It is
// for a device whose enrolment has ended; nothing else makes a device stop its
// workloads without its hub. Where that cannot be stored, which is the error, they go all
// the same, and the hub says it again after a restart.
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
		a.post(func() { a.goBy(d) })
	}
	return err
}
