package state

import (
	"hash/maphash"
	"slices"
)

// A Subject is an object, existing or not, for which a decider is called; without a name, all
// objects of the kind.
type Subject struct {
	Key
	// Part limits the call to one part of the decider's work: a capitalized word that the decider
	// defines, or the name of a node. "": all of it.
	Part string
	// Was is what Touches passes to Decide because the snapshot no longer has it, such as the
	// taints of a deleted node. The subject of an alarm has no Was.
	Was any
}

// About returns the subject of a whole object.
func About(k Key) Subject { return Subject{Key: k} }

// AboutNodes returns all nodes as subjects.
func AboutNodes(s Snapshot) []Subject {
	all := make([]Subject, 0, s.Len(Nodes))
	for n := range s.Nodes() {
		all = append(all, About(Key{Kind: Nodes, Name: n.Name}))
	}
	return all
}

// OnlyNodes tells whether the subjects, which are distinct, are all nodes with the same part. Then
// a decider can be called for any subset.
func OnlyNodes(subjects []Subject) bool {
	for _, q := range subjects {
		if q.Kind != Nodes || q.Name == "" || q.Part != subjects[0].Part || q.Was != nil {
			return false
		}
	}
	return true
}

// Touched returns a decider's distinct subjects for changes, in the order of the changes.
func Touched(touches func(Applied) []Subject, changes []Applied) []Subject {
	if len(changes) == 1 {
		return Distinct(touches(changes[0]))
	}
	var d distinct
	for _, c := range changes {
		d.add(touches(c))
	}
	return d.all
}

// Distinct joins lists of subjects and drops duplicates. A subject with a Was is never a duplicate.
func Distinct(lists ...[]Subject) []Subject {
	var only []Subject
	total := 0
	for _, list := range lists {
		if total += len(list); len(list) > 0 {
			only = list
		}
	}
	if total < 2 {
		return only
	}
	d := distinct{all: make([]Subject, 0, total)}
	for _, list := range lists {
		d.add(list)
	}
	return d.all
}

// distinct is a set of subjects in order.
type distinct struct {
	all  []Subject
	seen map[uint64]int // index in all by hash; after a collision, one of the next hashes
}

// A ref is a subject without Was.
type ref struct {
	Key
	part string
}

var seed = maphash.MakeSeed()

func (d *distinct) add(list []Subject) {
	for _, q := range list {
		if q.Was != nil || !d.has(q) {
			d.all = appendDoubling(d.all, q)
		}
	}
}

// has adds a subject without Was to the set, and tells whether it was there before.
func (d *distinct) has(q Subject) bool {
	for at := maphash.Comparable(seed, ref{q.Key, q.Part}); ; at++ {
		i, taken := d.seen[at]
		if !taken {
			if d.seen == nil {
				d.seen = map[uint64]int{}
			}
			d.seen[at] = len(d.all)
			return false
		}
		if d.all[i].Key == q.Key && d.all[i].Part == q.Part {
			return true
		}
	}
}

// appendDoubling appends to a list that may become long. It doubles the capacity; append would grow
// it by a quarter and copy a long list several times.
func appendDoubling[T any](list []T, item ...T) []T {
	if len(list)+len(item) > cap(list) {
		list = slices.Grow(list, max(len(list), len(item)))
	}
	return append(list, item...)
}
