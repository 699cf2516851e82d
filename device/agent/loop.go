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
	relist      = 60 * time.Second      // look again although no event came
	pingTime    = 10 * time.Second      // between two questions to a silent engine whether it is there
	settle      = 50 * time.Millisecond // events come in bunches
	askTimeout  = 10 * time.Second      // for questions to the engine
	listTimeout = 5 * time.Minute       // for those about all containers, one after the other
	measureTime = 10 * time.Second      // between two looks at memory and disk
	reportTime  = 5 * time.Minute       // between two looks at the hardware
	plugTime    = time.Second           // from news of something plugged in to a look: it comes in pieces
	imagesTime  = 5 * time.Minute       // between two looks at the images
	maxIdle     = 15 * time.Second      // between two turns of the loop
	graceDown   = 30 * time.Second      // an engine that has not answered for so long makes the node not ready
	retryEngine = 2 * time.Second       // between two tries to reach the engine
)

// loop is the state of the loop.
type loop struct {
	ctx     context.Context
	desired wire.Desired
	known   bool // desired is: without it nothing is removed
	o       plan.Observed
	cancels map[flight]context.CancelFunc
	vital   vital // of the newest vitals

	engine     engine.Engine
	info       engine.Info
	engineErr  error
	opening    bool
	openAt     time.Time
	downSince  time.Time // zero: it answers
	listing    bool
	dirty      bool      // something may have changed since the list was asked for
	steps      int       // of the agent that have changed something
	listed     int       // of them, when the newest list was asked for
	settledAt  time.Time // last, or when there was an engine first
	listAt     time.Time
	pinging    bool
	pingAt     time.Time
	seen       bool              // the engine has been listed since the start
	resorted   bool              // see resort
	noting     bool              // the journal is being written, see note
	noteAt     time.Time         // when that is tried again
	granting   bool              // what a pod is granted is being remembered, see grant
	grantAt    time.Time         // when that is tried again
	messages   map[string]string // what containers that have ended said, by id; never changed
	images     []engine.Image
	imagesAt   time.Time
	imaging    bool
	held       []heldStep // steps that failed, held back from being tried again at once
	report     *hardware.Report
	reportAt   time.Time
	looked     bool // the hardware has been asked once, so the boot id is known if it can be
	probing    bool
	stats      hardware.Stats
	statsAt    time.Time
	measuring  bool
	heldP      hardware.Held
	conditions []corev1.NodeCondition
	health     []corev1.NodeCondition
	evictAt    time.Time
	relieving  bool                 // what has to go is being found out
	sayAt      map[string]time.Time // when each is said again, see sayable

	peripherals peripherals
	podTimes    map[types.UID][]corev1.PodCondition
	network     podNetwork
	stopped     chan struct{}           // closed when no container runs, see StopPods
	storing     bool                    // pods are being measured, see checkStorage
	storageAt   map[types.UID]time.Time // when each is next
	dropping    bool                    // volumes are being removed, see dropVolumes
	dropAt      time.Time
}

// A flight is a run, or a postStart hook, that can be cancelled.
type flight struct {
	plan.Place
	hook string // the container whose hook it is; "": a run
}

// flightOf is that of a step which is one.
func flightOf(s plan.Step) flight {
	if s.Action == plan.Hook {
		return flight{s.Place, s.ID}
	}
	return flight{Place: s.Place}
}

type heldStep struct {
	doing plan.Doing
	until time.Time
}

// Run runs the agent until ctx ends. Containers keep running then: an agent that is
// gone is no reason to stop them.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer a.work.Wait()
	defer a.requests.Wait()
	defer close(a.ended)
	defer cancel()
	l := &a.loop
	l.ctx = ctx
	if err := a.disk.Prepare(); err != nil {
		a.log.Error("the directories of pods' volumes could not be made ready", "err", err)
	} else if why := a.disk.NotMounting(); why != "" && a.c.Memory.Dir() != "" { // a simulated device has no volumes
		a.log.Warn("secrets and volumes in memory lie in plain directories, and paths inside of what containers can " +
			"write are not mounted: " + why)
	}
	for _, uid := range a.disk.Pods() {
		r := l.o.RecordOf(uid) // what of them is no longer desired is cleaned away
		for name, attempt := range a.disk.attempts(uid) {
			r.ContainerOf(name).Attempt = attempt
		}
	}
	a.work.Go(a.disk.TidyImages)
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
		next := a.turn(now)
		a.beat.Store(&now)
		timer.Reset(max(min(next.Sub(now), maxIdle), time.Millisecond))
	}
}

// async does what may take long outside the loop; done is called in the loop.
func (a *Agent) async(timeout time.Duration, do func(context.Context) (done func())) {
	ctx := a.loop.ctx
	a.work.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		a.post(do(ctx))
	})
}

