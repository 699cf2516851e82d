package state

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"

	"flotilla.dev/shared/fleet"
)

// A txn is a snapshot whose tables are copied before the first write, so that the original snapshot
// stays as it was.
type txn struct {
	Snapshot
	copied [len(kinds)]bool
	own    struct {
		uid, owned, onNode, usage, repel, lean, rank, inSite, waits, counts, blocks, bare, eventsFrom, drains bool
		claimants, volumesOn                                                                                  bool
	}
}

func (t *txn) table(k Kind) *table[Object] {
	i := k.index()
	if !t.copied[i] {
		t.tables[i], t.copied[i] = t.tables[i].Copy(), true
	}
	return t.tables[i]
}

func writable[V any](p **table[V], done *bool) *table[V] {
	if !*done {
		*p, *done = (*p).Copy(), true
	}
	return *p
}

// swap replaces old by next in its table and in every index; either may be nil. An index entry that
// does not change is not written, so a device's report costs one write however many indexes exist.
func (t *txn) swap(old, next Object) {
	o := next
	if next == nil {
		o = old
	}
	kind, at := KindOf(o), path(o.GetNamespace(), o.GetName())
	if next == nil {
		t.table(kind).Delete(at)
	} else {
		t.table(kind).Set(at, next)
	}
	t.swapUID(old, next, location{kind, at})
	t.reindex(kind, at, old, next)
}

// reindex updates every index except the index of uids after a change of the table.
func (t *txn) reindex(kind Kind, at string, old, next Object) {
	o := next
	if next == nil {
		o = old
	}
	if old != nil && len(old.GetOwnerReferences()) > 0 || next != nil && len(next.GetOwnerReferences()) > 0 {
		t.swapOwners(old, next, "\x00"+string(kind)+"\x00"+at)
	}
	switch o.(type) {
	case *corev1.Pod:
		was, _ := old.(*corev1.Pod)
		is, _ := next.(*corev1.Pod)
		t.swapPod(was, is, at)
		t.swapClaimant(was, is)
	case *corev1.PersistentVolume:
		was, _ := old.(*corev1.PersistentVolume)
		is, _ := next.(*corev1.PersistentVolume)
		t.swapVolume(was, is)
	case *corev1.Node:
		was, _ := old.(*corev1.Node)
		is, _ := next.(*corev1.Node)
		t.swapNode(was, is)
	case *corev1.Event:
		for i, o := range []Object{old, next} {
			if e, ok := o.(*corev1.Event); ok && e.Source.Host != "" {
				key := e.Source.Host + "\x00" + e.LastTimestamp.UTC().Format(time.RFC3339) + "\x00" + at
				if eventsFrom := writable(&t.eventsFrom, &t.own.eventsFrom); i == 1 {
					eventsFrom.Set(key, e)
				} else {
					eventsFrom.Delete(key)
				}
			}
		}
	case *Record:
		was, _ := old.(*Record)
		is, _ := next.(*Record)
		t.swapRecord(was, is, at)
	case *fleet.Site:
		for i, o := range []Object{old, next} {
			if site, ok := o.(*fleet.Site); ok && site.Status.HeldReason == fleet.HeldInMasterDisruption {
				t.all.Master += 2*i - 1
			}
		}
	}
}

// A location is where an object is stored: its table and its path there.
type location struct {
	kind Kind
	path string
}

func (t *txn) swapUID(old, next Object, at location) {
	var was, is types.UID
	if old != nil {
		was = old.GetUID()
	}
	if next != nil {
		is = next.GetUID()
	}
	if was == is {
		return
	}
	if was != "" {
		writable(&t.byUID, &t.own.uid).Delete(string(was))
	}
	if is != "" {
		writable(&t.byUID, &t.own.uid).Set(string(is), at)
	}
}

