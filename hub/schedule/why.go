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

// MaxCandidates is how many nodes an explanation looks at closely.
const MaxCandidates = 20

// An Explanation is why no node can have a pod as things are, as data: who shows it finds
// the words. The zero Explanation but for Nodes is that nothing is known against it.
type Explanation struct {
	Nodes int // in the fleet
	// Wrong is what is so on every node alike: a persistent volume claim that is not as it
	// has to be, in Kubernetes' words. Then there is nothing else.
	Wrong      string
	Obstacles  []Obstacle  // the one that the most nodes give first
	Candidates []Candidate // the nodes that come nearest, the best first; MaxCandidates at most
}

// An Obstacle is one objection and how many nodes have it.
type Obstacle struct {
	Objection // of the node that comes nearest
	Nodes     int
	// Node has the most free of what there is too little of, by Free; "": no node has any.
	Node string
	// Others are values that nodes have for the label's key, the most frequent first: at
	// most three.
	Others []string
}

// A Candidate is a node and all that it has against the pod: not the first objection only,
// as in the scheduler's own sentence.
type Candidate struct {
	Node             *corev1.Node
	FreeCPU, FreeMem quantity
	Against          []Objection

	cost  int
	short float64 // the part that is missing of what there is too little of
}

// Why explains why no node can have a pod as things are. It looks at every node, so it is
// for one pod that somebody asks about.
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
	e.Obstacles, e.Candidates = w.told(), w.best
	for i := range e.Candidates {
		t.findWays(&e.Candidates[i])
	}
	return e
}

// A search walks the nodes and keeps the best of those that will not do.
type search struct {
	try
	asks      labelRequirements
	fits      bool
	best      []Candidate
	obstacles map[objectionKey]*Obstacle
	values    []map[string]int // of the keys of labels
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

// compareCandidates orders by how much is to be done, then by how little is missing, then
// by how much is free.
func compareCandidates(a, b Candidate) int {
	return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.short, b.short), b.FreeMem.Cmp(a.FreeMem),
		b.FreeCPU.Cmp(a.FreeCPU), strings.Compare(a.Node.Name, b.Node.Name))
}

// note counts the values that nodes have for the keys of labels.
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

// count adds an objection of n nodes.
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

func (w *search) told() (all []Obstacle) {
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
