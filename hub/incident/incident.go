// Package incident decides which incidents the fleet has: few causes, each with its consequences. A
// dark site is one incident, however large it is; its nodes, pods and workloads are counts.
//
// The present causes are a pure function of the snapshot. Incident objects store when a cause began
// and what it cost. The decider opens, counts, closes, and after a day removes them. It writes
// counts at most once a second. It changes no other objects and notifies nobody: package notify
// does. Like every decider it is called for changed subjects: a site, a workload, an image, or the
// fleet.
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
	// Kept is how long a closed incident is stored.
	Kept = 24 * time.Hour
	// MostClosed limits the stored closed incidents; the oldest are removed first. MostUntold is
	// the limit for incidents whose end still has to be notified.
	MostClosed, MostUntold = 500, 5000
	// rest is the shortest time between two counts of a subject's incidents.
	rest = time.Second
	// Nodes that fail within gap of the node before, and within span of the first node, are one
	// incident.
	gap, span = 5 * time.Minute, 30 * time.Minute
	// settles is how long an incident is open before anyone is notified, because a site becomes
	// dark node by node, and many incidents end within a moment. returns is how long nobody is
	// notified of an incident that no longer follows from another one.
	settles, returns = 30 * time.Second, time.Minute
	// examples is how many nodes or pods an incident names.
	examples = 10
)

// A Decider opens, counts and closes incidents.
type Decider struct {
	// LeaveBy returns when a pod must leave its node because of the node's taints, by the rule of
	// package eviction. Nil: incidents have no deadlines.
	LeaveBy func(*corev1.Node, *corev1.Pod) (at time.Time, must bool)
}

// Parts of subjects.
const (
	partEvicted = "Evicted" // of a node: one of its pods is being evicted
	// of a node: it was created or deleted, or its readiness or labels have changed, so faults of
	// its pods may count or not
	partReady = "Ready"
	partLeft  = "Left"   // of a workload: it was removed, and its pods have no other owner
	partShort = "Short"  // of a workload: it lacks pods now, or no longer does
	partImage = "Image " // prefix of an image that pods cannot pull
	partTurn  = "Turn"   // of a large workload: its pods may be counted again
)

// isRollout tells whether a kind is a kind of rollouts, which may stop.
func isRollout(k state.Kind) bool { return k == state.FirmwareRollouts || k == state.AgentRollouts }

// Subjects returns all possible subjects of incidents, and the subjects of all incidents.
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
		if !diagnose.IsWork(k) && !isRollout(k) {
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

// subjectOf returns the subject of an incident.
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

// Decide updates the incidents of the subjects.
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

// A pass is one call of Decide.
type pass struct {
	Decider
	s         state.Snapshot
	now       time.Time
	plan      *state.Plan
	open      map[state.Subject][]*fleet.Incident // with the decisions of this pass
	placeless []state.Subject                     // workloads with an open incident of pods without a node
	closed    []*fleet.Incident
	gone      []*fleet.Incident       // incidents that have expired
	evicted   map[string]int32        // number of pods evicted since the last pass, by node
	named     map[string]bool         // names that this pass has given
	turns     map[state.Subject]bool  // large workloads whose count is due
	makers    map[types.UID]state.Key // workloads, by the UID of their pods' controller
	away      map[string][]string     // see awayOf; by selector and affinity
}

// gather returns the subjects in order: the fleet, sites, then subjects whose incidents may follow
// from theirs.
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
		if q := state.About(key); len(p.open[q]) > 0 { // the object had no owner until it was adopted
			add(2, q)
		}
	}
	counts := func(pod *corev1.Pod) bool { // whether the pod counts as missing
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
					add(2, o) // the workload could run on that node
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
		case q.Kind == state.Namespaces: // incidents of the namespace's objects end with it
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

// decide updates the incidents of one subject.
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
	case large(p.s, p.s.Get(q.Key)) && !p.turns[q]: // pods change too often to count at each change
		p.plan.WakeFor(state.Subject{Key: q.Key, Part: partTurn}, p.now.Truncate(rest).Add(rest))
		return
	default:
		f = p.work(q.Key)
	}
	p.settle(q, f)
}

// mustCount tells whether a site has lost pods since the last count. Later passes do not see these
// pods, so this pass counts them.
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

// awaited tells whether somebody was notified of an incident, but not yet of its end.
func awaited(i *fleet.Incident) bool {
	return slices.ContainsFunc(i.Told, func(t fleet.IncidentTold) bool { return t.Closed == nil || len(t.Missed) > 0 })
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
