package nodes

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// A span of a timeline: how a node was from one moment to the next.
type span struct {
	Kind     string // ok, bad, unknown, out (pods had to leave), off (the hub did not run), or none: not known
	Text     string
	From, To string
	For      string
	x, width float64 // percent
}

// X and Width are the place of the span in the drawing.
func (s span) X() string { return percents(s.x) }

func (s span) Width() string { return percents(s.width) }

func number(f float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0") }

// percents makes places relative, so that the strip can have any width.
func percents(f float64) string { return fmt.Sprintf("%.2f%%", f) }

// Y and Height make the states distinct without colours: the worse, the higher.
func (s span) Y() int { return stripHeight - s.Height() }

func (s span) Height() int {
	switch s.Kind {
	case "none":
		return 4
	case "ok":
		return 16
	case "out":
		return 32
	case "off":
		return stripHeight
	}
	return 26
}

// A mark is something that happened at one moment.
type mark struct {
	Text, When string
	x          float64
}

// X is the place of the mark, kept inside the edges.
func (m mark) X() string { return percents(min(max(m.x, 1), 99)) }

// A timeline is what is known of a node's health over a while.
type timeline struct {
	Title   string
	Spans   []span
	Marks   []mark
	Ticks   []string
	Summary string
	Choices []frame.MenuItem
	Unknown bool // part of the time is not known
	Off     bool // during a part of the time the hub did not run
}

// noticed is the shortest pause of the hub in which it can have missed something: devices renew
// their leases not more often.
const noticed = 10 * time.Second

const (
	stripWidth  = 100.0 // percent
	stripHeight = 40
	thinnest    = 0.8 // the least visible width
)

var spanNames = map[string]string{
	"ok": "Ready", "bad": "Not ready", "unknown": "Unknown: not heard of", "out": "Tainted: its pods had to leave",
	"none": "Not known",
	"off":  "The hub was not running: not known",
}

// A lookback is how far back timeline and charts look.
type lookback struct {
	name, text string
	length     time.Duration
	scale      string // time format of the ticks
}

var lookbacks = []lookback{
	{"1h", "1 h", time.Hour, "15:04"}, {"6h", "6 h", 6 * time.Hour, "15:04"}, {"24h", "24 h", 24 * time.Hour, "15:04"},
	{"7d", "7 days", 7 * 24 * time.Hour, "Mon 02 Jan"}, {"30d", "30 days", state.HistoryAge, "Mon 02 Jan"},
}

// lookbackOf returns the requested window. By default it is the shortest window that shows all known
// time, and a day at most.
func lookbackOf(a *frame.Request, known time.Time) lookback {
	for i, w := range lookbacks {
		if asked := a.Query("span"); asked == w.name || asked == "" && (i == 2 || !known.Before(a.Now.Add(-w.length))) {
			return w
		}
	}
	return lookbacks[2]
}

// timelineOf draws a node's history: each change of its condition Ready, and when it was given up.
// Single leases are not kept; missing leases appear as a change to Unknown.
func timelineOf(a *frame.Request, n *corev1.Node) timeline {
	turns := turnsOf(a.Snapshot, n)
	first := a.Now.Add(-24 * time.Hour)
	if len(turns) > 0 {
		first = turns[0].At.Time
	}
	w := lookbackOf(a, first)
	length, text, scale := w.length, w.text, w.scale
	begin := a.Now.Add(-length)
	t := timeline{Title: "The last " + text}
	for _, c := range lookbacks {
		t.Choices = append(t.Choices, frame.MenuItem{Label: c.text, Href: a.Path + "?span=" + c.name, Destroy: c == w})
	}
	var ready, known time.Duration
	for _, s := range stretches(turns, a.Pauses, begin, a.Now) {
		from, to := s.from, s.to
		if from.Before(begin) {
			from = begin
		}
		if !from.Before(to) {
			continue
		}
		x := min(stripWidth*float64(from.Sub(begin))/float64(length), stripWidth-thinnest)
		t.Spans = append(t.Spans, span{
			Kind: s.kind, Text: spanNames[s.kind], From: short(from, length), To: short(to, length),
			For: duration.HumanDuration(to.Sub(from)),
			x:   x, width: max(stripWidth*float64(to.Sub(begin))/float64(length)-x, thinnest),
		})
		switch s.kind {
		case "none":
			t.Unknown = true
		case "off":
			t.Off = true
		case "ok":
			ready += to.Sub(from)
			fallthrough
		default:
			known += to.Sub(from)
		}
	}
	t.Marks = evictionsFrom(a, n.Name, begin, length)
	for i := range 5 {
		t.Ticks = append(t.Ticks, begin.Add(time.Duration(i)*length/4).UTC().Format(scale))
	}
	t.Ticks[4] = "now"
	if known > 0 {
		t.Summary = fmt.Sprintf("In the %s known: ready for %s", format.Duration(known), percent(ready, known))
		if !t.Unknown && !t.Off {
			t.Summary = fmt.Sprintf("Ready for %s of the last %s", percent(ready, known), text)
		}
	}
	return t
}

// A stretch is a time in which a node had one state.
type stretch struct {
	kind     string
	from, to time.Time
}

// stretches turns a node's changes into stretches until now. While the hub did not run, the node's
// state is not known.
func stretches(turns []state.HealthChange, pauses []store.Pause, begin, now time.Time) (all []stretch) {
	first := now
	if len(turns) > 0 {
		first = turns[0].At.Time
	}
	all = append(all, stretch{"none", begin, first})
	for i, turn := range turns {
		to := now
		if i+1 < len(turns) {
			to = turns[i+1].At.Time
		}
		all = append(all, stretch{turnKind(turn), turn.At.Time, to})
	}
	for _, p := range pauses {
		if p.To.Sub(p.From) < noticed || p.To.Before(begin) {
			continue
		}
		rest := make([]stretch, 0, len(all)+2)
		for _, s := range all {
			if s.from.Before(p.From) {
				rest = append(rest, stretch{s.kind, s.from, format.Earlier(s.to, p.From)})
			}
			if s.to.After(p.To) {
				rest = append(rest, stretch{s.kind, format.Later(s.from, p.To), s.to})
			}
		}
		all = append(rest, stretch{"off", p.From, p.To})
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].from.Compare(all[j].from) < 0 })
	return all
}