// turn does what is due and returns when it wants to be asked again.
func (a *Agent) turn(now time.Time) time.Time {
	l := &a.loop
	next := now.Add(maxIdle)
	at := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	l.held = slices.DeleteFunc(l.held, func(h heldStep) bool {
		if now.Before(h.until) {
			at(h.until)
			return false
		}
		a.free(h.doing)
		l.dirty = true
		return true
	})
	at(a.reach(now))
	at(a.look(now))
	at(a.lookForPeripherals(now))
	if l.report != nil { // before the first step, as containers are told of it
		l.o.Node.Offers = hardware.Resources(l.report.Devices, l.desired.Profile, l.peripherals.connected()...)
		l.o.Node.Allocatable = hardware.NodeStatus(*l.report, a.limits(), hardware.Software{}, l.o.Node.Offers...).Allocatable
	}
	l.o.Stale = l.stale(now)
	if l.seen && l.known && l.looked && !l.o.Stale && l.engineErr == nil {
		l.settledAt = now
		at(a.settle(now))
		at(a.checkNetwork(now))
		a.checkStorage(now)
		a.dropVolumes(now)
		a.leave()
		l.haveStopped()
	}
	if l.seen && !l.known && l.looked && !l.o.Stale && l.engineErr == nil && !l.resorted {
		a.resort()
	}
	if t := l.downSince.Add(graceDown); !l.downSince.IsZero() && t.After(now) {
		at(t)
	}
	a.publish(now)
	if l.looked && (l.seen || l.engineErr != nil) {
		select {
		case <-a.first:
		default:
			close(a.first)
		}
	}
	return next
}

// changed notes that the agent has changed something of its containers itself.
func (l *loop) changed() { l.dirty, l.steps = true, l.steps+1 }

// stale tells whether the list of containers is to be waited for. One from before the agent's own
// last step never does; but where only others change something, as a container that runs out of
// memory twice a second, the newest list does after a while: by the time that a slow engine has
// told of all containers something has changed again.
func (l *loop) stale(now time.Time) bool {
	return (l.dirty || l.listing) && (l.listed != l.steps || now.Before(l.settledAt.Add(maxIdle)))
}

// settle takes steps until there are none that only change what is remembered.
func (a *Agent) settle(now time.Time) time.Time {
	l := &a.loop
	l.o.Count(l.desired.Pods, now)
	for range 10 {
		steps, wake := plan.Steps(l.desired, &l.o, now)
		again := false
		for _, s := range steps {
			switch s.Action {
			case plan.Admit:
				r := l.o.RecordOf(s.Place.Pod)
				r.Admitted, r.Start, r.Counts, r.NUMA, again = true, now, now, s.NUMA, true
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
				if r.Pending == nil || r.Pending.Reason != s.Verdict.Reason {
					a.event(corev1.EventTypeWarning, "Resize"+s.Verdict.Reason, s.Pod, "", "Pod resize %s: %s: %s", s.Verdict.Reason,
						plan.DescribeSizes(s.Pod), s.Verdict.Message)
				}
				r.Pending, again = &s.Verdict, true
			case plan.Cancel:
				for f, cancel := range l.cancels {
					if f.Place == s.Place {
						cancel()
					}
				}
			case plan.Run, plan.Stop, plan.Remove, plan.Clean, plan.Refresh, plan.Probe, plan.Hook, plan.Update:
				if !again { // what was decided before is asked again with the new state
					a.take(s, now)
				}
			}
		}
		if !again {
			a.tellResized()
			a.note(now)
			if wake.IsZero() {
				return now.Add(maxIdle)
			}
			return wake
		}
	}
	a.log.Error("the steps of this device do not settle: this is a mistake in flotilla-device, please report it")
	return now.Add(time.Second)
}

// note journals the pods that have ended for good, so that they stay ended after a
// restart without their containers, and forgets those that the hub has forgotten. A
// card may take minutes to write, or be read-only for weeks: nothing but what is to be
// removed of these pods waits for it, and that for one try.
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
			if r.Cleaned && r.Files == nil {
				delete(l.o.Pods, uid)
				delete(l.podTimes, uid)
			}
			continue
		}
		if l.o.Finished(pod, r) {
			st := plan.PodStatus(pod, r, &l.o, l.info.Name, now)
			plan.MergeConditions(l.podTimes[uid], st.Conditions, now)
			r.Final, r.Noting = &st, true
		}
		if r.Final != nil {
			notes = append(notes, memory.PodNote{UID: uid, Status: *r.Final})
		}
		due = due || r.Noting
	}
	if l.noting || !due || a.c.Memory.Noted(notes) {
		return
	}
	l.noting = true
	a.work.Go(func() {
		err := a.c.Memory.SetNotes(notes)
		a.post(func() { a.noted(notes, err) })
	})
}

// noted takes in whether these notes are in the journal.
func (a *Agent) noted(notes []memory.PodNote, err error) {
	l := &a.loop
	l.noting, l.noteAt = false, time.Time{}
	for _, n := range notes {
		if r := l.o.Pods[n.UID]; r != nil {
			r.Noting = false
		}
	}
	if a.trouble("the journal could not be written", err); err != nil {
		l.noteAt = time.Now().Add(maxIdle)
	}
}
