package nodes

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

type boardRow struct {
	Name, Title string
	YAML        string
	Nodes       int
	Href        string // list of the nodes with the profile
	Match       []string
	Reserved    []frame.Fact
	Thresholds  []frame.Fact
	Labels      []frame.Fact
	Taints      []string
}

type boardsData struct {
	Rows    []boardRow
	Without []boardOf // boards that no profile fits
	MayEdit bool
}

// A boardOf is a kind of board that nodes report, with their number.
type boardOf struct {
	Name  string
	Nodes int
	Href  string
}

// Boards lists the board profiles with their nodes, and the boards without a profile.
func Boards(a *frame.Request) (frame.Page, error) {
	nodesOf, without := map[string]int{}, map[string]int{}
	for n := range a.Nodes() {
		if profile := n.Labels[fleet.LabelProfile]; profile != "" {
			nodesOf[profile]++
		} else {
			without[n.Labels[fleet.LabelBoard]]++
		}
	}
	d := boardsData{MayEdit: a.May("update", "boardprofiles")}
	for p := range state.Each[*fleet.BoardProfile](a.Snapshot, state.BoardProfiles, "") {
		d.Rows = append(d.Rows, boardRowOf(p, nodesOf[p.Name]))
	}
	for _, name := range slices.Sorted(maps.Keys(without)) {
		b := boardOf{Name: cmp.Or(name, "unknown"), Nodes: without[name]}
		if name != "" {
			b.Href = nodesFound(search.Term{Key: "label", Value: fleet.LabelBoard + "=" + name},
				search.Term{Not: true, Key: "label", Value: fleet.LabelProfile})
		}
		d.Without = append(d.Without, b)
	}
	return frame.Page{Template: "boards", Title: "Boards", Watch: []string{"nodes", "boards"}, Data: d}, nil
}

// nodesFound returns the address of the nodes that match the terms.
func nodesFound(terms ...search.Term) string {
	return "/nodes?" + url.Values{"q": {search.Query{Terms: terms}.String()}}.Encode()
}

func boardRowOf(p *fleet.BoardProfile, nodes int) boardRow {
	r := boardRow{
		Name: p.Name, Title: cmp.Or(p.Spec.Title, p.Name), Nodes: nodes,
		YAML: "/yaml" + frame.ObjectURL(state.BoardProfiles, "", p.Name),
		Href: nodesFound(search.Term{Key: "label", Value: fleet.LabelProfile + "=" + p.Name}),
	}
	m, res := p.Spec.Match, p.Spec.Resources
	if len(m.Compatible) > 0 {
		r.Match = append(r.Match, strings.Join(m.Compatible, " or "))
	}
	if len(m.Arch) > 0 {
		r.Match = append(r.Match, strings.Join(m.Arch, " or "))
	}
	if b := m.MemoryMiB; b != nil {
		switch {
		case b.Min > 0 && b.Max > 0:
			r.Match = append(r.Match, fmt.Sprintf("%d to %d MiB of memory", b.Min, b.Max))
		case b.Min > 0:
			r.Match = append(r.Match, fmt.Sprintf("%d MiB of memory or more", b.Min))
		case b.Max > 0:
			r.Match = append(r.Match, fmt.Sprintf("%d MiB of memory or less", b.Max))
		}
	}
	for _, part := range []struct {
		of     string
		amount map[string]string
	}{{"the system", res.SystemReserved}, {"the agent", res.AgentReserved}} {
		if text := amounts(part.amount); text != "" {
			r.Reserved = append(r.Reserved, frame.Fact{Name: "Kept for " + part.of, Value: text})
		}
	}
	for _, signal := range slices.Sorted(maps.Keys(res.EvictionHard)) {
		r.Thresholds = append(r.Thresholds, frame.Fact{Name: signal, Value: beyond(signal) + res.EvictionHard[signal]})
	}
	for _, signal := range slices.Sorted(maps.Keys(res.EvictionSoft)) {
		soft := res.EvictionSoft[signal]
		r.Thresholds = append(r.Thresholds, frame.Fact{Name: signal, Value: beyond(signal) + soft.Value + " for " +
			format.Duration(soft.For.Duration)})
	}
	for _, key := range slices.Sorted(maps.Keys(p.Spec.Labels)) {
		r.Labels = append(r.Labels, frame.Fact{Name: fleet.LabelBoardPrefix + key, Value: p.Spec.Labels[key]})
	}
	for _, t := range p.Spec.Taints {
		r.Taints = append(r.Taints, t.ToString())
	}
	return r
}

func amounts(m map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, m[name]+" "+name)
	}
	return strings.Join(parts, ", ")
}

// beyond names the side of the threshold on which a signal is bad.
func beyond(signal string) string {
	if signal == fleet.SignalTemperature {
		return "above "
	}
	return "below "
}
