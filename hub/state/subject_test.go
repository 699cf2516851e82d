package state_test

import (
	"fmt"
	"testing"

	"flotilla.dev/hub/state"
)

func subject(name, part string, was any) state.Subject {
	return state.Subject{Key: state.Key{Kind: state.Nodes, Name: name}, Part: part, Was: was}
}

func TestDistinctReturnsEverySubjectOnce(t *testing.T) {
	a, b := subject("a", "", nil), subject("b", "", nil)
	part, was, again := subject("a", "Deadline", nil), subject("a", "", 1), subject("a", "", 2)
	for _, c := range []struct {
		rule  string
		lists [][]state.Subject
		want  []state.Subject
	}{
		{"empty lists have no subjects", [][]state.Subject{nil, {}}, nil},
		{"a single list stays as it is", [][]state.Subject{nil, {a}}, []state.Subject{a}},
		{"the first of equal subjects keeps its place", [][]state.Subject{{b, a}, {a, b}}, []state.Subject{b, a}},
		{"subjects with different parts are different", [][]state.Subject{{a}, {part}}, []state.Subject{a, part}},
		{
			"a subject with Was is never dropped", [][]state.Subject{{a, was}, {was, again}},
			[]state.Subject{a, was, was, again},
		},
	} {
		if got := state.Distinct(c.lists...); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.rule, got, c.want)
		}
	}
}

func TestTouchedKeepsTheOrderOfChanges(t *testing.T) {
	touches := func(c state.Applied) []state.Subject {
		return []state.Subject{subject(c.Key.Name, "", nil), subject("z", "", nil)}
	}
	var changes []state.Applied
	for _, name := range []string{"b", "a", "b"} {
		changes = append(changes, state.Applied{Key: state.Key{Name: name}})
	}
	want := []state.Subject{subject("b", "", nil), subject("z", "", nil), subject("a", "", nil)}
	if got := state.Touched(touches, changes); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}
