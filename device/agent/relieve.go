package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/image"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// evictPause is how long the device waits for an eviction to show before the next.
const evictPause = 30 * time.Second

// freeTime is for the engine to remove one thing: at a mount that is busy it never comes back.
const freeTime = time.Minute

// A Candidate is a pod that could be evicted to free memory or disk.
type Candidate struct {
	Pod     *corev1.Pod
	Usage   int64 // bytes, or inodes
	Request int64
	In      map[string]int64 // of it, what each container uses, where that is known
}

// candidate is a pod that uses so much of a resource.
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

// inodes are no resource that a pod can ask for; the kubelet calls them so.
const inodes corev1.ResourceName = "inodes"

func (c Candidate) low(name corev1.ResourceName) string {
	format := resource.BinarySI
	if name == inodes {
		format = resource.DecimalSI
	}
	said := fmt.Sprintf("The node was low on resource: %s. ", name)
	text := func(n int64) string { return resource.NewQuantity(n, format).String() }
	for _, w := range podspec.Containers(c.Pod) { // the kubelet's words
		request := w.Spec.Resources.Requests[name]
		if use := c.In[w.Spec.Name]; use > request.Value() {
			said += fmt.Sprintf("Container %s was using %s, request is %s, has larger consumption of %s. ",
				w.Spec.Name, text(use), text(request.Value()), name)
		}
	}
	if c.In == nil {
		said += fmt.Sprintf("The pod was using %s, request is %s. ", text(c.Usage), text(c.Request))
	}
	return said
}

// Victim says which pod has to go when memory or disk runs short, as the kubelet does: first
// those that use more than they asked for, the least important first, then by how much more,
// then the youngest. A pod that keeps within its request goes last. Pods that the system
// needs never go. False: there is none.
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

// relieve frees what is short at this very moment: memory by evicting one pod at a
// time; disk by removing dead containers, then unused images, then pods; heat by
// evicting one pod at a time. What is short by a hard threshold comes first, and its
// pods go at once; for a soft one they have their grace. Where nothing can go for it, as
// for memory that is not the pods', what else is short has its turn.
func (a *Agent) relieve(now time.Time) {
	l := &a.loop
	if l.engine == nil || l.engineErr != nil || !l.seen || !l.known || l.relieving || now.Before(l.evictAt) {
		return
	}
	var short []relief
	for _, r := range []relief{{l.heldP.Memory.Due, a.evictForMemory}, {l.heldP.Disk.Due, a.freeDisk},
		{l.heldP.Heat.Due, a.evictForHeat}} {
		if r.due != hardware.NotDue {
			short = append(short, r)
		}
	}
	if len(short) == 0 {
		return
	}
	sort.SliceStable(short, func(i, j int) bool { return short[i].due > short[j].due })
	l.relieving = true
	a.relieveFirst(short)
}

// A relief makes room for one thing; done is called in the loop, and told whether it has found
// something that could go.
type relief struct {
	due hardware.Due
	do  func(within *time.Duration, done func(found bool))
}

// relieveFirst relieves the first that can be.
func (a *Agent) relieveFirst(short []relief) {
	if len(short) == 0 {
		a.loop.relieving, a.loop.evictAt = false, time.Now().Add(evictPause)
		return
	}
	within := new(time.Duration)
	if short[0].due == hardware.SoftDue {
		if within = nil; a.limits().MaxGrace > 0 {
			most := a.limits().MaxGrace
			within = &most
		}
	}
	short[0].do(within, func(found bool) {
		if short = short[1:]; found {
			short = nil
		}
		a.relieveFirst(short)
	})
}

// helpless tells what is short, and that nothing here can go for it.
func (a *Agent) helpless(what string) {
	if a.loop.sayable(what) {
		a.event(corev1.EventTypeWarning, "EvictionThresholdMet", nil, "", "%s", what)
	}
}

// sayAgain is how often something is said that stays so until somebody comes.
const sayAgain = time.Hour

// sayable tells whether something of that kind is to be said now: it has not been for a while.
func (l *loop) sayable(what string) bool {
	now := time.Now()
	if now.Before(l.sayAt[what]) {
		return false
	}
	if l.sayAt == nil {
		l.sayAt = map[string]time.Time{}
	}
	// what it was about may be no more
	maps.DeleteFunc(l.sayAt, func(_ string, at time.Time) bool { return !now.Before(at) })
	l.sayAt[what] = now.Add(sayAgain)
	return true
}

// trouble says in the log what is wrong, now and then while it stays so; nil: nothing is any more.
func (a *Agent) trouble(what string, err error, more ...any) {
	if err == nil {
		delete(a.loop.sayAt, what)
	} else if a.loop.sayable(what) {
		a.log.Error(what, append(more, "err", err)...)
	}
}

// evictForHeat evicts the pod that matters least: which one warms the processor most
// nobody measures, and every pod that goes cools it.
func (a *Agent) evictForHeat(within *time.Duration, done func(found bool)) {
	pods := slices.DeleteFunc(a.loop.living(),
		func(p *corev1.Pod) bool { return podspec.Priority(p) >= podspec.SystemCritical })
	if len(pods) == 0 {
		a.helpless("The processor is too hot, and this device runs no pod whose eviction would help")
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
	a.evict(v, "The node was too hot: "+fleet.SignalTemperature+". ", within)
	done(true)
}

// living are the pods that run and may be evicted.
func (l *loop) living() []*corev1.Pod {
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

func (a *Agent) evictForMemory(within *time.Duration, done func(found bool)) {
	l := &a.loop
	pods, e := l.living(), l.engine
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
		for id, u := range countersOf(ctx, e, ids) { // what cannot be measured cannot be blamed
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
				a.helpless("Memory is short on this device, and it runs no pod whose eviction would help")
				done(false)
				return
			}
			a.evict(v.Pod, v.low(corev1.ResourceMemory), within)
			done(true)
		}
	})
}