func (t *txn) swapOwners(old, next Object, at string) {
	if next != nil {
		for _, ref := range next.GetOwnerReferences() {
			writable(&t.owned, &t.own.owned).Set(string(ref.UID)+at, next)
		}
	}
	if old == nil || old == next {
		return
	}
	for _, ref := range old.GetOwnerReferences() {
		key := string(ref.UID) + at
		if have, ok := t.owned.Get(key); ok && have == old {
			writable(&t.owned, &t.own.owned).Delete(key)
		}
	}
}

// podFacts returns the fields of a pod on which the indexes depend.
func podFacts(p *corev1.Pod) (node string, live, repels, leans bool) {
	if p == nil {
		return "", false, false, false
	}
	live = p.Spec.NodeName != "" && !Terminated(p)
	a := p.Spec.Affinity
	if !live || a == nil {
		return p.Spec.NodeName, live, false, false
	}
	near, away := Preferences(p)
	return p.Spec.NodeName, live, a.PodAntiAffinity != nil &&
			len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0,
		len(near)+len(away)+len(RequiredNear(p)) > 0
}

// Preferences returns the preferred pod affinity and anti-affinity terms of a pod.
func Preferences(p *corev1.Pod) (near, away []corev1.WeightedPodAffinityTerm) {
	if a := p.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			near = a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		}
		if a.PodAntiAffinity != nil {
			away = a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		}
	}
	return near, away
}

// RequiredNear returns the required pod affinity terms of a pod.
func RequiredNear(p *corev1.Pod) []corev1.PodAffinityTerm {
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
		return a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	}
	return nil
}

func (t *txn) swapPod(old, next *corev1.Pod, at string) {
	from, wasLive, repelledBefore, leanedBefore := podFacts(old)
	to, isLive, repels, leans := podFacts(next)
	onNode := writable(&t.onNode, &t.own.onNode)
	if old != nil && (next == nil || from != to) {
		onNode.Delete(from + "\x00" + at)
	}
	if next != nil {
		onNode.Set(to+"\x00"+at, next)
	}
	if repels {
		writable(&t.antiAffinity, &t.own.repel).Set(at, next)
	} else if repelledBefore {
		writable(&t.antiAffinity, &t.own.repel).Delete(at)
	}
	if leans {
		writable(&t.affinity, &t.own.lean).Set(at, next)
	} else if leanedBefore {
		writable(&t.affinity, &t.own.lean).Delete(at)
	}
	if wasLive != isLive || wasLive && schedcorev1.PodPriority(old) != schedcorev1.PodPriority(next) {
		if !t.own.rank {
			t.priorities, t.own.rank = t.priorities.Copy(), true
		}
		if wasLive {
			t.rank(schedcorev1.PodPriority(old), -1)
		}
		if isLive {
			t.rank(schedcorev1.PodPriority(next), 1)
		}
	}
	if wasLive && isLive && from == to && sameRequests(old, next) {
		return
	}
	if from != "" && from != to {
		t.recount(from)
	}
	if to != "" {
		t.recount(to)
	}
}

func (t *txn) rank(priority int32, by int) {
	n, _ := t.priorities.Get(priority)
	if n += by; n > 0 {
		t.priorities.Set(priority, n)
	} else {
		t.priorities.Delete(priority)
	}
}

// recount sums the requests of a node's pods. It starts from zero each time, so that the sum cannot
// drift; a node has few pods.
func (t *txn) recount(node string) {
	var u Usage
	for p := range t.PodsOn(node) {
		u.Add(p)
	}
	usage := writable(&t.usage, &t.own.usage)
	if u.Pods > 0 {
		usage.Set(node, &u)
	} else {
		usage.Delete(node)
	}
}

