package state

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Apply returns the snapshot after the changes, and the effect of each change. It does not alter s.
// Each change gets the next revision, and a new object gets a uid. Removing a missing object does
// nothing.
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
			t.swap(old, nil)
			gone := old.DeepCopyObject().(Object) // watchers see the deletion's own revision
			gone.SetResourceVersion(rev)
			a.Old, a.Change.Object = gone, gone
		} else {
			o := c.Object
			if o.GetUID() == "" {
				o.SetUID(s.uid(t.Revision, key))
				if r := key.Kind.Row(); old == nil && r != nil && r.Default != nil {
					r.Default(o)
				}
			}
			o.SetResourceVersion(rev)
			t.swap(old, o)
			a.New = o
		}
		done = append(done, a)
	}
	return t.Snapshot, done
}

// Load returns the snapshot with stored objects, which keep their revisions and uids.
func Load(s Snapshot, objects []Object, revision uint64) Snapshot {
	l := Loading(s)
	l.Add(objects)
	return l.Loaded(revision)
}

// A Loader is Load for objects that arrive in batches.
type Loader struct {
	t    txn
	uids [][]uidLocation // batches of objects that are not yet in the index of uids, in order of arrival
}

// A uidLocation is an object's uid and location.
type uidLocation struct {
	uid string
	at  location
}

// Loading returns a Loader that starts from a snapshot, which it does not alter.
func Loading(s Snapshot) *Loader { return &Loader{t: txn{Snapshot: s}} }

// Add adds objects. A later object replaces an earlier one with the same key. Objects in key order
// are appended without a search.
func (l *Loader) Add(objects []Object) {
	l.uids = append(l.uids, make([]uidLocation, 0, len(objects)))
	last := len(l.uids) - 1
	for _, o := range objects {
		kind, at := KindOf(o), path(o.GetNamespace(), o.GetName())
		old, _ := l.t.table(kind).Load(at, o)
		if old != nil { // the index may hold the replaced object's uid
			l.indexUIDs()
			l.uids, last = [][]uidLocation{nil}, 0
			l.t.swapUID(old, o, location{kind, at})
		} else if uid := o.GetUID(); uid != "" {
			l.uids[last] = append(l.uids[last], uidLocation{string(uid), location{kind, at}})
		}
		l.t.reindex(kind, at, old, o)
	}
}

// indexUIDs adds the collected uids to their index in order. Sorting them first costs a fraction of
// inserting them at random places.
func (l *Loader) indexUIDs() {
	uids := slices.Concat(l.uids...)
	type place struct { // the first 8 bytes decide almost every comparison
		begins uint64
		i      int
	}
	order := make([]place, len(uids))
	for i, u := range uids {
		var b [8]byte
		copy(b[:], u.uid)
		order[i] = place{binary.BigEndian.Uint64(b[:]), i}
	}
	slices.SortFunc(order, func(a, b place) int {
		if a.begins != b.begins {
			return cmp.Compare(a.begins, b.begins)
		}
		return cmp.Or(strings.Compare(uids[a.i].uid, uids[b.i].uid), cmp.Compare(a.i, b.i))
	})
	for _, p := range order {
		writable(&l.t.byUID, &l.t.own.uid).Load(uids[p.i].uid, uids[p.i].at)
	}
	l.uids = nil
}

// Loaded returns the snapshot as of a revision. The Loader cannot be used again.
func (l *Loader) Loaded(revision uint64) Snapshot {
	l.indexUIDs()
	l.t.Revision = max(revision, l.t.Revision)
	return l.t.Snapshot
}

// uid derives a uid from the hub's identity, a revision and the object's name, so that deciders
// stay deterministic. A hub whose disk was reset to an older image repeats revisions; the name then
// keeps a device from taking a new pod for an old one.
func (s Snapshot) uid(rev uint64, k Key) types.UID {
	return uidOf(s.Salt, strconv.FormatUint(rev, 10), string(k.Kind), k.Namespace, k.Name)
}

func uidOf(words ...string) types.UID {
	h := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	h[6], h[8] = h[6]&0x0f|0x80, h[8]&0x3f|0x80 // RFC 9562, version 8
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16]))
}

// Follow returns the snapshot with another hub's changes: objects with their revisions and uids,
// and deleted keys. It does not know the changes in between.
func (s Snapshot) Follow(objects []Object, gone []Key, revision uint64) Snapshot {
	t := txn{Snapshot: s}
	for _, key := range gone {
		if old := t.Get(key); old != nil {
			t.swap(old, nil)
		}
	}
	for _, o := range objects {
		old := t.Get(KeyOf(o))
		if old != nil && old.GetUID() != o.GetUID() {
			t.swap(old, nil)
			old = nil
		}
		t.swap(old, o)
	}
	t.Revision = max(revision, s.Revision)
	return t.Snapshot
}
