package admin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/state"
)

// A span of a timeline: how a node was from one moment to the next.
type span struct {
	Kind     string // ok, bad, unknown, out, or none: it is not known
	Text     string
	From, To string
	For      string
	x, width float64 // of stripWidth
}

// X and Width are where the span is drawn.
func (s span) X() string     { return number(s.x) }
func (s span) Width() string { return number(s.width) }

func number(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") }

// A mark is something that happened at one moment.
type mark struct {
	Text, When string
	x          float64
}

// X is where the mark is drawn, Path its shape.
func (m mark) X() string { return number(m.x) }
func (m mark) Path() string {
	return fmt.Sprintf("M%s 0l4 7h-8z", number(min(max(m.x, 4), stripWidth-4)))
}

// A timeline is what is known of a node's health over a while.
type timeline struct {
	Title   string
	Spans   []span
	Marks   []mark
	Ticks   []string
	Summary string
	Choices []menuItem
	Unknown bool // of some of it nothing is known
}

const (
	stripWidth = 1000.0
	thinnest   = 4.0 // so that it can be seen
)

var spanNames = map[string]string{
	"ok": "Ready", "bad": "Not ready", "unknown": "Unknown: not heard of", "out": "Given up: its pods had to leave", "none": "Not known",
}

// timelineOf draws what the hub has noted of a node's health: every change of its
// condition Ready, and from when to when it was given up. Leases are not kept one by
// one: those that stop coming are a change to Unknown.
func timelineOf(a *ask, n *corev1.Node) timeline {
	length, text, scale := 24*time.Hour, "24 h", "15:04"
	if a.query("span") == "7d" {
		length, text, scale = state.HistoryAge, "7 days", "Mon 02 Jan"
	}
	begin := a.now.Add(-length)
	t := timeline{Title: "The last " + text}
	for _, c := range [][2]string{{"", "24 h"}, {"7d", "7 days"}} {
		href := a.path
		if c[0] != "" {
			href += "?span=" + c[0]
		}
		t.Choices = append(t.Choices, menuItem{Label: c[1], Href: href, Destroy: c[1] == text})
	}
	turns := turnsOf(a.Snapshot, n)
	var ready, known time.Duration
	add := func(kind string, from, to time.Time) {
		if from.Before(begin) {
			from = begin
		}
		if !from.Before(to) {
			return
		}
		x := min(stripWidth*float64(from.Sub(begin))/float64(length), stripWidth-thinnest)
		t.Spans = append(t.Spans, span{
			Kind: kind, Text: spanNames[kind], From: short(from, length), To: short(to, length), For: duration.HumanDuration(to.Sub(from)),
			x: x, width: max(stripWidth*float64(to.Sub(begin))/float64(length)-x, thinnest),
		})
		switch kind {
		case "none":
			t.Unknown = true
		case "ok":
			ready += to.Sub(from)
			fallthrough
		default:
			known += to.Sub(from)
		}
	}
	if len(turns) == 0 {
		add("none", begin, a.now)
	} else {
		add("none", begin, turns[0].At.Time)
	}
	for i, turn := range turns {
		to := a.now
		if i+1 < len(turns) {
			to = turns[i+1].At.Time
		}
		add(turnKind(turn), turn.At.Time, to)
	}
	t.Marks = evictionsFrom(a, n.Name, begin, length)
	for i := range 5 {
		t.Ticks = append(t.Ticks, begin.Add(time.Duration(i)*length/4).UTC().Format(scale))
	}
	t.Ticks[4] = "now"
	if known > 0 {
		t.Summary = fmt.Sprintf("Ready for %s of what is known of the last %s", percent(ready, known), text)
		if !t.Unknown {
			t.Summary = fmt.Sprintf("Ready for %s of the last %s", percent(ready, known), text)
		}
	}
	return t
}

// percent never rounds up to all of it.
func percent(part, whole time.Duration) string {
	if part == whole {
		return "100 %"
	}
	return number(float64(int(1000*float64(part)/float64(whole)))/10) + " %"
}

func turnKind(t state.Turn) string {
	switch {
	case t.Out:
		return "out"
	case t.Ready == corev1.ConditionTrue:
		return "ok"
	case t.Ready == corev1.ConditionFalse:
		return "bad"
	}
	return "unknown"
}

// turnsOf is a node's history with how it is now, which its own condition tells.
func turnsOf(s state.Snapshot, n *corev1.Node) (turns []state.Turn) {
	if rec := s.Record(n.Name); rec != nil {
		turns = slices.Clone(rec.History)
	}
	c := state.NodeCondition(n, corev1.NodeReady)
	if c == nil || state.NeverReported(n) {
		return turns
	}
	add := func(t state.Turn) {
		if k := len(turns); k == 0 || turns[k-1].Ready != t.Ready || turns[k-1].Out != t.Out {
			turns = append(turns, t)
		}
	}
	now := state.Turn{Ready: c.Status}
	now.At.Time = c.LastTransitionTime.Time
	add(now)
	if t := state.NoExecuteOf(n); t != nil && t.TimeAdded != nil {
		now.At.Time, now.Out = t.TimeAdded.Time, true
		add(now)
	}
	slices.SortStableFunc(turns, func(x, y state.Turn) int { return cmp.Compare(x.At.UnixNano(), y.At.UnixNano()) })
	return turns
}

// evictionsFrom are the evictions from a node that events still tell of.
func evictionsFrom(a *ask, node string, begin time.Time, length time.Duration) (marks []mark) {
	for e := range state.Each[*corev1.Event](a.Snapshot, state.Events, "") {
		if e.Reason != "TaintManagerEviction" || !strings.Contains(e.Message, " from "+node+":") {
			continue
		}
		if at := eventTime(e); at.After(begin) {
			marks = append(marks, mark{e.Message, short(at, length), stripWidth * float64(at.Sub(begin)) / float64(length)})
		}
	}
	slices.SortFunc(marks, func(x, y mark) int { return cmp.Or(cmp.Compare(x.x, y.x), cmp.Compare(x.Text, y.Text)) })
	return marks
}

// short writes a moment for a scale of a day or of a week.
func short(t time.Time, scale time.Duration) string {
	if scale > 24*time.Hour {
		return t.UTC().Format("Mon 02 Jan 15:04")
	}
	return t.UTC().Format("15:04:05")
}