func (t *txn) swapNode(old, next *corev1.Node) {
	was, is := t.siteEntryOf(old), t.siteEntryOf(next)
	if was.site != is.site || (old == nil) != (next == nil) {
		set(writable(&t.inSite, &t.own.inSite), was.site, was.name, old != nil, false)
		set(writable(&t.inSite, &t.own.inSite), is.site, is.name, next != nil, true)
	}
	if was.waits != is.waits {
		set(writable(&t.waits, &t.own.waits), was.waits, was.name, was.waits != "", false)
		set(writable(&t.waits, &t.own.waits), is.waits, is.name, is.waits != "", true)
	}
	if was.site != is.site || was.count != is.count {
		if old != nil {
			t.count(was, -1)
		}
		if next != nil {
			t.count(is, 1)
		}
	}
	t.swapBlocks(old, next)
	if drained, drains := HasDrainAnnotation(old), HasDrainAnnotation(next); drained != drains {
		set(writable(&t.drains, &t.own.drains), "", was.name, drained, false)
		set(writable(&t.drains, &t.own.drains), "", is.name, drains, true)
	}
}

// swapRecord recounts a node whose device has reported for the first time or was removed. The
// record is already swapped in its table.
func (t *txn) swapRecord(old, next *Record, node string) {
	n := t.Node(node)
	if n == nil || hasBooted(old) == hasBooted(next) {
		return
	}
	was, is := siteEntry{site: SiteOf(n)}, siteEntry{site: SiteOf(n)}
	was.count.add(n, reported(n, old))
	is.count.add(n, reported(n, next))
	t.count(was, -1)
	t.count(is, 1)
}

// set adds (in) or removes one entry of an index. Without there it does nothing.
func set(t *table[struct{}], first, name string, there, in bool) {
	switch {
	case !there:
	case in:
		t.Set(first+"\x00"+name, struct{}{})
	default:
		t.Delete(first + "\x00" + name)
	}
}

// A siteEntry is what the indexes of sites store of a node.
type siteEntry struct {
	name, site string
	waits      string // site and moment of failure; "": the node does not wait for a taint
	count      SiteCount
}

func (t *txn) siteEntryOf(n *corev1.Node) (v siteEntry) {
	if n == nil {
		return v
	}
	v.name, v.site = n.Name, SiteOf(n)
	v.count.add(n, HasReported(t.Snapshot, n))
	if v.count.Waiting > 0 {
		v.waits = v.site + "\x00" + failureKey(n)
	}
	return v
}

func (t *txn) count(v siteEntry, sign int) {
	counts := writable(&t.counts, &t.own.counts)
	c := t.Count(v.site)
	t.all.count(c, -1)
	c.Nodes += sign * v.count.Nodes
	c.Ready += sign * v.count.Ready
	c.NotReady += sign * v.count.NotReady
	c.NeverSeen += sign * v.count.NeverSeen
	c.Waiting += sign * v.count.Waiting
	t.all.count(c, 1)
	if c.Nodes > 0 {
		counts.Set(v.site, &c) // a new value, as snapshots share the old one
	} else {
		counts.Delete(v.site)
	}
}

// swapBlocks updates the index of address blocks and the index of nodes without a block.
func (t *txn) swapBlocks(old, next *corev1.Node) {
	if old != nil && next != nil && old.Spec.PodCIDR == next.Spec.PodCIDR &&
		slices.Equal(old.Spec.PodCIDRs, next.Spec.PodCIDRs) &&
		old.CreationTimestamp.Equal(&next.CreationTimestamp) {
		return
	}
	for i, n := range []*corev1.Node{old, next} {
		if n == nil {
			continue
		}
		in := i == 1
		if !HasBlock(n) {
			set(writable(&t.withoutBlock, &t.own.bare), creationKey(n), n.Name, true, in)
		}
		for _, b := range BlocksOf(n) {
			blocks, key := writable(&t.blocks, &t.own.blocks), blockKey(b)
			holders, _ := blocks.Get(key)
			holders = slices.DeleteFunc(slices.Clone(holders), func(name string) bool { return name == n.Name })
			if in {
				holders = append(holders, n.Name)
			}
			if len(holders) > 0 {
				blocks.Set(key, holders)
			} else {
				blocks.Delete(key)
			}
		}
	}
}
