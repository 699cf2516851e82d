package control

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"flotilla.dev/hub/state"
)

// FuzzAlarms checks that each alarm is due once, at its time and in order, whether it was set by
// set or setAll.
func FuzzAlarms(f *testing.F) {
	f.Add([]byte{0, 1, 5, 0, 2, 3, 3, 2, 4, 1, 7, 2, 9, 1, 0, 3, 9})
	f.Add([]byte{1, 1, 9, 1, 2, 8, 1, 3, 7, 2, 0, 0, 1, 1, 0, 0, 2, 0, 3, 20})
	f.Fuzz(func(t *testing.T, story []byte) {
		var q alarms
		model := map[ref]time.Time{}
		began := time.Unix(1_700_000_000, 0)
		moment := func(b byte) (at time.Time) {
			if b > 0 {
				at = began.Add(time.Duration(b) * time.Second)
			}
			return at
		}
		alarmOf := func(who, when byte) state.Alarm {
			s := state.About(state.Key{Kind: state.Nodes, Name: fmt.Sprint(who % 16)})
			if who%32 > 16 {
				s.Part = "part"
			}
			return state.Alarm{Subject: s, At: moment(when)}
		}
		note := func(a state.Alarm) {
			if r := (ref{a.Subject.Key, a.Subject.Part}); a.At.IsZero() {
				delete(model, r)
			} else {
				model[r] = a.At
			}
		}
		now := began
		due := func(take bool) {
			type rung struct {
				at  time.Time
				who string
			}
			var want, got []rung
			for r, at := range model {
				if !at.After(now) {
					want = append(want, rung{at, r.key.Name + r.part})
				}
			}
			order := func(a, b rung) int {
				if c := a.at.Compare(b.at); c != 0 {
					return c
				}
				return slices.Compare([]byte(a.who), []byte(b.who))
			}
			slices.SortFunc(want, order)
			at := map[string]time.Time{}
			for r, m := range model {
				at[r.key.Name+r.part] = m
			}
			q.peek(now, func(r ref) { got = append(got, rung{at[r.key.Name+r.part], r.key.Name + r.part}) })
			slices.SortFunc(got, order)
			if !slices.Equal(got, want) {
				t.Fatalf("peek returns %v, want %v", got, want)
			}
			if !take {
				return
			}
			last := time.Time{}
			got = nil
			for _, s := range q.due(now) {
				r := ref{s.Key, s.Part}
				if model[r].Before(last) {
					t.Fatalf("%v is due after a later alarm", r)
				}
				last = model[r]
				got = append(got, rung{model[r], r.key.Name + r.part})
				delete(model, r)
			}
			slices.SortFunc(got, order)
			if !slices.Equal(got, want) {
				t.Fatalf("%v are due, want %v", got, want)
			}
		}
		for len(story) > 2 {
			what, a, b := story[0]%4, story[1], story[2]
			story = story[3:]
			switch what {
			case 0:
				q.set(alarmOf(a, b))
				note(alarmOf(a, b))
			case 1:
				var all []state.Alarm
				for i := range a % 40 {
					all = append(all, alarmOf(a+i*b, b*i%60))
				}
				q.setAll(all)
				for _, one := range all {
					note(one)
				}
			default:
				now = now.Add(time.Duration(a%8) * time.Second)
				due(what == 3)
			}
			first := time.Time{}
			for _, at := range model {
				if first.IsZero() || at.Before(first) {
					first = at
				}
			}
			if at, ok := q.first(); ok != (len(model) > 0) || !at.Equal(first) || len(q.of) != len(model) ||
				len(q.queue) != len(model) {
				t.Fatalf("the first alarm is at %v, want %v; there are %d and %d alarms, want %d", at, first, len(q.of),
					len(q.queue), len(model))
			}
		}
	})
}
