package workloads

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/kube/table"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

var podFinder = frame.Finder[*corev1.Pod]{List: search.Pods,
	Has: map[string]func(*frame.Request, search.Term) frame.Match[*corev1.Pod]{
		"":          frame.Key(func(p *corev1.Pod, t search.Term) bool { return t.In(p.Name, p.Spec.NodeName) }),
		"node":      frame.Key(func(p *corev1.Pod, t search.Term) bool { return t.Is(p.Spec.NodeName) }),
		"namespace": frame.Key(func(p *corev1.Pod, t search.Term) bool { return t.Is(p.Namespace) }),
		"label":     frame.Key(func(p *corev1.Pod, t search.Term) bool { return t.Has(p.Labels) }),
		"image":     frame.Key(func(p *corev1.Pod, t search.Term) bool { return frame.HasImage(t, &p.Spec) }),
		"site":      onNodes(func(n *corev1.Node, t search.Term) bool { return t.Is(state.SiteOf(n)) }),
		"board":     onNodes(func(n *corev1.Node, t search.Term) bool { return t.Is(frame.BoardName(n)) }),
		"ip": frame.Key(func(p *corev1.Pod, t search.Term) bool {
			return t.Is(p.Status.PodIP) || t.Is(p.Status.HostIP) ||
				slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool { return t.Is(ip.IP) })
		}),
		"condition": frame.Key(func(p *corev1.Pod, t search.Term) bool {
			return slices.ContainsFunc(p.Status.Conditions,
				func(c corev1.PodCondition) bool { return frame.IsCondition(t, string(c.Type), string(c.Status)) })
		}),
		"owner": func(a *frame.Request, _ search.Term) frame.Match[*corev1.Pod] {
			return func(p *corev1.Pod, t search.Term) bool { return frame.IsOwner(t, frame.OwnerOf(a.Snapshot, p)) }
		},
		"status": func(a *frame.Request, t search.Term) frame.Match[*corev1.Pod] {
			menu := frame.OfStatus(frame.PodStatuses, t,
				func(p *corev1.Pod, status string) bool { return PodHasStatus(a, p, status) })
			if frame.HasOption(frame.PodStatuses, t.Value) {
				return menu
			}
			return func(p *corev1.Pod, t search.Term) bool { return menu(p, t) || t.Is(table.PodStatus(p)) }
		},
	}}

// onNodes matches pods by their nodes.
func onNodes(has frame.Match[*corev1.Node]) func(*frame.Request, search.Term) frame.Match[*corev1.Pod] {
	return func(a *frame.Request, t search.Term) frame.Match[*corev1.Pod] {
		on := frame.NodesLike(a, func(n *corev1.Node) bool { return has(n, t) })
		return func(p *corev1.Pod, _ search.Term) bool { return on[p.Spec.NodeName] }
	}
}

// A PodRow holds everything that its template shows, so that rendered rows can be cached.
type PodRow struct {
	Name, Namespace, Href string
	Pick                  string
	podLine
	Pill           frame.Pill
	Why            string
	Node, NodeHref string
	Site           string
	Owner          string
	Age            format.Moment
}

var _ map[PodRow]bool // compiles only if a row is comparable

func (r PodRow) Lasting() any {
	r.Age = r.Age.Lasting()
	return r
}

type podsData struct {
	Search     string
	Wrong      string // what is wrong with the search
	Namespaces []frame.Option
	Statuses   []frame.Option
	Owner      string
	Rows       []PodRow
	Sort       []frame.Column
	SortBy     []frame.Option
	Bulk       frame.Menu
	Picks      *frame.PickBar
	Pager      frame.Pager
	Empty      bool
}

// Pods lists the pods, with why each does not do what it should.
func Pods(a *frame.Request) (frame.Page, error) {
	text, namespace, status, owner := strings.TrimSpace(a.Query("q")), a.Query("namespace"), a.Query("status"),
		a.Query("owner")
	d := podsData{Search: text, Owner: owner, Statuses: frame.Options(status, frame.PodStatuses...),
		Namespaces: frame.NamespaceOptions(a, namespace), Empty: a.Len(state.Pods) == 0}
	found := findPods(a)
	filter := url.Values{"q": {text}, "namespace": {namespace}, "status": {status}, "owner": {owner}}
	if d.Wrong = a.WrongSearch(state.Pods); d.Wrong == "" {
		d.Bulk = frame.BulkMenu(a, state.Pods, len(found), filter)
	}
	d.Sort = frame.SortLinks(a, filter, podOrders)
	d.SortBy = frame.SortOptions(a, podOrders)
	filter.Set("sort", a.Query("sort"))
	from, to, pager := frame.PageOf(a, len(found), filter)
	d.Pager = pager
	reasons := map[string]string{} // why pods have no node, by owner
	for _, p := range found[from:to] {
		r := PodRowOf(a, p)
		if finding.PodFault(a.Snapshot, p, a.Now).Cause == diagnose.CannotBePlaced && finding.WaitsForNode(p) {
			r.Why = unplacedWhy(a, p, r, reasons)
		}
		r.Pick = a.Pick(p)
		d.Rows = append(d.Rows, r)
	}
	if d.Picks = frame.PickBarOf(a, filter, len(found), len(d.Rows), state.Pods); d.Picks != nil {
		d.Sort = append([]frame.Column{{All: true}}, d.Sort...)
	}
	return frame.Page{Template: "pods", Title: "Pods", Watch: []string{"pods", "nodes"}, Data: d}, nil
}

