// Package incident decides what has happened to the fleet: from all that is not as it should
// be, the few causes, each with what follows from it. A dark site is one incident, whatever
// its size: its nodes, their pods, and the workloads that are short of them are its
// counts.
//
// What is wrong is a pure function of the snapshot. What the snapshot does not say, when it
// began and what it has cost, is remembered in the Incident objects that the decider opens,
// counts, closes, and removes a day later: one row each, written when a count changes, and
// once a second at most. It changes nothing else in the fleet, and tells nobody: package notify
// does, and the page, the API and the metrics show the same objects.
//
// Like every decider it is asked about what has changed: about a site, a workload, an image
// or the fleet, which are what a cause can be in.
package incident

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

const (
	// Kept is how long a closed incident stays.
	Kept = 24 * time.Hour
	// MostClosed is how many of them there are at most: the oldest go. MostUntold is the same where
	// somebody has still to be told that they are over.
	MostClosed, MostUntold = 500, 5000
	// rest is the least time between two counts of what one subject's incidents touch.
	rest = time.Second
	// gap is how much later than the one before it a node of the same incident fails, and
	// span how much later than the first.
	gap, span = 5 * time.Minute, 30 * time.Minute
	// settles is how long an incident must have been open before anybody outside is told: a site goes
	// dark node by node, and much is over in a moment. returns is the same of one whose cause is over.
	settles, returns = 30 * time.Second, time.Minute
	// examples is how many nodes or pods an incident names.
	examples = 10
)

// A Decider opens, counts and closes incidents.
type Decider struct {
	// LeaveBy returns when a pod must leave its node because of the node's taints: package
	// eviction's rule. nil: deadlines are not told.
	LeaveBy func(*corev1.Node, *corev1.Pod) (at time.Time, must bool)
}

// Parts of the work.
const (
	partEvicted = "Evicted" // of a node: a pod of it has been told to leave
	// of a node: it became ready or not ready, has other labels, or has come or gone: its pods'
	// faults count, or not
	partReady = "Ready"
	partLeft  = "Left"   // of a workload: it is gone, and what it has made is nobody's else
	partShort = "Short"  // of a workload: it is short of pods, or not any more
	partImage = "Image " // before an image: pods cannot have it
	partTurn  = "Turn"   // of a large workload: the moment has come to walk its pods
)

// Subjects returns what may be in trouble, and all incidents.
func (Decider) Subjects(s state.Snapshot) (all []state.Subject) {
	all = append(all, theFleet)
	for site := range s.Counts() {
		all = append(all, aboutSite(site))
	}
	for i := range state.Each[*fleet.Incident](s, state.Incidents, "") {
		all = append(all, subjectOf(i), state.About(state.KeyOf(i)))
	}
	for p := range s.Pods("") {
		if f := diagnose.PodItself(p); f.Image != "" {
			all = append(all, aboutImage(f.Image))
		} else if f.Cause != "" {
			all = append(all, state.About(troubled(p)))
		}
	}
	for _, k := range state.Kinds() {
		if !diagnose.IsWork(k) && k != state.FirmwareRollouts {
			continue
		}
		for o := range s.All(k, "") {
			if diagnose.WorkOf(o).Cause != "" {
				all = append(all, state.About(state.KeyOf(o)))
			}
			if large(s, o) {
				all = append(all, state.Subject{Key: state.KeyOf(o), Part: partTurn})
			}
		}
	}
	return state.Distinct(all, nil)
}

// subjectOf returns what an incident is found again by.
func subjectOf(i *fleet.Incident) state.Subject {
	switch a := i.About; a.Kind {
	case diagnose.KindFleet:
		return theFleet
	case diagnose.KindImage:
		return aboutImage(a.Name)
	default:
		return state.About(state.Key{Kind: state.KindNamed(a.Kind), Namespace: a.Namespace, Name: a.Name})
	}
}

// Decide counts the incidents of the subjects anew.
func (d Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	p := &pass{Decider: d, s: s, now: now, plan: &plan, open: map[state.Subject][]*fleet.Incident{},
		evicted: map[string]int32{}, named: map[string]bool{}, turns: map[state.Subject]bool{},
		makers: map[types.UID]state.Key{}, away: map[string][]string{}}
	for i := range state.Each[*fleet.Incident](s, state.Incidents, "") {
		if i.State == fleet.IncidentOpen {
			q := subjectOf(i)
			p.open[q] = append(p.open[q], i)
			if i.Cause == diagnose.CannotBePlaced {
				p.placeless = append(p.placeless, q)
			}
		} else {
			p.closed = append(p.closed, i)
		}
	}
	for _, q := range p.gather(subjects) {
		p.decide(q)
	}
	p.forget()
	return plan
}

