package state

import (
	"hash/maphash"
	"slices"
)

// A Subject is what a decider is asked about: an object, whether or not it is there;
// without a name all of its kind.
type Subject struct {
	Key
	// Part says that only this of the decider's work on it is asked for: a word of the
	// decider's, which begins with a capital, or the name of a node, which cannot. "": all of it.
	Part string
	// Was is what Touches hands over to Decide of what the snapshot does not say any
	// more, such as how a deleted node was tainted. Nil, as in every alarm: nothing.
	Was any
}

// About is the subject that an object as a whole is.
func About(k Key) Subject { return Subject{Key: k} }

// AboutNodes returns the subjects that all nodes are.
func AboutNodes(s Snapshot) []Subject {
	all := make([]Subject, 0, s.Len(Nodes))
	for n := range s.Nodes() {
		all = append(all, About(Key{Kind: Nodes, Name: n.Name}))
	}
	return all
}

// OnlyNodes tells whether subjects of a decider, each of which comes once, are nodes and the same of
// each: then it can be asked about some of them without the others.
func OnlyNodes(subjects []Subject) bool {
	for _, q := range subjects {
		if q.Kind != Nodes || q.Name == "" || q.Part != subjects[0].Part || q.Was != nil {
			return false
		}
	}
	return true
}

// Touched returns what changes mean to a decider: its subjects, each once, in the
// order of the changes.
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

// Distinct joins lists of subjects, the first of those that are alike. What was
// before is handed over as often as it was something else.
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

// distinct are subjects, each once.
type distinct struct {
	all  []Subject
	seen map[uint64]int // by hash, or where that is another's by one of those after it, the place in all
}

// A ref is a subject that hands nothing over.
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

// has tells whether a subject that hands nothing over has come before. If not, it comes now.
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

// appendDoubling appends to a list that may get long: it doubles its room, where append adds a quarter and
// has made five times as much of a long list by the time it is whole.
func appendDoubling[T any](list []T, item ...T) []T {
	if len(list)+len(item) > cap(list) {
		list = slices.Grow(list, max(len(list), len(item)))
	}
	return append(list, item...)
}
