package main

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/web/manual"
)

// The manual tells of every reason that an event, a container that waits and one that has
// ended can have, and of none that no program says any more.
func TestTheManualTellsOfEveryReason(t *testing.T) {
	l := listenTo(t)
	said := l.reasons()
	l.understood(t)
	hold(t, "events", said)
}

func TestTheManualTellsOfEveryCondition(t *testing.T) {
	l := listenTo(t)
	set := l.conditions()
	l.understood(t)
	hold(t, "conditions", set)
}

func TestTheManualTellsOfEveryCauseOfAnIncident(t *testing.T) {
	causes := map[string][]string{}
	for _, c := range diagnose.Causes() {
		causes[string(c)] = []string{"hub/diagnose/rules.go"}
	}
	hold(t, "incidents", causes)
}

func TestTheManualTellsOfEveryKind(t *testing.T) {
	served := map[string][]string{}
	for _, r := range state.Served() {
		served[r.In.GroupVersion.String()+"."+string(r.Kind)] = []string{"hub/state/rows.go or served.go"}
	}
	hold(t, "kinds", served)
}

// understood fails where a value led nowhere, but for where others' words are handed on.
func (l *tongue) understood(t *testing.T) {
	t.Helper()
	for _, at := range l.unknown {
		if file, _, _ := strings.Cut(at, ":"); !slices.Contains(passes, file) {
			t.Errorf("%s: what this can be is not found: write it where it is said, or teach said_test.go to follow it", at)
		}
	}
}

func book(t *testing.T) *manual.Manual {
	t.Helper()
	m, err := manual.Load(os.DirFS("../web/manual"))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// hold compares the entries of a page with what there is.
func hold(t *testing.T, page string, there map[string][]string) {
	t.Helper()
	told := book(t).Page(page).Entries()
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if !slices.Contains(told, name) {
			t.Errorf("web/manual/%s.md does not tell of %s, which is said in %s", page, name, strings.Join(slices.Compact(there[name]), ", "))
		}
	}
	for _, name := range told {
		if there[name] == nil {
			t.Errorf("web/manual/%s.md tells of %s, which there is not", page, name)
		}
	}
	if len(there) < 10 {
		t.Errorf("there are %d: the test does not look", len(there))
	}
}