// evict ends a pod here, with a grace of so long at most, nil: its own; the hub makes a new one
// elsewhere.
func (a *Agent) evict(pod *corev1.Pod, why string, within *time.Duration) {
	r := a.loop.o.RecordOf(pod.UID)
	if r.Verdict == nil && r.Final == nil {
		r.Verdict, r.Within = &plan.Verdict{Reason: plan.Evicted, Message: why}, within
		a.event(corev1.EventTypeWarning, plan.Evicted, pod, "", "%s", why)
	}
}

// freeDisk removes what nobody needs, and evicts a pod where there is no such thing. Of
// images only those go that we have pulled: the kubelet has an engine for itself.
func (a *Agent) freeDisk(within *time.Duration, done func(found bool)) {
	l := &a.loop
	name := corev1.ResourceEphemeralStorage
	if s := l.heldP.Disk.For; s == fleet.SignalNodeFsInodesFree || s == fleet.SignalImageFsInodesFree {
		name = inodes
	}
	dead, needed := a.deadContainers(), a.neededImages()
	e, pods, pulled := l.engine, l.living(), a.c.Memory.Pulled()
	running := l.instancesOf(pods)
	a.async(5*time.Minute, func(ctx context.Context) func() {
		var down error
		// try gives one thing its time. An engine that has gone says nothing of what it has.
		try := func(ctx context.Context, do func(context.Context) error) error {
			if down != nil {
				return down
			}
			ctx, cancel := context.WithTimeout(ctx, freeTime)
			defer cancel()
			err := do(ctx)
			if errors.Is(err, engine.ErrUnavailable) {
				down = err
			}
			return err
		}
		removed, gone := 0, 0
		clearing, cleared := context.WithTimeout(ctx, 2*freeTime) // the images have their time, however many hang
		for _, id := range dead {
			if try(clearing, func(ctx context.Context) error { return e.Remove(ctx, id) }) == nil {
				removed++
			}
		}
		cleared()
		var keep map[string]bool
		var images []engine.Image
		tidying, tidied := context.WithTimeout(ctx, 2*freeTime)
		err := try(tidying, func(ctx context.Context) (err error) { keep, err = a.images.IDs(ctx, e, needed); return err })
		if err == nil {
			err = try(tidying, func(ctx context.Context) (err error) { images, err = e.Images(ctx); return err })
		}
		if errors.Is(err, context.DeadlineExceeded) { // nor does one that hangs
			down = err
		}
		for _, im := range images {
			if im.InUse || keep[im.ID] || !image.IsPulled(im, pulled) {
				continue
			}
			if try(tidying, func(ctx context.Context) error { return e.RemoveImage(ctx, im.ID) }) == nil {
				gone++
				a.images.Removed(im)
			}
		}
		tidied()
		var all []Candidate
		for i, p := range pods {
			if removed+gone == 0 && down == nil { // what cannot be measured in time counts as far as it was
				ctx, cancel := context.WithTimeout(ctx, storageMost/time.Duration(len(pods)))
				usage := int64(0)
				if name == inodes {
					usage = a.files(ctx, e, p, running[i])
				} else {
					usage = a.measure(ctx, e, p, running[i]).disk
				}
				all = append(all, candidate(p, name, usage))
				cancel()
			}
		}
		return func() {
			l.changed()
			l.imagesAt = time.Time{}
			if removed+gone > 0 {
				a.event(corev1.EventTypeNormal, "DiskFreed", nil, "",
					"The disk is short of space: removed %d dead containers and %d unused images", removed, gone)
				done(true)
				return
			}
			if down != nil { // it is known when it is back whether there is nothing else
				done(false)
				return
			}
			v, ok := Victim(all)
			if !ok {
				a.helpless("The disk is short of space, and there is neither an unused image that this agent has pulled nor a " +
					"pod whose eviction would help")
				done(false)
				return
			}
			a.evict(v.Pod, v.low(name), within)
			done(true)
		}
	})
}

// deadContainers lists ended containers that nothing will look at again.
func (a *Agent) deadContainers() []string {
	l := &a.loop
	var dead []string
	for i, in := range l.o.Containers {
		r := l.o.Pods[in.Place.Pod]
		newest := i == 0 || l.o.Containers[i-1].Place != in.Place
		busy := slices.ContainsFunc(l.o.Busy, func(b plan.Doing) bool {
			return b.Step.Place.Pod == in.Place.Pod && !b.Step.Action.RunsBeside()
		})
		over := r != nil && r.Final != nil && !r.Noting
		if (in.State == engine.Exited || in.State == engine.Dead) && !busy && (over || !newest) &&
			!plan.IsShared(l.o.Containers, in) {
			dead = append(dead, in.ID)
		}
	}
	return dead
}

// neededImages are the images of the pods that should run here.
func (a *Agent) neededImages() map[string]bool {
	l := &a.loop
	needed := map[string]bool{}
	for i := range l.desired.Pods {
		for _, ref := range podspec.Images(&l.desired.Pods[i]) {
			if _, err := reference.ParseDockerRef(ref); err == nil { // else there is none, see bring
				needed[a.c.Policy.ImageOf(ref)] = true
			}
		}
	}
	return needed
}
