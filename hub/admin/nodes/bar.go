package nodes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
)

const (
	barHours = 24
	barStep  = 4 // drawing units of an hour
)

// A bar is a node's or a site's state in each of the last 24 hours. Bars are comparable.
type bar struct {
	Said    string // in words
	Telling bool   // there was trouble before the current hour
	Again   bool   // that trouble ended before the present trouble began
	Paths   [len(barKinds)]string
}

// barKinds are the CSS classes of an hour, the worst last; the timeline has the same. An hour gets its
// worst class.
var barKinds = [...]string{"none", "ok", "off", "bad", "unknown", "out"}

func barRank(kind string) int { return max(slices.Index(barKinds[:], kind), 0) }

// hours is a node's state in each hour up to the current one, and how long it was ready and known.
type hours struct {
	worst        [barHours]int
	ready, known time.Duration
	first        time.Time // the first known moment; zero: none
}

// beginOf returns the beginning of the first hour.
func beginOf(now time.Time) time.Time {
	return now.Truncate(time.Hour).Add(-(barHours - 1) * time.Hour)
}

func hoursOf(a *frame.Request, n *corev1.Node) (h hours) {
	begin := beginOf(a.Now)
	for _, s := range stretches(turnsOf(a.Snapshot, n), a.Pauses, begin, a.Now) {
		from, to := format.Later(s.from, begin), format.Earlier(s.to, a.Now)
		if !from.Before(to) {
			continue
		}
		switch kind := barRank(s.kind); s.kind {
		case "ok":
			h.ready += to.Sub(from)
			fallthrough
		case "bad", "unknown", "out":
			h.known += to.Sub(from)
			if h.first.IsZero() {
				h.first = from
			}
			fallthrough
		default:
			for i := int(from.Sub(begin) / time.Hour); i < barHours &&
				begin.Add(time.Duration(i)*time.Hour).Before(to); i++ {
				h.worst[i] = max(h.worst[i], kind)
			}
		}
	}
	return h
}

// barOf draws the last day of a node.
func barOf(a *frame.Request, n *corev1.Node) bar {
	h := hoursOf(a, n)
	return drawBar(h.worst, saidOfHours(a, h, 1))
}

// saidOfHours says how long nodes were ready, and of how much known time: a young hub knows less
// than a day.
func saidOfHours(a *frame.Request, h hours, nodes int) string {
	if h.known < time.Minute {
		return "Last 24 hours: not known"
	}
	when := "Last 24 hours"
	if h.first.After(beginOf(a.Now)) {
		when = "In the " + format.Duration(a.Now.Sub(h.first)) + " known"
	}
	if nodes > 1 {
		when += ", " + strconv.Itoa(nodes) + " nodes"
	}
	return when + ": ready for " + percent(h.ready.Truncate(time.Minute), h.known.Truncate(time.Minute))
}

// drawBar makes a path for each kind. Consecutive hours are one line; its dashes are the hours.
func drawBar(worst [barHours]int, said string) (b bar) {
	b.Said = said
	b.Telling = slices.Max(worst[:barHours-1]) > barRank("off")
	now := barHours
	for now > 0 && worst[now-1] > barRank("off") {
		now--
	}
	b.Again = now > 0 && slices.Max(worst[:now]) > barRank("off")
	var paths [len(barKinds)]strings.Builder
	for i := 0; i < barHours; {
		end := i + 1
		for end < barHours && worst[end] == worst[i] {
			end++
		}
		fmt.Fprintf(&paths[worst[i]], "M%d 8h%d", barStep*i, barStep*(end-i))
		i = end
	}
	for i := range paths {
		b.Paths[i] = paths[i].String()
	}
	return b
}

// A barPath draws all hours of one kind.
type barPath struct{ Class, D string }

// Drawn returns the paths that are not empty.
func (b bar) Drawn() (all []barPath) {
	for i, d := range b.Paths {
		if d != "" {
			all = append(all, barPath{barKinds[i], d})
		}
	}
	return all
}

// siteBar draws a site's last day: how many of its nodes were not ready at the worst moment of each
// hour.
func siteBar(a *frame.Request, site string) bar {
	var all hours
	var bad [barHours]int
	var seen [barHours]int
	nodes := 0
	for n := range a.NodesIn(site) {
		h := hoursOf(a, n)
		nodes++
		all.ready, all.known = all.ready+h.ready, all.known+h.known
		if !h.first.IsZero() && (all.first.IsZero() || h.first.Before(all.first)) {
			all.first = h.first
		}
		for i, kind := range h.worst {
			if kind != barRank("none") && kind != barRank("off") {
				seen[i]++
			}
			if kind > barRank("off") {
				bad[i]++
			}
			if kind == barRank("off") {
				all.worst[i] = kind
			}
		}
	}
	for i := range all.worst {
		switch {
		case seen[i] == 0: // kind none or off
		case bad[i] == 0:
			all.worst[i] = max(all.worst[i], barRank("ok"))
		case bad[i] < seen[i]:
			all.worst[i] = barRank("bad")
		default:
			all.worst[i] = barRank("unknown")
		}
	}
	return drawBar(all.worst, saidOfHours(a, all, nodes))
}
