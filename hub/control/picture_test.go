package control_test

import (
	"fmt"
	"html"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// pictured has the story of each picture in the manual.
var pictured = map[string]string{
	"silent-node": "node oslo-1..2 site=oslo\ndeployment kiosk replicas=2\nwait 2s\nsilence oslo-1\nwait 6m\nreturn oslo-1\nwait 1m",
	"cut-site":    "node oslo-1..3 site=oslo\nnode bergen-1 site=bergen\ndeployment kiosk replicas=4\nwait 2s\nsilence oslo-1..3\nwait 6m8s\nreturn oslo-1..3\nwait 1m",
	"held-site":   "site oslo policy=Hold\nnode oslo-1..3 site=oslo\nnode bergen-1 site=bergen\ndeployment kiosk replicas=4\nwait 2s\nsilence oslo-1..3\nwait 6m8s\nreturn oslo-1..3\nwait 1m",
	"all-dark":    "node oslo-1..2 site=oslo\nnode bergen-1..2 site=bergen\ndeployment kiosk replicas=4\nwait 2s\nsilence oslo-1..2\nwait 42s\nsilence bergen-1..2\nwait 5m30s\nreturn oslo-1..2 bergen-1..2\nwait 1m",
}

// drawn is the overview picture of the glossary, which is drawn by hand.
const drawn = "whole"

// TestThePicturesOfTheManual plays the stories, draws the hub's decisions and compares the result
// with the files. go test ./hub/control -run Pictures -update draws them again.
func TestThePicturesOfTheManual(t *testing.T) {
	for name, story := range pictured {
		t.Run(name, func(t *testing.T) {
			file := "../../web/manual/pictures/" + name + ".svg"
			got := film(t, story).svg()
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if have, err := os.ReadFile(file); err != nil || string(have) != got {
				t.Errorf("%s does not show what the hub decides (%v): go test ./hub/control -run Pictures -update", file, err)
			}
		})
	}
	entries, err := os.ReadDir("../../web/manual/pictures")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ".svg"); pictured[name] == "" && name != drawn {
			t.Errorf("web/manual/pictures/%s belongs to no story", e.Name())
		}
	}
}

// A strip has the states of a node or pod in order.
type strip struct {
	name  string
	kinds []string
	since []time.Duration
}

// is adds the next state; "": the object no longer exists.
func (s *strip) is(kind string, now time.Duration) {
	if n := len(s.kinds); n > 0 && s.kinds[n-1] == kind || n == 0 && kind == "" {
		return
	}
	s.kinds, s.since = append(s.kinds, kind), append(s.since, now)
}

// A picture has the nodes of a story and the pods on each node.
type picture struct {
	nodes []*strip
	pods  map[string][]*strip // by node
	by    map[string]*strip   // by pod
	end   time.Duration
}

func film(t *testing.T, story string) *picture {
	g := newStage(t, deciders()...)
	p := &picture{pods: map[string][]*strip{}, by: map[string]*strip{}}
	look := func(s state.Snapshot, now time.Time) { p.see(s, g.silent, now.Sub(g.start)) }
	g.watch = func(s state.Snapshot, _ []state.Applied, now time.Time) { look(s, now) }
	for line := range strings.Lines(story) {
		f := strings.Fields(line)
		g.do(f[0], f[1:])
		look(g.s, g.now)
	}
	p.end = g.now.Sub(g.start)
	return p
}

func (p *picture) see(s state.Snapshot, silent map[string]bool, now time.Duration) {
	for n := range state.Each[*corev1.Node](s, state.Nodes, "") {
		i := slices.IndexFunc(p.nodes, func(st *strip) bool { return st.name == n.Name })
		if i < 0 {
			i = len(p.nodes)
			p.nodes = append(p.nodes, &strip{name: n.Name})
		}
		given := slices.ContainsFunc(n.Spec.Taints,
			func(t corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute })
		switch ready := state.ReadyOf(n); {
		case given:
			p.nodes[i].is("NoExecute", now)
		case ready != corev1.ConditionTrue:
			p.nodes[i].is("Unknown", now)
		case silent[n.Name]:
			p.nodes[i].is("silent", now)
		default:
			p.nodes[i].is("ready", now)
		}
	}
	there := map[string]bool{}
	for pod := range state.Each[*corev1.Pod](s, state.Pods, "") {
		if pod.Spec.NodeName == "" {
			continue
		}
		there[pod.Name] = true
		st := p.by[pod.Name]
		if st == nil {
			st = &strip{name: pod.Name}
			p.by[pod.Name] = st
			p.pods[pod.Spec.NodeName] = append(p.pods[pod.Spec.NodeName], st)
		}
		if pod.DeletionTimestamp != nil {
			st.is("Terminating", now)
		} else {
			st.is("runs", now)
		}
	}
	for name, st := range p.by {
		if !there[name] {
			st.is("", now)
		}
	}
}

