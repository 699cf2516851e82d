package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/image"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// evictPause lets an eviction take effect before the next one.
const evictPause = 30 * time.Second

// freeTime limits one removal: an engine may hang on a busy mount.
const freeTime = time.Minute

// reclaim frees short resources. For memory and heat it evicts one pod at a time. For disk it
// removes dead containers, then unused images, then evicts pods. Hard thresholds come first and
// evict at once; soft thresholds keep the grace period. If one shortage has no victim, the next
// shortage is tried.
func (a *Agent) reclaim(now time.Time) {
	l := &a.loop
	if l.engine == nil || l.engineErr != nil || !l.everListed || !l.desiredKnown || l.reclaiming || now.Before(l.evictAt) {
		return
	}
	var short []shortage
	for _, r := range []shortage{{l.pressure.Memory.Due, a.evictForMemory}, {l.pressure.Disk.Due, a.freeDisk},
		{l.pressure.Heat.Due, a.evictForHeat}} {
		if r.due != hardware.NotDue {
			short = append(short, r)
		}
	}
	if len(short) == 0 {
		return
	}
	sort.SliceStable(short, func(i, j int) bool { return short[i].due > short[j].due })
	l.reclaiming = true
	a.reclaimFirst(short)
}

// A shortage is a resource below its threshold. done is called in the loop and says whether
// something was freed.
type shortage struct {
	due hardware.Due
	do  func(maxGrace *time.Duration, done func(found bool))
}

// reclaimFirst handles the first shortage for which something can be freed.
func (a *Agent) reclaimFirst(short []shortage) {
	if len(short) == 0 {
		a.loop.reclaiming, a.loop.evictAt = false, time.Now().Add(evictPause)
		return
	}
	maxGrace := new(time.Duration)
	if short[0].due == hardware.SoftDue {
		if maxGrace = nil; a.limits().MaxGrace > 0 {
			limit := a.limits().MaxGrace
			maxGrace = &limit
		}
	}
	short[0].do(maxGrace, func(found bool) {
		if short = short[1:]; found {
			short = nil
		}
		a.reclaimFirst(short)
	})
}

// reportNoVictim reports a shortage for which nothing can be freed.
func (a *Agent) reportNoVictim(what string) {
	if a.loop.mayReport(what) {
		a.event(corev1.EventTypeWarning, "EvictionThresholdMet", nil, "", "%s", what)
	}
}

// reportAgain is the interval at which a lasting problem is reported.
const reportAgain = time.Hour

// mayReport reports whether a message is due, because reportAgain has passed since its last report.
func (l *loop) mayReport(what string) bool {
	now := time.Now()
	if now.Before(l.nextReport[what]) {
		return false
	}
	if l.nextReport == nil {
		l.nextReport = map[string]time.Time{}
	}
	maps.DeleteFunc(l.nextReport, func(_ string, at time.Time) bool { return !now.Before(at) })
	l.nextReport[what] = now.Add(reportAgain)
	return true
}

// trouble logs a lasting error at intervals. A nil error means that it is over.
func (a *Agent) trouble(what string, err error, more ...any) {
	if err == nil {
		delete(a.loop.nextReport, what)
	} else if a.loop.mayReport(what) {
		a.log.Error(what, append(more, "err", err)...)
	}
}

// freeDisk removes dead containers and unused images. If there are none, it evicts a pod. It
// removes only images that the agent pulled, because the device's owner may use the same engine.
func (a *Agent) freeDisk(maxGrace *time.Duration, done func(found bool)) {
	l := &a.loop
	name := corev1.ResourceEphemeralStorage
	if s := l.pressure.Disk.For; s == fleet.SignalNodeFsInodesFree || s == fleet.SignalImageFsInodesFree {
		name = inodes
	}
	dead, needed := a.deadContainers(), a.neededImages()
	e, pods, pulled := l.engine, l.evictable(), a.c.Memory.Pulled()
	running := l.instancesOf(pods)
	a.async(5*time.Minute, func(ctx context.Context) func() {
		var down error
		// try limits one removal to freeTime. It does nothing once the engine is down.
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
		containersRemoved, imagesRemoved := 0, 0
		// images get their own time if the removal of containers hangs
		clearing, cleared := context.WithTimeout(ctx, 2*freeTime)
		for _, id := range dead {
			if try(clearing, func(ctx context.Context) error { return e.Remove(ctx, id) }) == nil {
				containersRemoved++
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
		if errors.Is(err, context.DeadlineExceeded) { // the engine hangs
			down = err
		}
		for _, im := range images {
			if im.InUse || keep[im.ID] || !image.IsPulled(im, pulled) {
				continue
			}
			if try(tidying, func(ctx context.Context) error { return e.RemoveImage(ctx, im.ID) }) == nil {
				imagesRemoved++
				a.images.Removed(im)
			}
		}
		tidied()
		var all []Candidate
		for i, p := range pods {
			if containersRemoved+imagesRemoved == 0 && down == nil { // if only a part could be measured, that part counts
				ctx, cancel := context.WithTimeout(ctx, maxMeasureTime/time.Duration(len(pods)))
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
			if containersRemoved+imagesRemoved > 0 {
				a.event(corev1.EventTypeNormal, "DiskFreed", nil, "",
					"The disk is short of space: removed %d dead containers and %d unused images", containersRemoved, imagesRemoved)
				done(true)
				return
			}
			if down != nil { // the rest is removed when the engine responds again
				done(false)
				return
			}
			v, ok := Victim(all)
			if !ok {
				a.reportNoVictim("The disk is short of space, and this device has neither an unused image that the agent " +
					"pulled nor a pod whose eviction would help")
				done(false)
				return
			}
			a.evict(v.Pod, v.low(name), maxGrace)
			done(true)
		}
	})
}

// deadContainers lists ended containers that are no longer needed.
func (a *Agent) deadContainers() []string {
	l := &a.loop
	var dead []string
	for i, in := range l.o.Containers {
		r := l.o.Pods[in.Place.Pod]
		newest := i == 0 || l.o.Containers[i-1].Place != in.Place
		busy := slices.ContainsFunc(l.o.Busy, func(b plan.RunningStep) bool {
			return b.Step.Place.Pod == in.Place.Pod && !b.Step.Action.RunsBeside()
		})
		over := r != nil && r.Final != nil && !r.SavingFinal
		if (in.State == engine.Exited || in.State == engine.Dead) && !busy && (over || !newest) &&
			!plan.IsShared(l.o.Containers, in) {
			dead = append(dead, in.ID)
		}
	}
	return dead
}

// neededImages are the images of the desired pods.
func (a *Agent) neededImages() map[string]bool {
	l := &a.loop
	needed := map[string]bool{}
	for i := range l.desired.Pods {
		for _, ref := range podspec.Images(&l.desired.Pods[i]) {
			if _, err := reference.ParseDockerRef(ref); err == nil { // an invalid name has no image
				for _, name := range a.c.Policy.Sources(ref, l.desired.Mirrors()) {
					needed[name] = true
				}
			}
		}
	}
	for _, p := range l.preparations {
		for _, name := range a.c.Policy.Sources(p.of.Image, l.desired.Mirrors()) {
			needed[name] = true
		}
	}
	return needed
}
