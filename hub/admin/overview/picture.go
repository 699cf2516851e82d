package overview

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

// A markKind is how a node looks in the picture: a shape and a colour.
type markKind int

const (
	markOK markKind = iota
	markRest
	markNever
	markWarn
	markBad
	markDark
	markKinds
)

// marks hold for each kind the CSS class, the text, and the status that filters the list of nodes.
var marks = [markKinds]struct{ Class, Text, Status string }{
	markOK: {"ok", "Ready", "ready"}, markRest: {"rest", "Cordoned", "cordoned"},
	markNever: {"never", "Never seen", "never"},
	markWarn:  {"warn", "Ready, with trouble", "attention"}, markBad: {"bad", "Not ready", "notready"},
	markDark: {"dark", "Unknown", "unknown"},
}

// textOf names a kind. In a replay "never seen" means that the node's state is not known.
func textOf(k markKind, r *replay) string {
	if r.Past && k == markNever {
		return "Not known"
	}
	return marks[k].Text
}

func lookOf(n *corev1.Node) markKind {
	switch f := diagnose.FirstOf(n); {
	case f.Cause == diagnose.NodeNeverReported:
		return markNever
	case f.Cause == diagnose.NodeDark:
		return markDark
	case f.Cause == diagnose.NodeNotReady:
		return markBad
	case f.Cause != "":
		return markWarn
	case n.Spec.Unschedulable:
		return markRest
	}
	return markOK
}

const (
	cell       = 8   // drawing units of a mark
	perLine    = 10  // marks
	perBlock   = 100 // marks, as many as a page of the list has rows
	fewNodes   = 200 // up to this number of nodes each mark is a link
	shownSites = 60
)

// A fleetPicture has one mark for each node, grouped by site.
type fleetPicture struct {
	Sites []siteMarks
	Rest  int // sites that are not drawn, with RestNodes
	Nodes int
	Few   bool
	Size  int // pixels of a cell
	Keys  []fleetKey

	RestNodes, RestReady int

	replay *replay
}

type fleetKey struct {
	Class, Text, Href string
	Count             int
}

type siteMarks struct {
	Name, Href   string
	Nodes, Ready int
	Known        int // nodes whose state is known, which is all of them except in a replay
	Counts       [markKinds]int
	Said         string // nodes that are not simply ready, in words
	Blocks       []block

	kinds []markKind // of the site's nodes, sorted by name
	names []string
}

// A block is up to a hundred marks, ten on a line.
type block struct {
	First          int    // the index of its first node in the site
	Title, Href    string // the page of the list that has these nodes
	Wide, High     int    // size of the drawing
	Pixels, HighPx int
	Paths          []markPath
	Links          []markLink // only in a small fleet
}

// A markPath draws all marks of a kind. A run of marks is one line; its dashes are the marks.
type markPath struct{ Class, D string }

type markLink struct {
	X, Y       int
	Href, Text string
}

// pictureOf draws the fleet as it is, or as it was at the replayed moment. If there are too many
// sites, it draws those in trouble, sorted by name.
func pictureOf(a *frame.Request, r *replay) (f fleetPicture) {
	f.replay = r
	f.Nodes, f.Few, f.Size = a.Len(state.Nodes), a.Len(state.Nodes) <= fewNodes, 8
	switch {
	case f.Nodes <= 60:
		f.Size = 20
	case f.Nodes <= 600:
		f.Size = 12
	}
	var total [markKinds]int
	var all []siteMarks
	for site := range a.Counts() {
		s := siteMarks{Name: site, Href: "/nodes?" + url.Values{"site": {site}}.Encode()}
		for n := range a.NodesIn(site) {
			k := lookOf(n)
			if r.Past {
				k = lookAt(a, n, r.at)
			}
			s.Counts[k]++
			s.kinds, s.names = append(s.kinds, k), append(s.names, n.Name)
		}
		for k, n := range s.Counts {
			total[k] += n
			s.Nodes += n
		}
		if s.Nodes == 0 {
			continue
		}
		s.Ready = s.Counts[markOK] + s.Counts[markRest] + s.Counts[markWarn]
		if s.Known = s.Nodes; r.Past {
			s.Known -= s.Counts[markNever]
		}
		s.Said = saidOf(s.Counts, r)
		all = append(all, s)
	}
	drawn := drawnOf(all)
	for i := range all {
		s := &all[i]
		if !drawn[i] {
			f.Rest, f.RestNodes, f.RestReady = f.Rest+1, f.RestNodes+s.Nodes, f.RestReady+s.Ready
			continue
		}
		s.Blocks = f.blocksOf(s)
		f.Sites = append(f.Sites, *s)
	}
	for k, n := range total {
		if n == 0 {
			continue
		}
		key := fleetKey{marks[k].Class, textOf(markKind(k), r), "/nodes?status=" + marks[k].Status, n}
		if r.Past {
			key.Href = "" // the list shows the present
		}
		f.Keys = append(f.Keys, key)
	}
	return f
}

