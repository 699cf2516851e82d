package agent

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/wire"
)

const (
	relist      = 60 * time.Second      // time between two lists without an event of the engine
	pingTime    = 10 * time.Second      // time between two pings of an engine
	settle      = 50 * time.Millisecond // time in which a burst of events is collected
	askTimeout  = 10 * time.Second      // timeout of one call to the engine
	listTimeout = 5 * time.Minute       // timeout of a call about all containers
	measureTime = 10 * time.Second      // time between two measurements of memory and disk
	reportTime  = 5 * time.Minute       // time between two reports of the hardware
	plugTime    = time.Second           // time from a plug event to a new report: a device appears in several parts
	imagesTime  = 5 * time.Minute       // time between two lists of the images
	maxIdle     = 15 * time.Second      // longest time between two cycles of the loop
	graceDown   = 30 * time.Second      // time without a response of the engine until the node is not ready
	retryEngine = 2 * time.Second       // time between two attempts to reach the engine
)

// loop is the state of the loop.
type loop struct {
	ctx          context.Context
	desired      wire.Desired
	desiredKnown bool // desired is known; otherwise the agent removes nothing
	o            plan.Observed
	cancels      map[flight]context.CancelFunc
	vital        vitalSample // sample of the newest vitals

	engine                engine.Engine
	info                  engine.Info
	engineErr             error
	opening               bool
	openAt                time.Time
	downSince             time.Time // zero if the engine responds
	listing               bool
	dirty                 bool      // something may have changed since the list was requested
	steps                 int       // number of the agent's own changes
	listedSteps           int       // value of steps when the newest list was requested
	settledAt             time.Time // time of the last settle, or of the engine's first connection
	listAt                time.Time
	pinging               bool
	pingAt                time.Time
	everListed            bool              // the engine has listed its containers since the agent's start
	startedWithoutDesired bool              // see startWithoutDesired
	savingNotes           bool              // the final statuses are being stored, see note
	noteAt                time.Time         // time of the next attempt
	savingGrant           bool              // a grant is being stored, see grant
	grantAt               time.Time         // time of the next attempt
	messages              map[string]string // termination messages by container id; copied on change
	images                []engine.Image
	imagesAt              time.Time
	preparations          []*preparation
	preparing             bool // an image is being pulled in advance
	listingImages         bool
	heldSteps             []heldStep // failed steps that wait for their next attempt
	report                *hardware.Report
	reportAt              time.Time
	hardwareKnown         bool // the hardware was measured once; the boot id is known if the system has one
	reportingHardware     bool
	stats                 hardware.Stats
	statsAt               time.Time
	measuring             bool
	pressure              hardware.Held
	conditions            []corev1.NodeCondition
	health                []corev1.NodeCondition
	evictAt               time.Time
	reclaiming            bool                 // see reclaim
	nextReport            map[string]time.Time // see mayReport

	peripherals   peripherals
	podConditions map[types.UID][]corev1.PodCondition
	network       podNetwork
	stopped       chan struct{}           // closed when no container runs, see StopPods
	measuringPods bool                    // pods are being measured, see checkStorage
	storageAt     map[types.UID]time.Time // time of each pod's next measurement
	dropping      bool                    // volumes are being removed, see dropVolumes
	dropAt        time.Time
}

// A flight is a run or a postStart hook in progress.
type flight struct {
	plan.Place
	hook string // id of the hook's container; empty: a run
}

// flightOf is the flight of a step.
func flightOf(s plan.Step) flight {
	if s.Action == plan.Hook {
		return flight{s.Place, s.ID}
	}
	return flight{Place: s.Place}
}

type heldStep struct {
	doing plan.RunningStep
	until time.Time
}