// unplacedWhy says in a few words why a pod has no node. Pods of one owner have one reason; of too many
// owners the scheduler's text is shown, because each explanation checks every node.
func unplacedWhy(a *frame.Request, p *corev1.Pod, r PodRow, known map[string]string) string {
	key := p.Namespace + "/" + cmp.Or(r.Owner, p.Name)
	if known[key] == "" {
		if len(known) == finding.MostExplained {
			return r.Why
		}
		why := finding.ShortReason(a.Snapshot, p, a.Now)
		if why == finding.SoonPlaced {
			return r.Why // the scheduler has not seen the change yet
		}
		known[key] = format.Capital(why) + "."
	}
	return known[key]
}

// findPods returns the pods under the query's filter, in its order.
func findPods(a *frame.Request) (found []*corev1.Pod) {
	q, owner := a.Searched(search.Pods), a.Query("owner")
	match := podFinder.Matcher(a, q)
	for p := range a.Pods(cmp.Or(a.Query("namespace"), q.Exact("namespace"))) {
		if match(p) && (owner == "" || frame.OwnerOf(a.Snapshot, p) == owner) && PodHasStatus(a, p, a.Query("status")) {
			found = append(found, p)
		}
	}
	frame.Sort(a, found, podOrders)
	return found
}

// podOrders are the columns by which pods can be sorted.
var podOrders = []frame.Sorter[*corev1.Pod]{
	{Name: "name", Title: "Pod", By: nil},
	{Name: "status", Title: "Status", By: func(a *frame.Request) func(x, y *corev1.Pod) int {
		return frame.ByRank(func(p *corev1.Pod) string {
			return cmp.Or(finding.PillKind(finding.PodFault(a.Snapshot, p, a.Now)), quietKind(p, a.Now))
		})
	}},
	{Name: "", Title: "Ready", By: nil},
	{Name: "restarts", Title: "Restarts", By: func(*frame.Request) func(x, y *corev1.Pod) int {
		return func(x, y *corev1.Pod) int { return cmp.Compare(restarts(y), restarts(x)) }
	}},
	{Name: "node", Title: "Node", By: func(*frame.Request) func(x, y *corev1.Pod) int {
		return func(x, y *corev1.Pod) int { return cmp.Compare(x.Spec.NodeName, y.Spec.NodeName) }
	}},
	{Name: "age", Title: "Age", By: func(*frame.Request) func(x, y *corev1.Pod) int {
		return func(x, y *corev1.Pod) int { return y.CreationTimestamp.Compare(x.CreationTimestamp.Time) }
	}},
}

func restarts(p *corev1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

// PodHasStatus tells whether a pod matches a status of the filter.
func PodHasStatus(a *frame.Request, p *corev1.Pod, status string) bool {
	switch status {
	case "attention":
		f := finding.PodFault(a.Snapshot, p, a.Now)
		return f.Cause != "" && !diagnose.RuleOf(f.Cause).Alone
	case "pending":
		return p.Status.Phase == corev1.PodPending || p.Status.Phase == ""
	case "running":
		return p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil
	case "failed":
		return p.Status.Phase == corev1.PodFailed
	case "succeeded":
		return p.Status.Phase == corev1.PodSucceeded
	case "terminating":
		return p.DeletionTimestamp != nil
	}
	return true
}

// PodRowOf is the row of a pod.
func PodRowOf(a *frame.Request, p *corev1.Pod) PodRow {
	r := PodRow{
		Name: p.Name, Namespace: p.Namespace, Href: frame.PodHref(p), podLine: podLineOf(p, a.Now),
		Node:  p.Spec.NodeName,
		Owner: frame.OwnerOf(a.Snapshot, p), Age: format.MomentOf(p.CreationTimestamp.Time, a.Now),
	}
	if r.Node != "" {
		r.NodeHref = frame.NodeHref(r.Node)
		if n := a.Node(r.Node); n != nil {
			r.Site = state.SiteOf(n)
		}
	}
	f := finding.PodFault(a.Snapshot, p, a.Now)
	r.Why, r.Pill.Kind = finding.PodWhy(a.Snapshot, p, f), finding.PillKind(f)
	r.Pill.Text = r.Status
	if f.Cause == diagnose.NodeDark { // the row has the node's name beside it
		r.Why, r.Pill.Text = "", "Node silent"
	}
	if lacks, ok := strings.CutPrefix(r.Status, "OutOf"); ok { // OutOfmemory: the device refused it
		r.Pill.Text = "No room: " + lacks
	}
	if r.Pill.Kind == "" {
		r.Pill.Kind = quietKind(p, a.Now)
	}
	return r
}

// quietKind is the pill's kind of a pod without trouble.
func quietKind(p *corev1.Pod, now time.Time) string {
	ready := state.PodCondition(p, corev1.PodReady)
	if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && ready != nil &&
		ready.Status == corev1.ConditionTrue {
		return "ok"
	}
	return "idle"
}

// A podLine has a pod's columns as kubectl shows them.
type podLine struct{ Ready, Status, Restarts string }

func podLineOf(p *corev1.Pod, now time.Time) podLine {
	row := table.For(state.Pods, []state.Object{p},
		table.Options{Include: metav1.IncludeNone, NoHeaders: true, Now: now}).Rows[0].Cells
	return podLine{fmt.Sprint(row[1]), fmt.Sprint(row[2]), fmt.Sprint(row[3])}
}
