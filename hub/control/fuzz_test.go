package control_test

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"flotilla.dev/hub/state"
)

// FuzzSettle plays random stories and checks the invariants at every moment. The stage compares
// every incremental decision with a decision about everything.
func FuzzSettle(f *testing.F) {
	for seed := range int64(8) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		r := rand.New(rand.NewSource(seed))
		// The address range has only four blocks, so that a larger fleet runs out of them.
		g := newStage(t, decidersWith("10.64.0.0/22", 24)...)
		v := &invariants{t: t, seed: seed, given: map[string]time.Time{}, model: newModel(), bound: map[types.UID]time.Time{}}
		g.watch = v.check
		sites := 1 + r.Intn(3)
		size := 2 + r.Intn(7)
		join := func(i int) {
			delete(g.silent, fmt.Sprint("n-", i))
			g.do("node", []string{fmt.Sprint("n-", i), fmt.Sprint("site=s", i%sites), "cpu=" + fmt.Sprint(1+r.Intn(4))})
		}
		for i := range size {
			join(i)
		}
		node := func() string { return fmt.Sprint("n-", r.Intn(size)) }
		for range 25 {
			switch n := node(); r.Intn(16) {
			case 0, 1, 2:
				g.do("silence", []string{n})
			case 3, 4:
				if g.s.Node(n) != nil {
					g.do("return", []string{n})
				}
			case 5:
				if g.s.Node(n) != nil && !g.silent[n] {
					g.do("unwell", []string{n})
				}
			case 6:
				g.do("deployment", []string{fmt.Sprint("d", r.Intn(2)), fmt.Sprint("replicas=", r.Intn(6)),
					fmt.Sprint("version=", r.Intn(3)), fmt.Sprintf("tolerate=%ds", r.Intn(100)), "cpu=100m"})
			case 7:
				g.do("daemonset", []string{"ds", fmt.Sprint("version=", r.Intn(3))})
			case 8:
				if g.s.Node(n) != nil {
					g.do("taint", []string{n, "mine:" + []string{"NoExecute", "NoSchedule", "PreferNoSchedule"}[r.Intn(3)]})
				}
			case 9:
				if g.s.Node(n) != nil {
					g.do("untaint", []string{n, "mine"})
				}
			case 10:
				if g.s.Node(n) != nil {
					g.do("cordon", []string{n})
				}
			case 11:
				g.do("restart", nil)
			case 12:
				g.do("site", []string{fmt.Sprint("s", r.Intn(sites)), "policy=" + []string{"Evict", "Hold"}[r.Intn(2)]})
			case 13:
				if g.s.Node(n) != nil {
					g.do("delete-node", []string{n})
				}
			case 14:
				if i := r.Intn(size); g.s.Node(fmt.Sprint("n-", i)) == nil {
					join(i)
				}
			default:
				g.do("wait", []string{fmt.Sprintf("%ds", 1+r.Intn(120))})
			}
		}
		g.do("wait", []string{"3m"})
	})
}

// invariants are rules that hold at every moment of every story.
type invariants struct {
	t     *testing.T
	seed  int64
	given map[string]time.Time // by site: when one of its nodes last got NoExecute
	model *model
	bound map[types.UID]time.Time
}

// window returns when a pod must leave a node by the model's arithmetic, from the taints and
// bindings seen so far.
func (v *invariants) window(s state.Snapshot, n *corev1.Node, p *corev1.Pod) window {
	seen := v.model.nodes[n.Name]
	at, ok := v.bound[p.UID]
	if seen == nil || !ok {
		return window{}
	}
	v.model.started = s.Started
	return v.model.window(&modelPod{pod: p, bound: at}, seen)
}

// see stores new taints and bindings.
func (v *invariants) see(s state.Snapshot, now time.Time) {
	for n := range v.model.nodes {
		if s.Node(n) == nil {
			delete(v.model.nodes, n)
		}
	}
	for n := range s.Nodes() {
		if have := v.model.nodes[n.Name]; have != nil && have.node.UID != n.UID {
			delete(v.model.nodes, n.Name)
		}
		v.model.node(n.Name, n, now)
	}
	for p := range s.Pods("") {
		if _, ok := v.bound[p.UID]; !ok && p.Spec.NodeName != "" {
			v.bound[p.UID] = now
		}
	}
}