// Sizes in the picture's units.
const (
	left, width = 90, 640 // start and width of the time axis
	barHeight   = 18
	podHeight   = 7
)

// looks maps each state to a class of the style sheet, and to a colour for viewers without the
// style sheet.
var looks = map[string][2]string{
	"ready": {"ok-back", "#e2f3e8"}, "silent": {"idle", "#e9edf1"}, "Unknown": {"warn-back", "#fbf0d5"},
	"NoExecute": {"bad-back", "#fbe6e4"},
	"runs":      {"ok", "#14713d"}, "Terminating": {"bad", "#b3261e"},
}

func (p *picture) svg() string {
	var b strings.Builder
	x := func(d time.Duration) float64 { return left + width*d.Seconds()/p.end.Seconds() }
	rect := func(kind string, from, to time.Duration, y, height float64, told string) {
		fmt.Fprintf(&b, `<rect class="%s" fill="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>`+"\n",
			looks[kind][0], looks[kind][1], x(from), y, x(to)-x(from), height, html.EscapeString(told))
	}
	words := func(class, anchor string, x, y float64, said string) {
		fmt.Fprintf(&b, `<text class="%s" text-anchor="%s" font-size="13" x="%.1f" y="%.1f">%s</text>`+"\n", class, anchor, x, y, html.EscapeString(said))
	}
	y := 6.0
	for _, n := range p.nodes {
		words("", "start", 0, y+14, n.name)
		p.each(n, func(kind string, from, to time.Duration) {
			rect(kind, from, to, y, barHeight, fmt.Sprintf("%s: %s from %s to %s", n.name, kind, clock(from), clock(to)))
			if said := kind; x(to)-x(from) > float64(8*len(said)) {
				words("", "start", x(from)+5, y+13, said)
			}
		})
		y += barHeight + 3
		for _, pod := range p.pods[n.name] {
			p.each(pod, func(kind string, from, to time.Duration) {
				h := float64(podHeight)
				if kind == "Terminating" { // this state is also marked by its shape
					h = 2
				}
				rect(kind, from, to, y+(podHeight-h)/2, h,
					fmt.Sprintf("%s %s from %s to %s", pod.name, kind, clock(from), clock(to)))
			})
			y += podHeight + 3
		}
		y += 12
	}
	below := y
	y += 40
	at := 0.0
	for i, l := range []struct {
		kind, text string
		h          float64
	}{
		{"silent", "silent, not known yet", barHeight - 4}, {"Unknown", "Unknown: no new pods", barHeight - 4}, {"NoExecute", "NoExecute: the pods' time runs", barHeight - 4},
		{"runs", "a pod runs", podHeight}, {"Terminating", "evicted, and its stop is not confirmed", 2},
	} {
		if i == 3 {
			at, y = 0, y+22
		}
		h := l.h
		fmt.Fprintf(&b, `<rect class="%s" fill="%s" x="%.1f" y="%.1f" width="24" height="%.1f"/>`+"\n", looks[l.kind][0], looks[l.kind][1], at, y-5-h/2, h)
		words("soft", "start", at+30, y, l.text)
		at += 50 + 7*float64(len(l.text))
	}
	var grid strings.Builder // the grid is drawn below the strips
	for d := time.Duration(0); d <= p.end; d += time.Minute {
		fmt.Fprintf(&grid, `<path class="line" stroke="#dde2e8" d="M%.1f 0V%.1f"/>`+"\n", x(d), below)
		words("soft", "middle", x(d), below+14, clock(d))
	}
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" font-family=\"sans-serif\">\n%s%s</svg>\n", left+width+24, y+10, grid.String(), b.String())
}

// each calls show for each state with its start and end.
func (p *picture) each(s *strip, show func(kind string, from, to time.Duration)) {
	for i, kind := range s.kinds {
		to := p.end
		if i+1 < len(s.kinds) {
			to = s.since[i+1]
		}
		if kind != "" && to > s.since[i] {
			show(kind, s.since[i], to)
		}
	}
}

// clock formats a time since the start as minutes and seconds.
func clock(d time.Duration) string {
	return fmt.Sprintf("%d:%02d", int(d.Minutes()), int(d.Seconds())%60)
}