// Run runs the agent until ctx ends. The containers keep running after that.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer a.work.Wait()
	defer a.requests.Wait()
	defer close(a.ended)
	defer cancel()
	l := &a.loop
	l.ctx = ctx
	if err := a.disk.Prepare(); err != nil {
		a.log.Error("prepare the directories of pods' volumes", "err", err)
	} else if why := a.disk.NotMounting(); why != "" && a.c.Memory.Dir() != "" { // a simulated device has no volumes
		a.log.Warn("secrets and volumes in memory use plain directories, and subpaths that containers can " +
			"write are not mounted: " + why)
	}
	for _, uid := range a.disk.Pods() {
		r := l.o.RecordOf(uid) // so that the files of undesired pods are removed
		for name, attempt := range a.disk.attempts(uid) {
			r.ContainerOf(name).Attempt = attempt
		}
	}
	a.work.Go(a.disk.RemoveUnusedImages)
	a.watch(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			if l.engine != nil {
				return l.engine.Close()
			}
			return nil
		case f := <-a.inbox:
			f()
			for more := true; more; {
				select {
				case f := <-a.inbox:
					f()
				default:
					more = false
				}
			}
		case <-timer.C:
		}
		now := time.Now()
		next := a.cycle(now)
		a.lastCycle.Store(&now)
		timer.Reset(max(min(next.Sub(now), maxIdle), time.Millisecond))
	}
}

// async runs do in the background. The loop calls the function that do returns.
func (a *Agent) async(timeout time.Duration, do func(context.Context) (done func())) {
	ctx := a.loop.ctx
	a.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		a.post(do(ctx))
	})
}

// cycle does what is due and returns the time of the next cycle.
func (a *Agent) cycle(now time.Time) time.Time {
	l := &a.loop
	next := now.Add(maxIdle)
	at := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	l.heldSteps = slices.DeleteFunc(l.heldSteps, func(h heldStep) bool {
		if now.Before(h.until) {
			at(h.until)
			return false
		}
		a.release(h.doing)
		l.dirty = true
		return true
	})
	at(a.pollEngine(now))
	at(a.measureDue(now))
	at(a.lookForPeripherals(now))
	at(a.prepareImages(now))
	if l.report != nil { // set before the first step, because containers may read these values
		l.o.Node.Offers = hardware.Resources(l.report.Devices, l.desired.Profile, l.peripherals.connected()...)
		l.o.Node.Allocatable = hardware.NodeStatus(*l.report, a.limits(), hardware.Software{}, l.o.Node.Offers...).Allocatable
	}
	l.o.Stale = l.stale(now)
	if l.everListed && l.desiredKnown && l.hardwareKnown && !l.o.Stale && l.engineErr == nil {
		l.settledAt = now
		at(a.settle(now))
		at(a.checkNetwork(now))
		a.checkStorage(now)
		a.dropVolumes(now)
		a.removeNetwork()
		l.signalStopped()
	}
	if l.everListed && !l.desiredKnown && l.hardwareKnown && !l.o.Stale && l.engineErr == nil && !l.startedWithoutDesired {
		a.startWithoutDesired()
	}
	if t := l.downSince.Add(graceDown); !l.downSince.IsZero() && t.After(now) {
		at(t)
	}
	a.publish(now)
	if l.hardwareKnown && (l.everListed || l.engineErr != nil) {
		select {
		case <-a.statusKnown:
		default:
			close(a.statusKnown)
		}
	}
	return next
}

// changed records that the agent has changed containers.
func (l *loop) changed() { l.dirty, l.steps = true, l.steps+1 }

// stale reports whether steps must wait for a newer list of containers. A list from before the
// agent's own last change is always stale. If only other clients change containers, the newest list
// is used after maxIdle: a slow engine may never return a list without a later change.
func (l *loop) stale(now time.Time) bool {
	return (l.dirty || l.listing) && (l.listedSteps != l.steps || now.Before(l.settledAt.Add(maxIdle)))
}

