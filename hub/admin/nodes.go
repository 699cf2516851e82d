package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// perPage is how many rows a page of a list has.
const perPage = 100

// A pager leads through a list.
type pager struct {
	From, To, Total int // From and To count from 1
	Prev, Next      string
	Pages           []pageLink // the first, those around this one, and the last
}

// A pageLink leads to a page of a list; without Href it is the one that is shown, without Number
// it stands for those that are left out.
type pageLink struct {
	Number int
	Href   string
}

// pageOf cuts the page that is asked for out of n rows.
func pageOf(a *request, n int, filter url.Values) (from, to int, p pager) {
	return pageAt(a, pageNumber(a), n, filter)
}

// pageNumber is the page that is asked for, from 1.
func pageNumber(a *request) int {
	number, err := strconv.Atoi(a.query("page"))
	if err != nil || number < 1 {
		return 1
	}
	return number
}

// pageAt cuts a page out of n rows, the last one where there are not so many.
func pageAt(a *request, number, n int, filter url.Values) (from, to int, p pager) {
	last := max((n+perPage-1)/perPage, 1)
	number = min(number, last)
	from, to = (number-1)*perPage, min(number*perPage, n)
	p = pager{From: min(from+1, n), To: to, Total: n}
	link := func(number int) string {
		v := url.Values{}
		for k, vs := range filter {
			if vs[0] != "" {
				v[k] = vs
			}
		}
		v.Set("page", strconv.Itoa(number))
		return a.path + "?" + v.Encode()
	}
	if number > 1 {
		p.Prev = link(number - 1)
	}
	if number < last {
		p.Next = link(number + 1)
	}
	const around = 2
	for i := 1; last > 1 && i <= last; i++ {
		switch {
		case i == number:
			p.Pages = append(p.Pages, pageLink{Number: i})
		case i == 1 || i == last || i >= number-around && i <= number+around:
			p.Pages = append(p.Pages, pageLink{i, link(i)})
		case i == 2 || i == last-1:
			p.Pages = append(p.Pages, pageLink{})
		}
	}
	return from, to, p
}

// An option is a choice of a filter.
type option struct {
	Value, Text string
	Chosen      bool
}

// options are the choices of a filter, each its value and its text.
func options(chosen string, pairs ...[2]string) (o []option) {
	for _, p := range pairs {
		o = append(o, option{p[0], p[1], p[0] == chosen})
	}
	return o
}

// A nodeRow is all that its row shows: those that are equal look alike, see look.row.
type nodeRow struct {
	Name, Href, Site, Board string
	Pick                    string
	Pill                    pill
	Bar                     bar
	Why                     string
	Pods                    int64
	CPU, Memory             share
	CPUUsed, MemoryUsed     spark
	Heard, Age              moment
}

var _ map[nodeRow]bool // a row is kept by what it shows: it can be compared

func (r nodeRow) lasting() any {
	r.Heard, r.Age = r.Heard.lasting(), r.Age.lasting()
	return r
}

type nodesData struct {
	Search   string
	Wrong    string // what is not understood of the search
	Sites    []option
	Statuses []option
	Rows     []nodeRow
	Pager    pager
	Empty    bool // no node at all
	Filtered bool
	Sort     []column
	SortBy   []option
	Bulk     menu
	Picks    *pickBar
	MayAdd   bool
	HubURL   string
}

// nodeHref is the page of a node.
func nodeHref(name string) string { return "/nodes/" + url.PathEscape(name) }

// nodeStatuses are what the list of nodes can be filtered by.
var nodeStatuses = [][2]string{
	{"", "Any status"}, {"attention", "Needs attention"}, {"ready", "Ready"}, {"notready", "Not ready"}, {"unknown", "Unknown"},
	{"never", "Never seen"}, {"cordoned", "Cordoned"},
}

// hasStatus tells whether a node has a status of the list of nodes.
func hasStatus(n *corev1.Node, status string) bool {
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
	}
	return true
}

// nodes lists the nodes: search, filters, a hundred at a time.
func nodes(a *request) (page, error) {
	text, site, status := strings.TrimSpace(a.query("q")), a.query("site"), a.query("status")
	d := nodesData{
		Search: text, Statuses: options(status, nodeStatuses...), Sites: siteOptions(a, site), Empty: a.Len(state.Nodes) == 0,
		Filtered: text != "" || site != "" || status != "", MayAdd: a.may("create", "jointokens"), HubURL: a.hubURL,
	}
	found := findNodes(a)
	filter := url.Values{"q": {text}, "site": {site}, "status": {status}}
	if d.Wrong = a.wrongSearch(state.Nodes); d.Wrong == "" {
		d.Bulk = bulk(a, state.Nodes, len(found), filter)
	}
	d.Sort = sortLinks(a, filter, nodeOrders)
	d.SortBy = sortOptions(a, nodeOrders)
	filter.Set("sort", a.query("sort"))
	from, to, pager := pageOf(a, len(found), filter)
	d.Pager = pager
	for _, n := range found[from:to] {
		r := nodeRowOf(a, n)
		r.Pick = a.pick(n)
		d.Rows = append(d.Rows, r)
	}
	if d.Picks = pickBarOf(a, filter, len(found), len(d.Rows), state.Nodes); d.Picks != nil {
		d.Sort = append([]column{{All: true}}, d.Sort...)
	}
	return page{Template: "nodes", Title: "Nodes", Watch: []string{"nodes", "pods"}, Poll: 10, Data: d}, nil
}

