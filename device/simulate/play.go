package main

import (
	"context"
	"slices"
	"sort"
	"time"
)

// A step is the start or end of an event.
type step struct {
	at   time.Duration
	ends bool
	event
}

// steps returns a script's steps in order. At the same time, ends come before starts.
func (s *Script) steps() (all []step) {
	for _, e := range s.events {
		all = append(all, step{at: e.at, ends: e.end, event: e})
		if e.length > 0 && (s.loop == 0 || e.at+e.length < s.loop) {
			all = append(all, step{at: e.at + e.length, ends: true, event: e})
		}
	}
	sort.SliceStable(all, func(i, j int) bool {
		return all[i].at < all[j].at || all[i].at == all[j].at && all[i].ends && !all[j].ends
	})
	return all
}

// String returns the step as the log shows it.
func (s step) String() string {
	if s.ends && !s.end {
		return "end " + s.event.String()
	}
	return s.event.String()
}

// play runs a script on the devices until ctx ends.
func (s *Script) play(ctx context.Context, o Options, devices []*device) {
	steps, last := s.steps(), time.Duration(0)
	began := time.Now()
	wait := func(at time.Duration) bool {
		last = at
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Until(began.Add(o.real(at)))):
			return true
		}
	}
	for {
		for _, step := range steps {
			if !wait(step.at) {
				return
			}
			o.Log.Info("script", "at", step.at, "event", step.String())
			step.do(o, devices)
		}
		if s.loop == 0 {
			o.Log.Info("script", "at", last, "event", "the script has ended")
			return
		}
		if !wait(s.loop) {
			return
		}
		o.Log.Info("script", "at", s.loop, "event", "the script starts again")
		for _, d := range devices {
			d.change(func() { d.going = nil })
		}
		began = time.Now()
	}
}

// real converts a duration of the script into real time.
func (o Options) real(d time.Duration) time.Duration {
	if o.Speed > 0 {
		return time.Duration(float64(d) / o.Speed)
	}
	return d
}

// do applies a step to its devices.
func (s step) do(o Options, devices []*device) {
	v := verbs[s.verb]
	h := s.how
	h.down, h.up, h.after = o.real(h.down), o.real(h.up), o.real(h.after)
	for _, word := range s.what {
		names := v.devices(s.event)
		if v.of == "nodes" {
			names, word = []string{word}, ""
		}
		for _, name := range names {
			of, _ := o.targets(name) // Check has reported errors
			for _, n := range of {
				d, g := devices[n-1], activeEvent{line: s.line, verb: s.verb, word: word, how: h}
				switch {
				case s.verb == "return":
					d.end(func(x activeEvent) bool { return slices.Contains(returns, x.verb) })
				case s.ends && s.end:
					d.end(func(x activeEvent) bool { return x.verb == g.verb && x.word == g.word })
				case s.ends:
					d.end(func(x activeEvent) bool { return x.line == g.line })
				case s.verb == "restart":
					d.restart(h.down)
				case s.verb == "update":
					d.update(h.version)
				default:
					d.begin(g)
				}
			}
		}
	}
}
