package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// perPage is how many rows a page of a list has.
const perPage = 100

// A pager leads through a list.
type pager struct {
	From, To, Total int // From and To count from 1
	Prev, Next      string
}

// pageOf cuts the page that is asked for out of n rows.
func pageOf(a *request, n int, filter url.Values) (from, to int, p pager) {
	number, err := strconv.Atoi(a.query("page"))
	if err != nil || number < 1 {
		number = 1
	}
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
	return from, to, p
}

// An option is a choice of a filter.
type option struct {
	Value, Text string
	Chosen      bool
}

func options(chosen string, pairs ...[2]string) (o []option) {
	for _, p := range pairs {
		o = append(o, option{p[0], p[1], p[0] == chosen})
	}
	return o
}

// A nodeRow is all that its row shows: those that are equal look alike, see look.row.
type nodeRow struct {
	Name, Href, Site, Board string
	Pill                    pill
	Why                     string
	Pods, PodsMax           int64
	CPU, Memory             share
	Heard, Age              moment
}

func (r nodeRow) lasting() any {
	r.Heard, r.Age = r.Heard.lasting(), r.Age.lasting()
	return r
}

type nodesData struct {
	Search   string
	Sites    []option
	Statuses []option
	Rows     []nodeRow
	Pager    pager
	Empty    bool // no node at all
	Filtered bool
	Sort     []column
	Sorted   string
	Bulk     menu
	MayAdd   bool
	HubURL   string
}

func nodeHref(name string) string { return "/nodes/" + url.PathEscape(name) }

var nodeStatuses = [][2]string{
	{"", "Any status"}, {"attention", "Needs attention"}, {"ready", "Ready"}, {"notready", "Not ready"}, {"unknown", "Unknown"},
	{"never", "Never seen"}, {"cordoned", "Cordoned"},
}

func hasStatus(n *corev1.Node, status string) bool {
	switch status {
	case "attention":
		return state.ReadyOf(n) != corev1.ConditionTrue || len(unhealthy(n)) > 0
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

// matches tells whether an object has every word of a search: in its name, or,
// for a word such as key:value or key:, among its labels.
func matches(name string, labels map[string]string, words []string) bool {
	for _, w := range words {
		key, value, isLabel := strings.Cut(w, ":")
		if !isLabel {
			if !strings.Contains(name, w) {
				return false
			}
			continue
		}
		if have, ok := labels[key]; ok {
			if strings.Contains(strings.ToLower(have), value) {
				continue
			}
			return false
		}
		if !slices.ContainsFunc(labelNames(labels), func(k string) bool {
			_, short, ok := strings.Cut(k, "/")
			return ok && strings.EqualFold(short, key) && strings.Contains(strings.ToLower(labels[k]), value)
		}) {
			return false
		}
	}
	return true
}

func labelNames(labels map[string]string) []string {
	names := make([]string, 0, len(labels))
	for k := range labels {
		names = append(names, k)
	}
	return names
}

// nodes lists the nodes: search, filters, a hundred at a time.
func nodes(a *request) (page, error) {
	search, site, status := strings.TrimSpace(a.query("q")), a.query("site"), a.query("status")
	d := nodesData{
		Search: search, Statuses: options(status, nodeStatuses...), Sites: siteOptions(a, site), Empty: a.Len(state.Nodes) == 0,
		Filtered: search != "" || site != "" || status != "", MayAdd: a.may("create", "jointokens"), HubURL: a.hubURL,
	}
	found := findNodes(a)
	filter := url.Values{"q": {search}, "site": {site}, "status": {status}}
	d.Bulk = bulk(a, state.Nodes, len(found), filter)
	d.Sort = sortLinks(a, filter, nodeOrders)
	d.Sorted = a.query("sort")
	filter.Set("sort", d.Sorted)
	from, to, pager := pageOf(a, len(found), filter)
	d.Pager = pager
	for _, n := range found[from:to] {
		d.Rows = append(d.Rows, nodeRowOf(a, n))
	}
	return page{Template: "nodes", Title: "Nodes", Watch: []string{"nodes", "pods"}, Poll: 10, Data: d}, nil
}

// findNodes returns the nodes that the query is about, in its order.
func findNodes(a *request) (found []*corev1.Node) {
	words := strings.Fields(strings.ToLower(a.query("q")))
	all := a.Nodes()
	if site := a.query("site"); site != "" {
		all = a.NodesIn(site)
	}
	for n := range all {
		if hasStatus(n, a.query("status")) && matches(n.Name, n.Labels, words) {
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
		return func(x, y *corev1.Node) int { return cmp.Compare(rank(nodePill(x).Kind), rank(nodePill(y).Kind)) }
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

func nodeRowOf(a *request, n *corev1.Node) nodeRow {
	u := a.Usage(n.Name)
	why, _ := nodeWhy(a.Snapshot, n)
	return nodeRow{
		Name: n.Name, Href: nodeHref(n.Name), Site: state.SiteOf(n), Board: cmp.Or(n.Labels[fleet.LabelBoard], n.Status.NodeInfo.Architecture),
		Pill: nodePill(n), Why: why, Pods: u.Pods, PodsMax: n.Status.Allocatable.Pods().Value(),
		CPU: shareOf(corev1.ResourceCPU, u, n), Memory: shareOf(corev1.ResourceMemory, u, n),
		Heard: momentOf(a.liveness(n.Name).Seen, a.now), Age: momentOf(n.CreationTimestamp.Time, a.now),
	}
}

func siteOptions(a *request, chosen string) []option {
	o := []option{{"", "All sites", chosen == ""}}
	for name, c := range a.Counts() {
		o = append(o, option{name, fmt.Sprintf("%s (%d)", name, c.Nodes), name == chosen})
	}
	return o
}
