package schedule

import (
	"cmp"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// MaxCandidates is how many nodes an explanation examines closely.
const MaxCandidates = 20

// An Explanation says why no node fits a pod, as data. If only Nodes is set, the reason is not
// known.
type Explanation struct {
	Nodes int // number of nodes in the fleet
	// Wrong is a problem of the pod's volume claims, in Kubernetes' words. It applies to every
	// node, so the other fields are empty.
	Wrong      string
	Obstacles  []Obstacle  // by the number of nodes, highest first
	Candidates []Candidate // the nodes that are closest to fitting, the best first; at most MaxCandidates
}

// An Obstacle is an objection with the number of nodes that have it.
type Obstacle struct {
	Objection // as on the node that is closest to fitting
	Nodes     int
	// Node has the largest Free amount of the scarce resource; "" if no node has any.
	Node string
	// Others are the values of the label's key on other nodes, the most frequent first, at most
	// three.
	Others []string
}

// A Candidate is a node with all its objections to the pod.
type Candidate struct {
	Node             *corev1.Node
	FreeCPU, FreeMem quantity
	Against          []Objection

	cost  int
	short float64 // sum of the missing shares of the scarce resources
}

// Why explains why no node fits a pod. It checks every node, so it is called only for single pods
// on request.
func Why(s state.Snapshot, pod *corev1.Pod, now time.Time) Explanation {
	t := newPass(s, now).try(pod)
	e := Explanation{Nodes: s.Len(state.Nodes)}
	if t.claims.problem != "" {
		e.Wrong = t.claims.problem
		return e
	}
	w := &search{try: t, asks: labelRequirementsOf(pod), obstacles: map[objectionKey]*Obstacle{}}
	if t.only != nil {
		looked := 0
		for name := range t.only {
			if n := s.Node(name); n != nil {
				looked++
				w.look(n)
			}
		}
		if rest := e.Nodes - looked; rest > 0 || looked == 0 {
			w.count(Objection{Reason: NodeName, Where: sorted(t.only)}, "", rest)
		}
	} else {
		for n := range s.Nodes() {
			if w.look(n); w.fits {
				break
			}
		}
	}
	if w.fits {
		return e
	}
	e.Obstacles, e.Candidates = w.sortedObstacles(), w.best
	for i := range e.Candidates {
		t.findWays(&e.Candidates[i])
	}
	return e
}

// A search walks the nodes and keeps the best candidates.
type search struct {
	try
	asks      labelRequirements
	fits      bool
	best      []Candidate
	obstacles map[objectionKey]*Obstacle
	values    []map[string]int // number of nodes by value, for each label key
	buffer    []Objection
}

func (w *search) look(n *corev1.Node) {
	w.buffer = w.objections(w.asks, n, w.buffer[:0])
	w.note(n)
	if len(w.buffer) == 0 {
		w.fits = true
		return
	}
	c := Candidate{Node: n, Against: w.buffer}
	usage := w.withNominated(w.infoOf(n))
	for _, o := range w.buffer {
		w.count(o, n.Name, 1)
		c.cost += reasons[o.Reason].cost
		if o.Reason == InsufficientResource || o.Reason == TooManyPods {
			if o.None {
				c.cost += reasons[VolumeElsewhere].cost
			}
			want, free := o.Want, o.Free
			c.short += 1 - max(0, free.AsApproximateFloat64())/max(want.AsApproximateFloat64(), 1e-9)
		}
	}
	c.FreeCPU, _ = freeOf(n, usage, corev1.ResourceCPU)
	c.FreeMem, _ = freeOf(n, usage, corev1.ResourceMemory)
	at, _ := slices.BinarySearchFunc(w.best, c, compareCandidates)
	if at == MaxCandidates {
		return
	}
	c.Against = slices.Clone(c.Against)
	w.best = slices.Insert(w.best, at, c)
	w.best = w.best[:min(len(w.best), MaxCandidates)]
}

// compareCandidates orders by the effort, then by the missing share, then by the free amount.
func compareCandidates(a, b Candidate) int {
	return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.short, b.short), b.FreeMem.Cmp(a.FreeMem),
		b.FreeCPU.Cmp(a.FreeCPU), strings.Compare(a.Node.Name, b.Node.Name))
}

// note counts a node's values of the label keys.
func (w *search) note(n *corev1.Node) {
	const most = 50
	if w.values == nil {
		w.values = make([]map[string]int, len(w.asks.all))
	}
	for i, l := range w.asks.all {
		v, ok := n.Labels[l.Key]
		if !ok {
			continue
		}
		if w.values[i] == nil {
			w.values[i] = map[string]int{}
		}
		if _, known := w.values[i][v]; known || len(w.values[i]) < most {
			w.values[i][v]++
		}
	}
}

// count adds an objection that n nodes have.
func (w *search) count(o Objection, node string, n int) {
	key := o.key()
	known := w.obstacles[key]
	if known == nil {
		known = &Obstacle{Objection: o}
		w.obstacles[key] = known
	}
	known.Nodes += n
	if o.Reason == InsufficientResource && !o.None && (known.Node == "" || o.Free.Cmp(known.Free) > 0) {
		known.Objection, known.Node = o, node
	}
}

func (w *search) sortedObstacles() (all []Obstacle) {
	for _, o := range w.obstacles {
		if o.Reason == NodeAffinity && o.label > 0 {
			o.Others = frequent(w.values[o.label-1], 3)
		}
		all = append(all, *o)
	}
	sort.Slice(all, func(i, j int) bool {
		a, b := all[i], all[j]
		return cmp.Or(cmp.Compare(b.Nodes, a.Nodes), cmp.Compare(reasons[b.Reason].cost, reasons[a.Reason].cost),
			strings.Compare(a.sortKey(), b.sortKey())) < 0
	})
	return all
}

func frequent(counts map[string]int, most int) (values []string) {
	for v := range counts {
		values = append(values, v)
	}
	slices.SortFunc(values, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), strings.Compare(a, b))
	})
	return values[:min(len(values), most)]
}

func sorted(set map[string]bool) (names []string) {
	for name := range set {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
