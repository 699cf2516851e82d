package nodes

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Finder searches the list of nodes.
var Finder = frame.Finder[*corev1.Node]{List: search.Nodes,
	Has: map[string]func(*frame.Request, search.Term) frame.Match[*corev1.Node]{
		"":      frame.Key(func(n *corev1.Node, t search.Term) bool { return t.In(n.Name) }),
		"node":  frame.Key(func(n *corev1.Node, t search.Term) bool { return t.Is(n.Name) }),
		"site":  frame.Key(func(n *corev1.Node, t search.Term) bool { return t.Is(state.SiteOf(n)) }),
		"label": frame.Key(func(n *corev1.Node, t search.Term) bool { return t.Has(n.Labels) }),
		"board": frame.Key(func(n *corev1.Node, t search.Term) bool { return t.Is(frame.BoardName(n)) }),
		"agent": frame.Key(func(n *corev1.Node, t search.Term) bool { return t.Is(n.Status.NodeInfo.KubeletVersion) }),
		"status": func(_ *frame.Request, t search.Term) frame.Match[*corev1.Node] {
			return frame.OfStatus(frame.NodeStatuses, t, HasStatus)
		},
		"condition": frame.Key(func(n *corev1.Node, t search.Term) bool {
			return slices.ContainsFunc(n.Status.Conditions,
				func(c corev1.NodeCondition) bool { return frame.IsCondition(t, string(c.Type), string(c.Status)) })
		}),
		"ip": frame.Key(func(n *corev1.Node, t search.Term) bool {
			return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
				return a.Type != corev1.NodeHostName && t.Is(a.Address)
			})
		}),
		"image": func(a *frame.Request, t search.Term) frame.Match[*corev1.Node] {
			on := map[string]bool{}
			for p := range a.Pods("") {
				if frame.HasImage(t, &p.Spec) {
					on[p.Spec.NodeName] = true
				}
			}
			return func(n *corev1.Node, _ search.Term) bool { return on[n.Name] }
		},
	}}

var siteFinder = frame.Finder[*fleet.Site]{List: search.Sites,
	Has: map[string]func(*frame.Request, search.Term) frame.Match[*fleet.Site]{
		"": frame.Key(func(s *fleet.Site, t search.Term) bool {
			return t.In(s.Name, s.Spec.Description,
				s.Spec.Location)
		}),
		"site":  frame.Key(func(s *fleet.Site, t search.Term) bool { return t.Is(s.Name) }),
		"label": frame.Key(func(s *fleet.Site, t search.Term) bool { return t.Has(s.Labels) }),
		"status": func(a *frame.Request, t search.Term) frame.Match[*fleet.Site] {
			return frame.OfStatus(frame.SiteStates, t,
				func(s *fleet.Site, status string) bool { return SiteHasState(s, status, a.Now) })
		},
	}}

// A nodeRow holds everything that its template shows, so that rendered rows can be cached.
type nodeRow struct {
	Name, Href, Site, Board string
	Pick                    string
	Pill                    frame.Pill
	Bar                     bar
	Why                     string
	Pods                    int64
	CPU, Memory             share
	CPUUsed, MemoryUsed     spark
	Heard, Age              format.Moment
}

var _ map[nodeRow]bool // compiles only if a row is comparable

func (r nodeRow) Lasting() any {
	r.Heard, r.Age = r.Heard.Lasting(), r.Age.Lasting()
	return r
}

type nodesData struct {
	Search   string
	Wrong    string // what is wrong with the search
	Sites    []frame.Option
	Statuses []frame.Option
	Rows     []nodeRow
	Pager    frame.Pager
	Empty    bool // there is no node
	Filtered bool
	Sort     []frame.Column
	SortBy   []frame.Option
	Bulk     frame.Menu
	Picks    *frame.PickBar
	MayAdd   bool
	HubURL   string
}

// HasStatus tells whether a node matches a status of the filter.
func HasStatus(n *corev1.Node, status string) bool {
	switch status {
	case "attention":
		return diagnose.FirstOf(n).Cause != ""
	case "ready":
		return state.ReadyOf(n) == corev1.ConditionTrue
	case "notready":
		return state.ReadyOf(n) == corev1.ConditionFalse
	case "unknown":
		return state.ReadyOf(n) == corev1.ConditionUnknown && !state.NeverReported(n)
	case "never":
		return state.NeverReported(n)
	case "cordoned":
		return n.Spec.Unschedulable
	case "hot":
		return finding.Hot(n)
	}
	return true
}

// List lists the nodes with search, filters and pages.
func List(a *frame.Request) (frame.Page, error) {
	text, site, status := strings.TrimSpace(a.Query("q")), a.Query("site"), a.Query("status")
	d := nodesData{
		Search: text, Statuses: frame.Options(status, frame.NodeStatuses...), Sites: frame.SiteOptions(a, site),
		Empty:    a.Len(state.Nodes) == 0,
		Filtered: text != "" || site != "" || status != "", MayAdd: a.May("create", "jointokens"), HubURL: a.HubURL,
	}
	found := findNodes(a)
	filter := url.Values{"q": {text}, "site": {site}, "status": {status}}
	if d.Wrong = a.WrongSearch(state.Nodes); d.Wrong == "" {
		d.Bulk = frame.BulkMenu(a, state.Nodes, len(found), filter)
	}
	d.Sort = frame.SortLinks(a, filter, nodeOrders)
	d.SortBy = frame.SortOptions(a, nodeOrders)
	filter.Set("sort", a.Query("sort"))
	from, to, pager := frame.PageOf(a, len(found), filter)
	d.Pager = pager
	for _, n := range found[from:to] {
		r := nodeRowOf(a, n)
		r.Pick = a.Pick(n)
		d.Rows = append(d.Rows, r)
	}
	if d.Picks = frame.PickBarOf(a, filter, len(found), len(d.Rows), state.Nodes); d.Picks != nil {
		d.Sort = append([]frame.Column{{All: true}}, d.Sort...)
	}
	return frame.Page{Template: "nodes", Title: "Nodes", Watch: []string{"nodes", "pods"}, Poll: 10, Data: d}, nil
}

