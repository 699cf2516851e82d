package main

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

// A target is the number of a device of a script.
type target = int

// targets returns the devices, counted from 1, for a word of a script: 3, 4..6, sim-0003, site-02
// or all.
func (o Options) targets(word string) ([]target, error) {
	first, last, many := strings.Cut(word, "..")
	from, err := strconv.Atoi(first)
	to := from
	if many && err == nil {
		to, err = strconv.Atoi(last)
	}
	var out []target
	for n := 1; n <= o.Count; n++ {
		if word == "all" || word == NodeName(o.Prefix, n) || word == SiteName(n, o.Sites) ||
			err == nil && from <= n && n <= to {
			out = append(out, n)
		}
	}
	if err == nil && (from < 1 || to > o.Count || from > to) || len(out) == 0 {
		return nil, fmt.Errorf("%s: there are %s to %s (1..%d) on %s to %s; see --count and --sites",
			word, NodeName(o.Prefix, 1), NodeName(o.Prefix, o.Count), o.Count, SiteName(1, o.Sites), SiteName(o.Sites, o.Sites))
	}
	return out, nil
}

// checkScript checks a script against the devices: they must support it, each end must match an
// event, and no event may start twice on a device, whatever words name the device.
func (o Options) checkScript() (errs []error) {
	if o.Script == nil {
		return nil
	}
	type effectOn struct {
		verb, word string
		device     target
	}
	since := map[effectOn]*event{}
	for i := range o.Script.events {
		e := &o.Script.events[i]
		wrong := func(err error) { errs = append(errs, fmt.Errorf("%s:%d: %w", o.Script.name, e.line, err)) }
		v := verbs[e.verb]
		tells := e.verb != "undervoltage"
		var devices []target
		for _, name := range v.devices(*e) {
			of, err := o.targets(name)
			if err != nil {
				wrong(err)
				tells = true
			}
			for _, n := range of {
				tells = tells || boardOf(n, "").pi()
			}
			devices = append(devices, of...)
		}
		if !tells {
			wrong(fmt.Errorf("%s: only Raspberry Pis report their supply voltage, and these devices include none", e))
		}
		if e.verb == "return" {
			for _, n := range devices {
				for _, verb := range returns {
					delete(since, effectOn{verb, "", n})
				}
			}
		}
		if !v.lasts {
			continue
		}
		words, ended, twice := e.what, false, error(nil)
		if v.of == "nodes" {
			words = []string{""}
		}
		for _, word := range words {
			for _, n := range devices {
				at := effectOn{e.verb, word, n}
				b := since[at]
				goes := b != nil && b.line != e.line && (b.length == 0 || b.at+b.length > e.at)
				if ended = ended || goes; goes && !e.end && twice == nil {
					twice = fmt.Errorf("%s: it has been active for %s since line %d", e, NodeName(o.Prefix, n), b.line)
				}
				if since[at] = e; e.end {
					delete(since, at)
				}
			}
		}
		switch {
		case e.end && !ended && len(devices) > 0:
			wrong(fmt.Errorf("%s: nothing to end: no earlier line starts it", e))
		case twice != nil:
			wrong(twice)
		}
	}
	return errs
}

// returns are the verbs whose events a line with the verb return ends.
var returns = []string{"silence", "flap", "slow"}

// devices returns the words that name an event's devices.
func (v verb) devices(e event) []string {
	switch {
	case v.of == "nodes":
		return e.what
	case len(e.on) > 0:
		return e.on
	}
	return []string{"all"}
}

// Words returns the description of scripts for users.
func Words() string {
	return `  30s    crash till exit=1 after=4s log="no prices"   the pods of workload till crash, now and after each start (oom=true; on=site-02)
  0s     missing example.org/menu:2                   the registry does not have that image (says="..." for another error)
  1m     silence site-02 for=7m                       the line of a site or a node is dead; return site-02 restores it
  2m     flap 3 down=60s up=30s for=6m                the line is cut and restored in turn
  4m     slow 6 rate=2000 latency=900ms               bytes per second, and the latency of one way
  45s    undervoltage 1 for=5m                        too low a supply voltage; Raspberry Pis only
  90s    heat 6 celsius=84                            from 80 °C on the processor is throttled
  150s   disk 7 free=4%                              free disk space; memory 7 free=2% is the same for memory
  6m     restart 1 down=20s                           a power cut and a boot
  7m     update 4 version=0.2.0                      updates the agent; containers keep running
  8m     end crash till                              ends an event; for= ends it after that time
  10m    loop                                         the script starts again

Nodes are 3, 4..6, sim-0003, site-02 or all. Lines are sorted by time, and # begins a comment.
--speed divides every time but latency; the hub's and the agent's own times (grace, toleration, back-off) stay unchanged.`
}