// findNodes returns the nodes that the query is about, in its order.
func findNodes(a *request) (found []*corev1.Node) {
	q := a.searched(search.Nodes)
	match, all := nodeFinder.matcher(a, q), a.Nodes()
	if site := a.query("site"); site != "" {
		all = a.NodesIn(site)
	} else if site := q.Exact("site"); a.Count(site).Nodes > 0 {
		all = a.NodesIn(site)
	}
	for n := range all {
		if hasStatus(n, a.query("status")) && match(n) {
			found = append(found, n)
		}
	}
	order(a, found, nodeOrders)
	return found
}

// nodeOrders are what a list of nodes can be sorted by.
var nodeOrders = []sorter[*corev1.Node]{
	{"name", "Node", nil},
	{"status", "Status", func(a *request) func(x, y *corev1.Node) int {
		return byRank(func(n *corev1.Node) string { return nodePill(n).Kind })
	}},
	{"site", "Site", func(*request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int { return cmp.Compare(state.SiteOf(x), state.SiteOf(y)) }
	}},
	{"board", "Board", func(*request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int {
			return cmp.Compare(x.Labels[fleet.LabelBoard], y.Labels[fleet.LabelBoard])
		}
	}},
	{"pods", "Pods", func(a *request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int { return cmp.Compare(a.Usage(y.Name).Pods, a.Usage(x.Name).Pods) }
	}},
	{"cpu", "CPU", func(a *request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int {
			return cmp.Compare(shareOf(corev1.ResourceCPU, a.Usage(y.Name), y).Percent, shareOf(corev1.ResourceCPU, a.Usage(x.Name), x).Percent)
		}
	}},
	{"memory", "Memory", func(a *request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int {
			return cmp.Compare(shareOf(corev1.ResourceMemory, a.Usage(y.Name), y).Percent, shareOf(corev1.ResourceMemory, a.Usage(x.Name), x).Percent)
		}
	}},
	{"heard", "Heard", func(a *request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int { return a.liveness(x.Name).Seen.Compare(a.liveness(y.Name).Seen) }
	}},
	{"age", "Age", func(*request) func(x, y *corev1.Node) int {
		return func(x, y *corev1.Node) int { return y.CreationTimestamp.Compare(x.CreationTimestamp.Time) }
	}},
}

// byRank compares by a pill's kind, the worst first, which is found once for each.
func byRank[T comparable](kind func(T) string) func(x, y T) int {
	ranks := map[T]int{}
	of := func(x T) int {
		r, ok := ranks[x]
		if !ok {
			r = rank(kind(x))
			ranks[x] = r
		}
		return r
	}
	return func(x, y T) int { return cmp.Compare(of(x), of(y)) }
}

func nodeRowOf(a *request, n *corev1.Node) nodeRow {
	u := a.Usage(n.Name)
	r := nodeRow{
		Name: n.Name, Href: nodeHref(n.Name), Site: state.SiteOf(n), Board: boardName(n),
		Pill: nodePill(n), Bar: barOf(a, n), Why: a.nodeWhy(n), Pods: u.Pods,
		CPU: shareOf(corev1.ResourceCPU, u, n), Memory: shareOf(corev1.ResourceMemory, u, n),
		Heard: momentOf(a.liveness(n.Name).Seen, a.now), Age: momentOf(n.CreationTimestamp.Time, a.now),
	}
	if !r.Bar.Telling || r.Pill.Kind == "bad" && !r.Bar.Again { // that it is bad now is said
		r.Bar = bar{}
	}
	if r.Why == noAnswer { // Unknown, and when it was heard, say it
		r.Why = ""
	}
	a.sparks(n, &r.CPUUsed, &r.MemoryUsed)
	return r
}

// siteOptions are the sites that a list can be filtered by.
func siteOptions(a *request, chosen string) []option {
	o := []option{{"", "All sites", chosen == ""}}
	for name, c := range a.Counts() {
		o = append(o, option{name, fmt.Sprintf("%s (%d)", name, c.Nodes), name == chosen})
	}
	return withChosen(o, chosen)
}

// withChosen are options with the one that is chosen, which may be of nothing any more: a
// menu without it would choose another one.
func withChosen(o []option, chosen string) []option {
	if !slices.ContainsFunc(o, func(x option) bool { return x.Chosen }) {
		o = append(o, option{chosen, chosen, true})
	}
	return o
}

// nodeListings are the lists of nodes, sites, and devices that wait to join.
var nodeListings = map[state.Kind]listing{
	state.Nodes: {
		found: func(a *request) []state.Object { return objects(findNodes(a)) },
		pill:  func(_ *request, o state.Object) pill { return nodePill(o.(*corev1.Node)) },
		where: func(_ *request, o state.Object) string { return state.SiteOf(o.(*corev1.Node)) },
	},
	state.Sites: {
		found: func(a *request) []state.Object { return objects(findSites(a)) },
		pill:  func(_ *request, o state.Object) pill { return sitePill(o.(*fleet.Site)) },
	},
	state.JoinRequests: {
		found: func(a *request) []state.Object { return objects(pendingRequests(a.Snapshot)) },
		pill:  func(_ *request, o state.Object) pill { return requestPill(o.(*joinRequest)) },
		where: func(_ *request, o state.Object) string {
			said := o.GetAnnotations()
			return "machine id " + cmp.Or(said[state.RequestMachine], "unknown") + ", from " + said[state.RequestSource]
		},
	},
}
