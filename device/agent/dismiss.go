package agent

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
