package main

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// unclaimed are the specs that Flotilla does not claim to pass. Each line has the beginning of a
// name, a tab, and the reason.
//
//go:embed unclaimed.txt
var unclaimed string

// engines lists specs that need real containers but are not marked [NodeConformance]: one beginning
// of a name per line. A + marks specs whose pods communicate: they run on a single device, because
// two devices have no common network.
//
//go:embed engines.txt
var engines string

// A lane is a group of specs that share a hub and its devices.
type lane string

const (
	api          lane = "api"           // parallel specs on simulated devices
	workloads    lane = "workloads"     // serial specs on other simulated devices
	placement    lane = "placement"     // serial specs of scheduling
	engine       lane = "engine"        // parallel specs on agents with an engine
	engineOne    lane = "engine-one"    // after the lane engine: parallel specs on one of its agents
	engineSerial lane = "engine-serial" // after engineOne: serial specs on both agents
	nowhere      lane = "unclaimed"
)

// A spec is one test of the suite.
type spec struct {
	name   string
	reason string // why the spec is not claimed; "" if it is claimed
	lane   lane
	chosen bool // whether the command line chooses the spec

	state string // ginkgo's state: passed, failed, timedout …; "" if the spec did not run
	why   string // message of a failure
	took  time.Duration
}

// sig returns the spec's special interest group.
func (s *spec) sig() string {
	_, rest, _ := strings.Cut(s.name, "[sig-")
	sig, _, _ := strings.Cut(rest, "]")
	return sig
}

// judge assigns a reason or a lane to each spec. Lines without a spec, and specs with two lines,
// are errors.
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
				wrong = append(wrong, fmt.Errorf("unclaimed.txt: two lines match %q; make one more exact", s.name))
			}
			found, s.reason = true, reason
		}
		if !found {
			wrong = append(wrong, fmt.Errorf("unclaimed.txt: no spec begins with %q; remove the line", name))
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
			wrong = append(wrong, fmt.Errorf("engines.txt: no spec begins with %q; remove the line", name))
		}
	}
	for _, s := range all {
		if s.lane = s.track(looks[s]); s.lane == engine && speaks[s] {
			s.lane = engineOne
		}
	}
	return errors.Join(wrong...)
}

// track returns the spec's lane. The suite marks specs that must run alone.
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

// slow matches specs of the lane api that take more than five seconds. -quick leaves them out.
var slow = regexp.MustCompile(
	`issue 500 podspec updates|capture the life of|with terminating scopes|chunks of results|Watchers should observe|support rollover|pods created by rc|have those defaults applied|dependency circle|promptly calculated`)

// quick reports whether a spec is fast enough for every change.
func (s *spec) quick() bool { return s.lane == api && !slow.MatchString(s.name) }

// on reports whether a spec runs with an engine. With Podman only specs that need containers run,
// because the others do not use the engine.
func (s *spec) on(o string) bool {
	return o == "docker" || strings.HasPrefix(string(s.lane), string(engine))
}

// lines returns the lines of a text without empty lines and comments.
func lines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}
