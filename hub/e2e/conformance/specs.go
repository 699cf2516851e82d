package main

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// unclaimed are the specs that Flotilla does not claim: lines of the beginning of a
// name, a tab, and the reason.
//
//go:embed unclaimed.txt
var unclaimed string

// engines are the beginnings of names of specs that look into containers and are not
// marked [NodeConformance], one a line: simulated devices have no containers. Those with
// a + before them have several pods that speak with each other, which they can on one
// device only: the pods of two have no network in common.
//
//go:embed engines.txt
var engines string

// A lane is a group of specs that share a hub and its devices.
type lane string

const (
	api          lane = "api"           // side by side on simulated devices
	workloads    lane = "workloads"     // one after the other, on simulated devices of their own
	placement    lane = "placement"     // the same: what decides where pods go
	engine       lane = "engine"        // side by side on agents with an engine
	engineOne    lane = "engine-one"    // on one of these agents, afterwards, side by side
	engineSerial lane = "engine-serial" // on the same agents, afterwards, one after the other
	nowhere      lane = "unclaimed"
)

// A spec is one test of the suite.
type spec struct {
	name   string
	reason string // why it is not claimed; "" when it is
	lane   lane
	chosen bool // it is to run

	state string // ginkgo's word: passed, failed, timedout …; "" when it has not run
	why   string // of a failure
	took  time.Duration
}

// sig is the special interest group that the spec belongs to.
func (s *spec) sig() string {
	_, rest, _ := strings.Cut(s.name, "[sig-")
	sig, _, _ := strings.Cut(rest, "]")
	return sig
}

// judge gives each spec its reason, or its lane. A line that is about no spec, and two
// lines about one, are mistakes.
func judge(all []*spec, unclaimed, engines string) error {
	var wrong []error
	for _, line := range lines(unclaimed) {
		name, reason, ok := strings.Cut(line, "\t")
		if reason = strings.TrimSpace(reason); !ok || reason == "" {
			wrong = append(wrong, fmt.Errorf("unclaimed.txt: %q is not a name, a tab and a reason", line))
			continue
		}
		found := false
		for _, s := range all {
			if !strings.HasPrefix(s.name, name) {
				continue
			}
			if s.reason != "" {
				wrong = append(wrong, fmt.Errorf("unclaimed.txt: two lines are about %q: make one more exact", s.name))
			}
			found, s.reason = true, reason
		}
		if !found {
			wrong = append(wrong, fmt.Errorf("unclaimed.txt: no spec begins with %q: remove the line", name))
		}
	}
	looks, speaks := map[*spec]bool{}, map[*spec]bool{}
	for _, name := range lines(engines) {
		name, together := strings.CutPrefix(name, "+")
		found := false
		for _, s := range all {
			if strings.HasPrefix(s.name, name) {
				found, looks[s], speaks[s] = true, true, together
			}
		}
		if !found {
			wrong = append(wrong, fmt.Errorf("engines.txt: no spec begins with %q: remove the line", name))
		}
	}
	for _, s := range all {
		if s.lane = s.track(looks[s]); s.lane == engine && speaks[s] {
			s.lane = engineOne
		}
	}
	return errors.Join(wrong...)
}

// track decides the lane. The suite says itself what must run alone.
func (s *spec) track(looks bool) lane {
	looks = looks || strings.Contains(s.name, "[NodeConformance]")
	alone := strings.Contains(s.name, "[Serial]") || strings.Contains(s.name, "[Disruptive]")
	switch {
	case s.reason != "":
		return nowhere
	case looks && alone:
		return engineSerial
	case looks:
		return engine
	case alone && (s.sig() == "apps" || s.sig() == "api-machinery"):
		return workloads
	case alone:
		return placement
	}
	return api
}

// slow are the specs of api that take more than five seconds, and are not in -quick.
var slow = regexp.MustCompile(
	`issue 500 podspec updates|capture the life of|with terminating scopes|chunks of results|Watchers should observe|support rollover|pods created by rc|have those defaults applied|dependency circle|promptly calculated`)

// quick tells whether a spec is one of those that every change can wait for.
func (s *spec) quick() bool { return s.lane == api && !slow.MatchString(s.name) }

// on tells whether a spec is to be seen on an engine. Podman has what looks into
// containers; the rest has no engine, and is seen once.
func (s *spec) on(o string) bool {
	return o == "docker" || strings.HasPrefix(string(s.lane), string(engine))
}

// lines are those that say something.
func lines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}