// StateAt is how a node was at a moment: ok, bad, unknown, out (its pods had to leave), off (the hub
// did not run), or none: it is not known.
func StateAt(a *frame.Request, n *corev1.Node, at time.Time) string {
	for _, p := range a.Pauses {
		if p.To.Sub(p.From) >= noticed && p.From.Before(at) && p.To.After(at) {
			return "off"
		}
	}
	kind := "none"
	for _, turn := range turnsOf(a.Snapshot, n) {
		if turn.At.After(at) {
			break
		}
		kind = turnKind(turn)
	}
	return kind
}

// percent never rounds up to 100 %.
func percent(part, whole time.Duration) string {
	if part == whole {
		return "100 %"
	}
	return number(float64(int(1000*float64(part)/float64(whole)))/10) + " %"
}

func turnKind(t state.HealthChange) string {
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

// turnsOf returns a node's history, and its present state from its conditions.
func turnsOf(s state.Snapshot, n *corev1.Node) (turns []state.HealthChange) {
	if rec := s.Record(n.Name); rec != nil {
		turns = slices.Clone(rec.History)
	}
	c := state.NodeCondition(n, corev1.NodeReady)
	if c == nil || state.NeverReported(n) {
		return turns
	}
	add := func(t state.HealthChange) {
		if k := len(turns); k == 0 || turns[k-1].Ready != t.Ready || turns[k-1].Out != t.Out {
			turns = append(turns, t)
		}
	}
	now := state.HealthChange{Ready: c.Status}
	now.At.Time = c.LastTransitionTime.Time
	add(now)
	if t := state.NoExecuteOf(n); t != nil && t.TimeAdded != nil {
		now.At.Time, now.Out = t.TimeAdded.Time, true
		add(now)
	}
	sort.SliceStable(turns, func(i, j int) bool {
		return cmp.Compare(turns[i].At.UnixNano(),
			turns[j].At.UnixNano()) < 0
	})
	return turns
}

// evictionsFrom returns the evictions in a node's history.
func evictionsFrom(a *frame.Request, node string, begin time.Time, length time.Duration) (marks []mark) {
	rec := a.Snapshot.Record(node)
	if rec == nil {
		return nil
	}
	for _, e := range rec.Evicted {
		if e.At.After(begin) {
			text := strings.TrimPrefix(e.Pod, metav1.NamespaceDefault+"/") + ": " + cmp.Or(e.Text, e.Reason)
			marks = append(marks, mark{text, short(e.At.Time, length),
				stripWidth * float64(e.At.Sub(begin)) / float64(length)})
		}
	}
	return marks
}

// short writes a moment for a scale of a day or of a week.
func short(t time.Time, scale time.Duration) string {
	if scale > 24*time.Hour {
		return t.UTC().Format("Mon 02 Jan 15:04")
	}
	return t.UTC().Format("15:04:05")
}
