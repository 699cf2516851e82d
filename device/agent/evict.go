package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// A Candidate is a pod that could be evicted to free memory or disk.
type Candidate struct {
	Pod     *corev1.Pod
	Usage   int64 // in bytes, or a number of inodes
	Request int64
	In      map[string]int64 // usage of each container, if known
}

// candidate is a pod with its usage and request of a resource.
func candidate(pod *corev1.Pod, name corev1.ResourceName, usage int64) Candidate {
	c := Candidate{Pod: pod, Usage: usage}
	for _, w := range podspec.Containers(pod) {
		if w.Kind == podspec.KindApp || podspec.IsSidecar(w) {
			q := w.Spec.Resources.Requests[name]
			c.Request += q.Value()
		}
	}
	return c
}

// inodes is the name of a resource that pods cannot request; the name is the kubelet's.
const inodes corev1.ResourceName = "inodes"

func (c Candidate) low(name corev1.ResourceName) string {
	format := resource.BinarySI
	if name == inodes {
		format = resource.DecimalSI
	}
	message := fmt.Sprintf("The node was low on resource: %s. ", name)
	text := func(n int64) string { return resource.NewQuantity(n, format).String() }
	for _, w := range podspec.Containers(c.Pod) { // the kubelet's message
		request := w.Spec.Resources.Requests[name]
		if use := c.In[w.Spec.Name]; use > request.Value() {
			message += fmt.Sprintf("Container %s was using %s, request is %s, has larger consumption of %s. ",
				w.Spec.Name, text(use), text(request.Value()), name)
		}
	}
	if c.In == nil {
		message += fmt.Sprintf("The pod was using %s, request is %s. ", text(c.Usage), text(c.Request))
	}
	return message
}

// Victim returns the pod to evict when memory or disk is short, in the kubelet's order: usage above
// the request, low priority, largest excess, youngest. It never returns a system-critical pod, and
// returns false if there is no candidate.
func Victim(all []Candidate) (Candidate, bool) {
	all = slices.DeleteFunc(slices.Clone(all),
		func(c Candidate) bool { return podspec.Priority(c.Pod) >= podspec.SystemCritical })
	if len(all) == 0 {
		return Candidate{}, false
	}
	over := func(c Candidate) int {
		if c.Usage > c.Request {
			return 0
		}
		return 1
	}
	return slices.MinFunc(all, func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(over(a), over(b)), cmp.Compare(podspec.Priority(a.Pod), podspec.Priority(b.Pod)),
			cmp.Compare(b.Usage-b.Request, a.Usage-a.Request), b.Pod.CreationTimestamp.Compare(a.Pod.CreationTimestamp.Time),
			cmp.Compare(a.Pod.UID, b.Pod.UID))
	}), true
}

// evictForHeat evicts the pod with the lowest priority: the heat of a pod cannot be measured, and
// each eviction cools the processor.
func (a *Agent) evictForHeat(maxGrace *time.Duration, done func(found bool)) {
	pods := slices.DeleteFunc(a.loop.evictable(),
		func(p *corev1.Pod) bool { return podspec.Priority(p) >= podspec.SystemCritical })
	if len(pods) == 0 {
		a.reportNoVictim("The processor is too hot, and this device runs no pod whose eviction would help")
		done(false)
		return
	}
	rank := func(p *corev1.Pod) int {
		if podspec.IsBestEffort(p) {
			return 0
		}
		return 1
	}
	v := slices.MinFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(podspec.Priority(a), podspec.Priority(b)),
			b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(string(a.UID), string(b.UID)))
	})
	a.evict(v, "The node was too hot: "+fleet.SignalTemperature+". ", maxGrace)
	done(true)
}

// evictable are the running pods that may be evicted.
func (l *loop) evictable() []*corev1.Pod {
	var out []*corev1.Pod
	for i := range l.desired.Pods {
		pod := &l.desired.Pods[i]
		r := l.o.Pods[pod.UID]
		if pod.DeletionTimestamp == nil && r != nil && r.Admitted && r.Verdict == nil && r.Final == nil &&
			plan.HasRunning(r) {
			out = append(out, pod)
		}
	}
	return out
}

func (a *Agent) evictForMemory(maxGrace *time.Duration, done func(found bool)) {
	l := &a.loop
	pods, e := l.evictable(), l.engine
	var ids []string
	of := map[string]plan.Place{}
	for _, in := range l.o.Containers {
		if in.State == engine.Running {
			ids, of[in.ID] = append(ids, in.ID), in.Place
		}
	}
	a.async(askTimeout, func(ctx context.Context) func() {
		use := map[types.UID]int64{}
		each := map[types.UID]map[string]int64{}
		for id, u := range countersOf(ctx, e, ids) { // a container that could not be measured counts as 0
			at := of[id]
			if each[at.Pod] == nil {
				each[at.Pod] = map[string]int64{}
			}
			use[at.Pod] += int64(u.MemoryBytes)
			each[at.Pod][at.Container] += int64(u.MemoryBytes)
		}
		return func() {
			var all []Candidate
			for _, p := range pods {
				if use[p.UID] > 0 {
					c := candidate(p, corev1.ResourceMemory, use[p.UID])
					c.In = each[p.UID]
					all = append(all, c)
				}
			}
			v, ok := Victim(all)
			if !ok {
				a.reportNoVictim("Memory is short on this device, and it runs no pod whose eviction would help")
				done(false)
				return
			}
			a.evict(v.Pod, v.low(corev1.ResourceMemory), maxGrace)
			done(true)
		}
	})
}

// evict ends a pod on this device with a grace period of at most maxGrace; nil means the pod's own.
// The hub creates a replacement on another node.
func (a *Agent) evict(pod *corev1.Pod, why string, maxGrace *time.Duration) {
	r := a.loop.o.RecordOf(pod.UID)
	if r.Verdict == nil && r.Final == nil {
		r.Verdict, r.MaxGrace = &plan.Verdict{Reason: plan.Evicted, Message: why}, maxGrace
		a.event(corev1.EventTypeWarning, plan.Evicted, pod, "", "%s", why)
	}
}