// drawnOf tells which sites are drawn.
func drawnOf(all []siteMarks) []bool {
	drawn, left := make([]bool, len(all)), shownSites
	for _, trouble := range []bool{true, false} {
		for i, s := range all {
			if left > 0 && !drawn[i] && (s.Counts[markOK] < s.Nodes) == trouble {
				drawn[i] = true
				left--
			}
		}
	}
	return drawn
}

// saidOf counts, in words, a site's nodes that are not simply ready.
func saidOf(counts [markKinds]int, r *replay) string {
	var said []string
	for k := markKinds - 1; k > markOK; k-- {
		if counts[k] > 0 {
			said = append(said, fmt.Sprintf("%d %s", counts[k], strings.ToLower(textOf(k, r))))
		}
	}
	return strings.Join(said, ", ")
}

func (f *fleetPicture) blocksOf(s *siteMarks) (blocks []block) {
	for i := 0; i < len(s.kinds); i += perBlock {
		end := min(i+perBlock, len(s.kinds))
		blocks = append(blocks, f.blockOf(i, s.kinds[i:end], s.names[i:end], s.Href))
	}
	return blocks
}

func (f *fleetPicture) blockOf(first int, kinds []markKind, names []string, href string) block {
	lines := (len(kinds) + perLine - 1) / perLine
	b := block{
		First: first, Href: href + "&page=" + strconv.Itoa(first/perBlock+1), Wide: min(len(kinds), perLine) * cell,
		High:   lines * cell,
		Pixels: min(len(kinds), perLine) * f.Size, HighPx: lines * f.Size, Title: names[0],
	}
	if last := names[len(names)-1]; last != b.Title {
		b.Title += " to " + last
	}
	var paths [markKinds][]byte
	for i := 0; i < len(kinds); {
		end := i + 1
		for end < len(kinds) && kinds[end] == kinds[i] && end%perLine != 0 {
			end++
		}
		paths[kinds[i]] = fmt.Appendf(paths[kinds[i]], "M%d %dh%d", i%perLine*cell, i/perLine*cell+cell/2, (end-i)*cell)
		i = end
	}
	for k, d := range paths {
		if len(d) > 0 {
			b.Paths = append(b.Paths, markPath{marks[k].Class, string(d)})
		}
	}
	for i, name := range names {
		if f.Few {
			b.Links = append(b.Links, markLink{i % perLine * cell, i / perLine * cell, frame.NodeHref(name),
				name + ": " + textOf(kinds[i], f.replay)})
		}
	}
	return b
}

// GoToMark redirects to the node of a mark, because a large fleet's picture has no links. If the
// node does not exist, it redirects to the list of the site's nodes.
func GoToMark(c *frame.Call) error {
	site := c.QueryParam("site")
	i, err := strconv.Atoi(c.QueryParam("at"))
	to := "/nodes?" + url.Values{"site": {site}}.Encode()
	if err == nil && i >= 0 {
		for n := range c.Fleet.Snapshot().NodesIn(site) {
			if i == 0 {
				to = frame.NodeHref(n.Name)
				break
			}
			i--
		}
	}
	return c.Redirect(http.StatusSeeOther, to)
}