func (v *invariants) check(s state.Snapshot, made []state.Applied, now time.Time) {
	v.t.Helper()
	v.see(s, now)
	wrong := func(format string, args ...any) {
		v.t.Helper()
		v.t.Fatalf("seed %d, %s: "+format, append([]any{v.seed, now.Sub(storyNoon)}, args...)...)
	}
	dark, counting := 0, 0
	for _, c := range s.Counts() {
		if c.Ready+c.NotReady > 0 {
			counting++
		}
		if c.Full() {
			dark++
		}
	}
	for _, a := range made {
		old, _ := a.Old.(*corev1.Node)
		new, _ := a.New.(*corev1.Node)
		if old == nil || new == nil || state.NoExecuteOf(old) != nil || state.NoExecuteOf(new) == nil {
			continue
		}
		site := state.SiteOf(new)
		if last, ok := v.given[site]; ok && now.Sub(last) < 10*time.Second-time.Millisecond {
			wrong("site %s taints %s only %s after its previous node", site, new.Name, now.Sub(last))
		}
		v.given[site] = now
		if dark == counting {
			wrong("%s gets NoExecute while no site has a ready node", new.Name)
		}
		if st := s.Site(site); st != nil && st.Spec.DisruptionPolicy == "Hold" && s.Count(site).Full() {
			wrong("%s gets NoExecute while its site is on hold", new.Name)
		}
	}
	for n := range s.Nodes() {
		if dark == counting && state.NoExecuteOf(n) != nil {
			wrong("%s keeps its NoExecute taint while no site has a ready node", n.Name)
		}
	}
	for _, a := range made {
		old, _ := a.Old.(*corev1.Pod)
		new, _ := a.New.(*corev1.Pod)
		if old == nil || new == nil || old.Spec.NodeName != "" || new.Spec.NodeName == "" {
			continue
		}
		n := s.Node(new.Spec.NodeName)
		for _, taint := range n.Spec.Taints {
			if taint.Effect == corev1.TaintEffectPreferNoSchedule {
				continue
			}
			tolerated := false
			for _, tol := range new.Spec.Tolerations {
				tolerated = tolerated || tol.ToleratesTaint(klog.Logger{}, &taint, false)
			}
			if !tolerated {
				wrong("%s is bound to %s, whose taint %s it does not tolerate", new.Name, n.Name, taint.ToString())
			}
		}
	}
	for p := range s.Pods("") {
		n := s.Node(p.Spec.NodeName)
		if n == nil || state.Terminated(p) {
			continue
		}
		if w := v.window(s, n, p); p.DeletionTimestamp == nil && !w.hi.IsZero() && now.After(w.hi) {
			wrong("%s stays too long on %s: it had to leave by %s", p.Name, n.Name, w.hi)
		}
	}
	for _, a := range made {
		if a.Change.Reason != "TaintManagerEviction" {
			continue
		}
		p := a.Change.Object.(*corev1.Pod)
		if n := s.Node(p.Spec.NodeName); n != nil {
			if w := v.window(s, n, p); w.lo.IsZero() {
				wrong("%s is evicted from %s, where it may stay", p.Name, n.Name)
			} else if now.Before(w.lo) {
				wrong("%s is evicted from %s early: it may stay until %s", p.Name, n.Name, w.lo)
			}
		}
	}
	for n := range s.Nodes() {
		if !state.HasBlock(n) && s.Len(state.Nodes) <= 4 {
			wrong("%s has no addresses, although there is a block for each node", n.Name)
		}
		for _, b := range state.BlocksOf(n) {
			for _, holders := range s.Overlapping(b) {
				if len(holders) > 1 {
					wrong("%s is given to %s", b, holders)
				}
			}
		}
		if u, a := s.Usage(n.Name), n.Status.Allocatable; u.Requests.Cpu().Cmp(*a.Cpu()) > 0 {
			wrong("the pods on %s request %s cpu, and it has %s", n.Name, u.Requests.Cpu(), a.Cpu())
		}
	}
}
