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

// ApplyProfile decides which labels and taints nodes have from their board profiles. It removes
// those that the profile no longer names, unless a user has changed them since. A label or taint
// that a user has removed or changed stays so until the profile changes it.
type ApplyProfile struct{}

// Touches returns the nodes whose profiles may have changed.
func (ApplyProfile) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		if next != nil && (old == nil || old.Labels[fleet.LabelProfile] != next.Labels[fleet.LabelProfile]) {
			return []state.Subject{{Key: c.Key}}
		}
	case state.Records: // a device may have taken over a Node that was made by hand
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

// Sharded: a node's labels and taints do not depend on other nodes.
func (f ApplyProfile) Sharded(_ state.Snapshot, subjects []state.Subject) state.Decide {
	if !state.OnlyNodes(subjects) {
		return nil
	}
	return f.Decide
}

// Decide adds and removes labels and taints.
func (ApplyProfile) Decide(s state.Snapshot, subjects []state.Subject, _ time.Time) (plan state.Plan) {
	known, gives := profiles{}, map[*fleet.BoardProfile]*state.ProfileGrants{}
	for _, name := range concerned(s, subjects) {
		have, rec := s.Node(name), s.Record(name)
		if have == nil || rec == nil {
			continue
		}
		p := known.ofNode(s, have).merged
		want, ok := gives[p]
		if !ok {
			want = grantsOf(p)
			gives[p] = want
		}
		was := rec.Granted
		if was != nil && apiequality.Semantic.DeepEqual(was, want) {
			continue // the profile has not changed it
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

// profileOf returns the board profile of a node merged with what it extends, nil for none.
func profileOf(s state.Snapshot, n *corev1.Node) *fleet.BoardProfile {
	p, _ := s.Get(state.Key{Kind: state.BoardProfiles, Name: n.Labels[fleet.LabelProfile]}).(*fleet.BoardProfile)
	if p == nil {
		return nil
	}
	if whole, err := firmwareconfigs.Effective(p); err == nil {
		return whole
	}
	return p // the overlay was made by another version of the hub
}

// profiles caches the profiles of one snapshot, because thousands of nodes have the same profile.
type profiles map[string]profile

// A profile is the merged profile, and the part that devices receive. Both are nil for a node
// without a profile.
type profile struct{ merged, published *fleet.BoardProfile }

// ofNode is profileOf with the cache.
func (p profiles) ofNode(s state.Snapshot, n *corev1.Node) profile {
	name := n.Labels[fleet.LabelProfile]
	known, ok := p[name]
	if !ok {
		if known.merged = profileOf(s, n); known.merged != nil {
			known.published = &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: known.merged.Name},
				Spec: known.merged.Spec}
			// Boot configurations are not in the published part: rollouts publish them, signed.
			known.published.Spec.Boot, known.published.Spec.Watchdog, known.published.Spec.Health = nil, nil, nil
		}
		p[name] = known
	}
	return known
}

// grantsOf returns the labels and taints of a profile.
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

// presentOn returns the part of want that a node has.
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

// applyProfile adds the wanted labels and taints while there is space, and removes those that are
// no longer wanted. It tells whether the node changed.
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
		if ours && (had == v || !has || now != had) || has && now == v || !has && len(n.Labels) >= maxLabels {
			continue // the profile did not set it, or a user has changed it since
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
		case i < 0 && len(n.Spec.Taints) >= maxTaints:
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

// taintOf returns the index of the taint with the same key and effect, or -1.
func taintOf(list []corev1.Taint, t corev1.Taint) int {
	return slices.IndexFunc(list, func(have corev1.Taint) bool { return have.MatchTaint(&t) })
}