// settle computes steps and applies those that only change the agent's records, until none of them
// is left. Then it starts the other steps.
func (a *Agent) settle(now time.Time) time.Time {
	l := &a.loop
	l.o.SetStarts(l.desired.Pods, now)
	for range 10 {
		steps, wake := plan.Steps(l.desired, &l.o, now)
		again := false
		for _, s := range steps {
			switch s.Action {
			case plan.Admit:
				r := l.o.RecordOf(s.Place.Pod)
				r.Admitted, r.Start, r.MonotonicStart, r.NUMA, again = true, now, now, s.NUMA, true
				a.log.Debug(s.String())
			case plan.Reject:
				r := l.o.RecordOf(s.Place.Pod)
				if r.Start.IsZero() {
					r.Start = now
				}
				r.Verdict, again = &s.Verdict, true
				a.event(corev1.EventTypeWarning, s.Verdict.Reason, s.Pod, "", "%s", s.Verdict.Message)
			case plan.Grant:
				a.grant(s.Pod, now)
			case plan.Defer:
				r := l.o.RecordOf(s.Place.Pod)
				if r.ResizePending == nil || r.ResizePending.Reason != s.Verdict.Reason {
					a.event(corev1.EventTypeWarning, "Resize"+s.Verdict.Reason, s.Pod, "", "Pod resize %s: %s: %s", s.Verdict.Reason,
						plan.DescribeSizes(s.Pod), s.Verdict.Message)
				}
				r.ResizePending, again = &s.Verdict, true
			case plan.Cancel:
				for f, cancel := range l.cancels {
					if f.Place == s.Place {
						cancel()
					}
				}
			case plan.Run, plan.Stop, plan.Remove, plan.Clean, plan.Refresh, plan.Probe, plan.Hook, plan.Update:
				if !again { // a changed record requires a new computation
					a.startStep(s, now)
				}
			}
		}
		if !again {
			a.reportResized()
			a.note(now)
			if wake.IsZero() {
				return now.Add(maxIdle)
			}
			return wake
		}
	}
	a.log.Error("the steps of this device do not settle: please report this bug of flotilla-device")
	return now.Add(time.Second)
}

// note stores the final status of ended pods, so that they stay ended after a restart, and drops
// the notes of pods that the hub has dropped. A card may be slow or read-only: only the removal of
// these pods' containers waits, for one attempt to store.
func (a *Agent) note(now time.Time) {
	l := &a.loop
	wanted := map[string]*corev1.Pod{}
	for i := range l.desired.Pods {
		wanted[string(l.desired.Pods[i].UID)] = &l.desired.Pods[i]
	}
	var notes []memory.PodNote
	due := !now.Before(l.noteAt)
	for uid, r := range l.o.Pods {
		pod := wanted[string(uid)]
		if pod == nil {
			if r.Cleaned && r.LeftFiles == nil {
				delete(l.o.Pods, uid)
				delete(l.podConditions, uid)
			}
			continue
		}
		if l.o.Finished(pod, r) {
			st := plan.PodStatus(pod, r, &l.o, l.info.Name, now)
			plan.MergeConditions(l.podConditions[uid], st.Conditions, now)
			r.Final, r.SavingFinal = &st, true
		}
		if r.Final != nil {
			notes = append(notes, memory.PodNote{UID: uid, Status: *r.Final})
		}
		due = due || r.SavingFinal
	}
	if l.savingNotes || !due || a.c.Memory.Noted(notes) {
		return
	}
	l.savingNotes = true
	a.work.Go(func() {
		err := a.c.Memory.SetNotes(notes)
		a.post(func() { a.noted(notes, err) })
	})
}

// noted records whether the notes were stored.
func (a *Agent) noted(notes []memory.PodNote, err error) {
	l := &a.loop
	l.savingNotes, l.noteAt = false, time.Time{}
	for _, n := range notes {
		if r := l.o.Pods[n.UID]; r != nil {
			r.SavingFinal = false
		}
	}
	if a.trouble("store the final status of pods", err); err != nil {
		l.noteAt = time.Now().Add(maxIdle)
	}
}
