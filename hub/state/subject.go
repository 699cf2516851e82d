package state

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
	seen map[ref]bool
}

// A ref is a subject that hands nothing over.
type ref struct {
	Key
	part string
}

func (d *distinct) add(list []Subject) {
	for _, q := range list {
		if q.Was == nil {
			at := ref{q.Key, q.Part}
			if d.seen[at] {
				continue
			}
			if d.seen == nil {
				d.seen = map[ref]bool{}
			}
			d.seen[at] = true
		}
		d.all = append(d.all, q)
	}
}
