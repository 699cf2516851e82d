package node

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// ApplyProfile decides which labels and taints the nodes have of their board profiles: those that the
// profile names now. What it named before and names no more is taken again, unless somebody has
// changed it since; what somebody has removed or changed stays so until the profile says something
// new of it.
type ApplyProfile struct{}

// Touches says which nodes' profiles may have changed.
func (ApplyProfile) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		if next != nil && (old == nil || old.Labels[fleet.LabelProfile] != next.Labels[fleet.LabelProfile]) {
			return []state.Subject{{Key: c.Key}}
		}
	case state.Records: // of a device that has taken over a Node made by hand
		if c.Old == nil && c.New != nil {
			return []state.Subject{state.About(state.Key{Kind: state.Nodes, Name: c.Key.Name})}
		}
	case state.BoardProfiles:
		return []state.Subject{{Key: c.Key}}
	}
	return nil
}

// Subjects returns all nodes.
func (ApplyProfile) Subjects(s state.Snapshot) []state.Subject { return state.AboutNodes(s) }

// Apart: what a node has of its profile is its own.
func (f ApplyProfile) Sharded(_ state.Snapshot, subjects []state.Subject) state.Decide {
	if !state.OnlyNodes(subjects) {
		return nil
	}
	return f.Decide
}

// Decide gives and takes.
func (ApplyProfile) Decide(s state.Snapshot, subjects []state.Subject, _ time.Time) (plan state.Plan) {
	known, gives := profiles{}, map[*fleet.BoardProfile]*state.ProfileGrants{}
	for _, name := range concerned(s, subjects) {
		have, rec := s.Node(name), s.Record(name)
		if have == nil || rec == nil {
			continue
		}
		p := known.ofNode(s, have).whole
		want, ok := gives[p]
		if !ok {
			want = grantsOf(p)
			gives[p] = want
		}
		was := rec.Granted
		if was != nil && apiequality.Semantic.DeepEqual(was, want) {
			continue // the profile says nothing new of it
		}
		if was == nil {
			was = presentOn(have, want)
		}
		n := state.Fork(have)
		if applyProfile(n, was, want) {
			plan.Do(state.Put(n, fmt.Sprintf("node %s follows its board profile %s", name, have.Labels[fleet.LabelProfile])))
		}
		rec = rec.DeepCopy()
		rec.Granted = want
		plan.Do(state.Put(rec, ""))
	}
	return plan
}

// profileOf is the board profile of a node with what it extends, nil for none.
func profileOf(s state.Snapshot, n *corev1.Node) *fleet.BoardProfile {
	p, _ := s.Get(state.Key{Kind: state.BoardProfiles, Name: n.Labels[fleet.LabelProfile]}).(*fleet.BoardProfile)
	if p == nil {
		return nil
	}
	if whole, err := firmwareconfigs.Effective(p); err == nil {
		return whole
	}
	return p // an overlay that another version of the hub had
}

// profiles are those of the nodes of one snapshot: thousands have the same one.
type profiles map[string]profile

// A profile is one with what it extends, and what of it devices are told. nil: there is none.
type profile struct{ whole, told *fleet.BoardProfile }

// ofNode is profileOf, once for all nodes that have it.
func (p profiles) ofNode(s state.Snapshot, n *corev1.Node) profile {
	name := n.Labels[fleet.LabelProfile]
	known, ok := p[name]
	if !ok {
		if known.whole = profileOf(s, n); known.whole != nil {
			known.told = &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: known.whole.Name}, Spec: known.whole.Spec}
			// What is booted goes another way, signed and in its turn.
			known.told.Spec.Boot, known.told.Spec.Watchdog, known.told.Spec.Health = nil, nil, nil
		}
		p[name] = known
	}
	return known
}

// grantsOf is what a profile gives its nodes.
func grantsOf(p *fleet.BoardProfile) *state.ProfileGrants {
	g := &state.ProfileGrants{}
	if p == nil {
		return g
	}
	for k, v := range p.Spec.Labels {
		if g.Labels == nil {
			g.Labels = map[string]string{}
		}
		g.Labels[fleet.LabelBoardPrefix+k] = v
	}
	g.Taints = slices.Clone(p.Spec.Taints)
	return g
}

// presentOn is what of it a node has.
func presentOn(n *corev1.Node, want *state.ProfileGrants) *state.ProfileGrants {
	have := &state.ProfileGrants{Labels: maps.Clone(want.Labels)}
	maps.DeleteFunc(have.Labels, func(k, v string) bool { return n.Labels[k] != v })
	for _, t := range want.Taints {
		if i := taintOf(n.Spec.Taints, t); i >= 0 && n.Spec.Taints[i].Value == t.Value {
			have.Taints = append(have.Taints, t)
		}
	}
	return have
}

// applyProfile gives a node what is wanted, as far as there is room, and takes what was given and is
// wanted no more, and tells whether that changed it.
func applyProfile(n *corev1.Node, was, want *state.ProfileGrants) (changed bool) {
	for k, v := range was.Labels {
		if _, still := want.Labels[k]; !still && n.Labels[k] == v {
			delete(n.Labels, k)
			changed = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(want.Labels)) {
		v := want.Labels[k]
		had, ours := was.Labels[k]
		now, has := n.Labels[k]
		if ours && (had == v || !has || now != had) || has && now == v || !has && len(n.Labels) >= mostLabels {
			continue // nothing new, or somebody has changed it since
		}
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		n.Labels[k] = v
		changed = true
	}
	for _, t := range was.Taints {
		if i := taintOf(n.Spec.Taints, t); i >= 0 && n.Spec.Taints[i].Value == t.Value && taintOf(want.Taints, t) < 0 {
			n.Spec.Taints = slices.Delete(n.Spec.Taints, i, i+1)
			changed = true
		}
	}
	for _, t := range want.Taints {
		w, i := taintOf(was.Taints, t), taintOf(n.Spec.Taints, t)
		switch {
		case w >= 0 && (was.Taints[w].Value == t.Value || i < 0 || n.Spec.Taints[i].Value != was.Taints[w].Value):
		case i < 0 && len(n.Spec.Taints) >= mostTaints:
		case i < 0:
			n.Spec.Taints = append(n.Spec.Taints, t)
			changed = true
		case w >= 0:
			n.Spec.Taints[i].Value = t.Value
			changed = true
		}
	}
	return changed
}

// taintOf is where the taint of the same key and effect stands, -1 for nowhere.
func taintOf(list []corev1.Taint, t corev1.Taint) int {
	return slices.IndexFunc(list, func(have corev1.Taint) bool { return have.MatchTaint(&t) })
}