// findNodes returns the nodes under the query's filter, in its order.
func findNodes(a *frame.Request) (found []*corev1.Node) {
	q := a.Searched(search.Nodes)
	match, all := Finder.Matcher(a, q), a.Nodes()
	if site := a.Query("site"); site != "" {
		all = a.NodesIn(site)
	} else if site := q.Exact("site"); a.Count(site).Nodes > 0 {
		all = a.NodesIn(site)
	}
	for n := range all {
		if HasStatus(n, a.Query("status")) && match(n) {
			found = append(found, n)
		}
	}
	frame.Sort(a, found, nodeOrders)
	return found
}

// nodeOrders are the columns by which nodes can be sorted.
var nodeOrders = []frame.Sorter[*corev1.Node]{
	{Name: "name", Title: "Node", By: nil},
	{Name: "status", Title: "Status", By: func(a *frame.Request) func(x, y *corev1.Node) int {
		return frame.ByRank(func(n *corev1.Node) string { return finding.NodePill(n).Kind })
	}},
	{Name: "site", Title: "Site", By: func(*frame.Request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int { return cmp.Compare(state.SiteOf(x), state.SiteOf(y)) }
	}},
	{Name: "board", Title: "Board", By: func(*frame.Request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int {
			return cmp.Compare(x.Labels[fleet.LabelBoard], y.Labels[fleet.LabelBoard])
		}
	}},
	{Name: "pods", Title: "Pods", By: func(a *frame.Request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int { return cmp.Compare(a.Usage(y.Name).Pods, a.Usage(x.Name).Pods) }
	}},
	{Name: "cpu", Title: "CPU", By: func(a *frame.Request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int {
			return cmp.Compare(shareOf(corev1.ResourceCPU, a.Usage(y.Name), y).Percent,
				shareOf(corev1.ResourceCPU, a.Usage(x.Name), x).Percent)
		}
	}},
	{Name: "memory", Title: "Memory", By: func(a *frame.Request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int {
			return cmp.Compare(shareOf(corev1.ResourceMemory, a.Usage(y.Name), y).Percent,
				shareOf(corev1.ResourceMemory, a.Usage(x.Name), x).Percent)
		}
	}},
	{Name: "heard", Title: "Heard", By: func(a *frame.Request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int { return a.Liveness(x.Name).Seen.Compare(a.Liveness(y.Name).Seen) }
	}},
	{Name: "age", Title: "Age", By: func(*frame.Request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int { return y.CreationTimestamp.Compare(x.CreationTimestamp.Time) }
	}},
}

func nodeRowOf(a *frame.Request, n *corev1.Node) nodeRow {
	u := a.Usage(n.Name)
	r := nodeRow{
		Name: n.Name, Href: frame.NodeHref(n.Name), Site: state.SiteOf(n), Board: frame.BoardName(n),
		Pill: finding.NodePill(n), Bar: barOf(a, n), Why: finding.NodeSentence(a, n), Pods: u.Pods,
		CPU: shareOf(corev1.ResourceCPU, u, n), Memory: shareOf(corev1.ResourceMemory, u, n),
		Heard: format.MomentOf(a.Liveness(n.Name).Seen, a.Now), Age: format.MomentOf(n.CreationTimestamp.Time, a.Now),
	}
	if !r.Bar.Telling || r.Pill.Kind == "bad" && !r.Bar.Again { // the pill already says that the node is bad now
		r.Bar = bar{}
	}
	if r.Why == finding.NoAnswer { // the pill and the column Heard already say so
		r.Why = ""
	}
	sparks(a, n, &r.CPUUsed, &r.MemoryUsed)
	return r
}

// Listings are the lists of nodes, sites, and devices that wait to join.
var Listings = map[state.Kind]frame.Listing{
	state.Nodes: {
		Found: func(a *frame.Request) []state.Object { return frame.Objects(findNodes(a)) },
		Pill:  func(_ *frame.Request, o state.Object) frame.Pill { return finding.NodePill(o.(*corev1.Node)) },
		Where: func(_ *frame.Request, o state.Object) string { return state.SiteOf(o.(*corev1.Node)) },
		Sorts: frame.SortNames(nodeOrders),
	},
	state.Sites: {
		Found: func(a *frame.Request) []state.Object { return frame.Objects(findSites(a)) },
		Pill:  func(_ *frame.Request, o state.Object) frame.Pill { return finding.SitePill(o.(*fleet.Site)) },
	},
	state.JoinRequests: {
		Found: func(a *frame.Request) []state.Object { return frame.Objects(PendingRequests(a.Snapshot)) },
		Pill:  func(_ *frame.Request, o state.Object) frame.Pill { return requestPill(o.(*joinRequest)) },
		Where: func(_ *frame.Request, o state.Object) string {
			said := o.GetAnnotations()
			return "machine id " + cmp.Or(said[state.RequestMachine], "unknown") + ", from " + said[state.RequestSource]
		},
	},
}
