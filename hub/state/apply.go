package state

import (
	"crypto/sha256"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/fleet"
)

// Apply returns the snapshot that results from making the changes to s in
// order, and what each of them did. It does not alter s. Every change gets the
// next revision; an object that has no uid yet gets one. Removing what is not
// there is nothing.
func Apply(s Snapshot, changes []Change) (Snapshot, []Applied) {
	if len(changes) == 0 {
		return s, nil
	}
	t := txn{Snapshot: s}
	done := make([]Applied, 0, len(changes))
	for _, c := range changes {
		key := KeyOf(c.Object)
		old := t.Get(key)
		if c.Delete && old == nil {
			continue
		}
		t.Revision++
		rev := strconv.FormatUint(t.Revision, 10)
		a := Applied{Rev: t.Revision, Key: key, Old: old, Change: c}
		if c.Delete {
			t.unindex(old)
			t.table(key.Kind).Delete(path(key.Namespace, key.Name))
			gone := old.DeepCopyObject().(Object) // watchers see the deletion's own revision
			gone.SetResourceVersion(rev)
			a.Old, a.Change.Object = gone, gone
		} else {
			o := c.Object
			if o.GetUID() == "" {
				o.SetUID(s.uid(t.Revision, key))
			}
			o.SetResourceVersion(rev)
			if old != nil {
				t.unindex(old)
			}
			t.table(key.Kind).Set(path(key.Namespace, key.Name), o)
			t.index(o)
			a.New = o
		}
		done = append(done, a)
	}
	return t.Snapshot, done
}

// Load returns the snapshot with objects as the store remembers them: their
// revisions and uids stand.
func Load(s Snapshot, objects []Object, revision uint64) Snapshot {
	t := txn{Snapshot: s}
	for _, o := range objects {
		k := KeyOf(o)
		t.table(k.Kind).Set(path(k.Namespace, k.Name), o)
		t.index(o)
	}
	t.Revision = max(revision, s.Revision)
	return t.Snapshot
}

// uid derives a uid from the hub's identity, a revision and the object's name, so
// that deciders stay deterministic. The first two are unique, but for a hub whose
// disk was put back to an older image behind its back: it gives out revisions again,
// and a device must not take the new pod for the old one.
func (s Snapshot) uid(rev uint64, k Key) types.UID {
	h := sha256.Sum256([]byte(s.Salt + "\x00" + strconv.FormatUint(rev, 10) + "\x00" + string(k.Kind) + "\x00" + k.Namespace + "\x00" + k.Name))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // RFC 9562, version 8
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]))
}

// A txn is a snapshot whose tables are copied the first time that they are
// written, so that the one it came from stays as it was.
type txn struct {
	Snapshot
	copied [len(kinds)]bool
	own    struct{ uid, owned, onNode, usage, site bool }
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

func (t *txn) index(o Object)   { t.reindex(o, true) }
func (t *txn) unindex(o Object) { t.reindex(o, false) }

func (t *txn) reindex(o Object, in bool) {
	if uid := string(o.GetUID()); uid != "" {
		set(writable(&t.byUID, &t.own.uid), uid, o, in)
	}
	for _, ref := range o.GetOwnerReferences() {
		key := string(ref.UID) + "\x00" + string(KindOf(o)) + "\x00" + path(o.GetNamespace(), o.GetName())
		set(writable(&t.owned, &t.own.owned), key, o, in)
	}
	switch o := o.(type) {
	case *corev1.Pod:
		set(writable(&t.onNode, &t.own.onNode), o.Spec.NodeName+"\x00"+path(o.Namespace, o.Name), o, in)
		if o.Spec.NodeName != "" {
			t.tally(o.Spec.NodeName)
		}
	case *fleet.Site:
		if o.Status.Held == HeldMaster {
			if in {
				t.all.Master++
			} else {
				t.all.Master--
			}
		}
	case *corev1.Node:
		site := SiteOf(o)
		t.copySites()
		set(t.inSite, site+"\x00"+o.Name, o, in)
		if Waits(o) {
			set(t.waits, site+"\x00"+failedAt(o)+"\x00"+o.Name, o, in)
		}
		c, _ := t.counts.Get(site)
		t.all.count(c, -1)
		if in {
			c.count(o, 1)
		} else {
			c.count(o, -1)
		}
		t.all.count(c, 1)
		set(t.counts, site, c, c.Nodes > 0)
	}
}

func (t *txn) copySites() {
	if t.own.site {
		return
	}
	t.own.site = true
	t.inSite, t.waits, t.counts = t.inSite.Copy(), t.waits.Copy(), t.counts.Copy()
}

// tally sums up a node's pods anew: a node has few, and a sum that is never
// taken down again cannot drift.
func (t *txn) tally(node string) {
	var u Usage
	for p := range t.PodsOn(node) {
		u.add(p)
	}
	set(writable(&t.usage, &t.own.usage), node, &u, u.Pods > 0)
}

func set[V any](t *table[V], key string, v V, in bool) {
	if in {
		t.Set(key, v)
	} else {
		t.Delete(key)
	}
}