// A pass is one look at some subjects.
type pass struct {
	Decider
	s         state.Snapshot
	now       time.Time
	plan      *state.Plan
	open      map[state.Subject][]*fleet.Incident // as they are after what has been decided already
	placeless []state.Subject                     // workloads whose pods found no place before
	closed    []*fleet.Incident
	gone      []*fleet.Incident       // expired
	evicted   map[string]int32        // pods told to leave since the last pass, by node
	named     map[string]bool         // names given in this pass
	turns     map[state.Subject]bool  // large workloads whose turn has come
	makers    map[types.UID]state.Key // workloads, by the uid of what makes their pods
	away      map[string][]string     // incidents, by the selector and the affinity of pods all of whose nodes they have
}

// gather returns what is to be looked at: the fleet, sites, then what may follow from theirs.
func (p *pass) gather(subjects []state.Subject) []state.Subject {
	var rank [4][]state.Subject
	seen := map[state.Subject]bool{}
	add := func(at int, q state.Subject) {
		if q.Was = nil; !seen[q] {
			seen[q] = true
			rank[at] = append(rank[at], q)
		}
	}
	work := func(key state.Key) {
		if q := state.About(p.workloadOf(key)); q.Kind != "" {
			add(2, q)
		}
		if q := state.About(key); len(p.open[q]) > 0 { // it was nobody's until it was adopted
			add(2, q)
		}
	}
	counts := func(pod *corev1.Pod) bool { // where it counts among what its workload is short of
		if n := p.s.Node(pod.Spec.NodeName); n != nil && !diagnose.Ready(n) {
			add(1, aboutSite(state.SiteOf(n)))
		} else if f := diagnose.PodItself(pod); f.Image != "" {
			add(3, aboutImage(f.Image))
		}
		return true
	}
	for _, q := range subjects {
		switch {
		case q.Kind == state.Sites && q.Name == "":
			add(0, q)
		case q.Kind == state.Sites:
			add(1, q)
		case q.Kind == state.Nodes:
			n := p.s.Node(q.Name)
			if q.Part == partReady {
				for _, o := range p.placeless {
					add(2, o) // what could run there, or might have
				}
				for pod := range p.s.PodsOn(q.Name) {
					if f := diagnose.PodItself(pod); f.Image != "" {
						add(3, aboutImage(f.Image))
					} else if f.Cause != "" {
						work(troubled(pod))
					}
				}
			} else if n != nil && !diagnose.Ready(n) {
				add(1, aboutSite(state.SiteOf(n)))
			}
			if q.Part == partEvicted && n != nil {
				p.evicted[q.Name]++
			}
		case q.Kind == state.Namespaces: // it goes, and the trouble in it
			for o := range p.open {
				if o.Namespace == q.Name {
					add(2, o)
				}
			}
		case q.Kind == state.Incidents:
			add(3, q)
		case q.Kind == state.Pods && q.Name == "":
			add(3, q)
		case q.Part == partLeft:
			uid, _ := q.Was.(types.UID)
			for o := range p.s.Dependents(uid) {
				if diagnose.IsWork(state.KindOf(o)) || state.KindOf(o) == state.Pods && o.GetDeletionTimestamp() != nil {
					work(state.KeyOf(o))
				}
			}
			p.podsBelow(uid, 3, counts)
		case q.Part == partShort:
			p.podsOf(q.Key)(counts)
		default:
			work(q.Key)
			if q.Part == partTurn {
				p.turns[state.About(q.Key)] = true
			}
		}
	}
	return slices.Concat(rank[0], rank[1], rank[2], rank[3])
}

// decide looks at one subject.
func (p *pass) decide(q state.Subject) {
	if q.Kind == state.Incidents {
		p.expire(q)
		return
	}
	var soonest time.Time
	for _, i := range p.open[q] {
		if at := i.Counted.Add(rest); at.After(p.now) {
			soonest = earliest(soonest, at)
		}
	}
	if !soonest.IsZero() && !p.mustCount(q) {
		p.plan.WakeFor(q, soonest)
		return
	}
	var f findings
	switch {
	case q == theFleet:
		f = p.fleet()
	case q.Kind == state.Sites:
		f = p.site(q.Name)
	case q.Kind == state.Pods && q.Name == "":
		f = p.image(q.Part[len(partImage):])
	case large(p.s, p.s.Get(q.Key)) && !p.turns[q]: // however much happens to its pods
		p.plan.WakeFor(state.Subject{Key: q.Key, Part: partTurn}, p.now.Truncate(rest).Add(rest))
		return
	default:
		f = p.work(q.Key)
	}
	p.settle(q, f)
}

// mustCount tells whether a site has lost pods since it was counted: those are counted in
// the pass that hears of them, or never.
func (p *pass) mustCount(q state.Subject) bool {
	if q.Kind != state.Sites || q.Name == "" {
		return false
	}
	for node := range p.evicted {
		if n := p.s.Node(node); n != nil && state.SiteOf(n) == q.Name {
			return true
		}
	}
	return false
}

// awaited tells whether somebody who was told of an incident has still to be told that it is over.
func awaited(i *fleet.Incident) bool {
	return slices.ContainsFunc(i.Told, func(t fleet.IncidentTold) bool { return t.Closed == nil || len(t.Missed) > 0 })
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
