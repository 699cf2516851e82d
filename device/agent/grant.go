package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/plan"
)

const (
	resizeStarted   = "ResizeStarted"
	resizeCompleted = "ResizeCompleted"
	retryResize     = time.Minute // after an engine did not do it
)

// grant remembers that a pod is to have what it asks for, before anything is done about it. Where it cannot, the pod
// goes on asking.
func (a *Agent) grant(pod *corev1.Pod, now time.Time) {
	l := &a.loop
	if l.granting || now.Before(l.grantAt) {
		return
	}
	l.granting = true
	hub, generation := l.desired.Hub, l.desired.Generation
	a.work.Go(func() {
		done, err := a.rememberGrant(pod.UID, hub, generation)
		a.post(func() {
			l.granting, l.grantAt = false, time.Time{}
			if a.trouble("what a pod is granted could not be remembered, so that it is not", err, "pod", pod.UID); err != nil {
				l.grantAt = time.Now().Add(maxIdle)
			}
			if done {
				a.takeGrant(pod)
			}
		})
	})
}

// rememberGrant stores that a pod of a desired state has what it asks for; false: that is no longer what the hub wants.
func (a *Agent) rememberGrant(uid types.UID, hub string, generation int64) (done bool, err error) {
	a.storing.Lock()
	defer a.storing.Unlock()
	d, _ := a.c.Memory.Desired()
	i := slices.IndexFunc(d.Pods, func(p corev1.Pod) bool { return p.UID == uid })
	if i < 0 || d.Hub != hub || d.Generation != generation {
		return false, nil // another desired state is on its way to the loop
	}
	d.Pods = slices.Clone(d.Pods)
	d.Pods[i].Status.ContainerStatuses = nil
	err = a.c.Memory.SetDesired(d)
	return err == nil, err
}

// takeGrant takes in that a pod has what it asked for, unless the loop goes by another desired state meanwhile, which has it too.
func (a *Agent) takeGrant(pod *corev1.Pod) {
	l := &a.loop
	if d, _ := a.c.Memory.Desired(); d.Hub == l.desired.Hub && d.Generation == l.desired.Generation {
		l.desired, l.o.Asked = plan.SplitGrants(d)
	}
	if r := l.o.Pods[pod.UID]; r != nil {
		r.Pending, r.Resizing, r.Volumes = nil, true, -1 // files may tell containers what they have
	}
	a.event(corev1.EventTypeNormal, resizeStarted, pod, "", "Pod resize started: %s", plan.DescribeSizes(pod))
}

// update has the engine hold a container to what its pod was granted. A memory limit below what is used is none that the
// kernel keeps without killing somebody.
func (j job) update(ctx context.Context) error {
	s := j.step
	most := s.Spec.Resources.Limits.Memory().Value()
	if most > 0 && (s.Has.Memory == 0 || s.Limits.Memory < s.Has.Memory) {
		used, err := j.engine.Usage(ctx, s.ID)
		if err != nil {
			return err
		}
		if used.MemoryBytes >= uint64(most) {
			return fmt.Errorf("cannot decrease memory limits: attempting to set container %q memory limit (%d) below current usage (%d)", s.Spec.Name, most, used.MemoryBytes)
		}
	}
	to := plan.SizeOf(s.Pod, s.Spec, j.node)
	to.CPUs = s.Limits.CPUs
	return j.engine.Update(ctx, s.ID, to)
}

// updated takes in how that went.
func (a *Agent) updated(s plan.Step, err error, now time.Time) {
	c := a.loop.o.RecordOf(s.Place.Pod).ContainerOf(s.Place.Container)
	switch {
	case c.ID != s.ID:
	case err == nil:
		c.Limits, c.Unsure, c.Refused = s.Limits, false, nil
	default:
		if c.Refused == nil || c.Refused.Why != err.Error() {
			a.event(corev1.EventTypeWarning, "ResizeError", s.Pod, s.Place.Container, "Pod resize error: %v", err)
		}
		c.Refused = &plan.Refusal{Limits: s.Limits, Until: now.Add(retryResize), Why: err.Error()}
	}
}

// tellResized says of pods that have what they were granted.
func (a *Agent) tellResized() {
	l := &a.loop
	for i := range l.desired.Pods {
		pod := &l.desired.Pods[i]
		if r := l.o.Pods[pod.UID]; r != nil && r.Resizing {
			if busy, _ := plan.Behind(pod, r, l.o.Node); !busy {
				r.Resizing = false
				a.event(corev1.EventTypeNormal, resizeCompleted, pod, "", "Pod resize completed: %s", plan.DescribeSizes(pod))
			}
		}
	}
}
