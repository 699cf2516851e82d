package admin

import (
	"cmp"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

// A podRow is all that its row shows: those that are equal look alike, see look.row.
type podRow struct {
	Name, Namespace, Href string
	Pick                  string
	podLine
	Pill           pill
	Why            string
	Node, NodeHref string
	Site           string
	Owner          string
	Age            moment
}

var _ map[podRow]bool // a row is kept by what it shows: it can be compared

func (r podRow) lasting() any {
	r.Age = r.Age.lasting()
	return r
}

type podsData struct {
	Search     string
	Wrong      string // what is not understood of the search
	Namespaces []option
	Statuses   []option
	Owner      string
	Rows       []podRow
	Sort       []column
	SortBy     []option
	Bulk       menu
	Picks      *pickBar
	Pager      pager
	Empty      bool
}

// podHref is the page of a pod.
func podHref(p *corev1.Pod) string { return podPath(p.Namespace, p.Name) }

// podPath is the page of the pod of that name.
func podPath(namespace, name string) string {
	return "/pods/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// podStatuses are what the list of pods can be filtered by.
var podStatuses = [][2]string{
	{"", "Any status"}, {"attention", "Needs attention"}, {"pending", "Pending"}, {"running", "Running"}, {"failed", "Failed"},
	{"succeeded", "Succeeded"}, {"terminating", "Terminating"},
}

// pods lists the pods, with why one does not do what it should.
func pods(a *request) (page, error) {
	text, namespace, status, owner := strings.TrimSpace(a.query("q")), a.query("namespace"), a.query("status"), a.query("owner")
	d := podsData{Search: text, Owner: owner, Statuses: options(status, podStatuses...), Namespaces: namespaceOptions(a, namespace), Empty: a.Len(state.Pods) == 0}
	found := findPods(a)
	filter := url.Values{"q": {text}, "namespace": {namespace}, "status": {status}, "owner": {owner}}
	if d.Wrong = a.wrongSearch(state.Pods); d.Wrong == "" {
		d.Bulk = bulk(a, state.Pods, len(found), filter)
	}
	d.Sort = sortLinks(a, filter, podOrders)
	d.SortBy = sortOptions(a, podOrders)
	filter.Set("sort", a.query("sort"))
	from, to, pager := pageOf(a, len(found), filter)
	d.Pager = pager
	for _, p := range found[from:to] {
		r := podRowOf(a, p)
		r.Pick = a.pick(p)
		d.Rows = append(d.Rows, r)
	}
	if d.Picks = pickBarOf(a, filter, len(found), len(d.Rows), state.Pods); d.Picks != nil {
		d.Sort = append([]column{{All: true}}, d.Sort...)
	}
	return page{Template: "pods", Title: "Pods", Watch: []string{"pods", "nodes"}, Data: d}, nil
}

// findPods returns the pods that the query is about, in its order.
func findPods(a *request) (found []*corev1.Pod) {
	q, owner := a.searched(search.Pods), a.query("owner")
	match := podFinder.matcher(a, q)
	for p := range a.Pods(cmp.Or(a.query("namespace"), q.Exact("namespace"))) {
		if match(p) && (owner == "" || ownerOf(a.Snapshot, p) == owner) && podHasStatus(a, p, a.query("status")) {
			found = append(found, p)
		}
	}
	order(a, found, podOrders)
	return found
}

// podOrders are what a list of pods can be sorted by.
var podOrders = []sorter[*corev1.Pod]{
	{"name", "Pod", nil},
	{"status", "Status", func(a *request) func(x, y *corev1.Pod) int {
		return byRank(func(p *corev1.Pod) string {
			return cmp.Or(kindOf(faultOf(a.Snapshot, p, a.now)), quietKind(p, a.now))
		})
	}},
	{"", "Ready", nil},
	{"restarts", "Restarts", func(*request) func(x, y *corev1.Pod) int {
		return func(x, y *corev1.Pod) int { return cmp.Compare(restarts(y), restarts(x)) }
	}},
	{"node", "Node", func(*request) func(x, y *corev1.Pod) int {
		return func(x, y *corev1.Pod) int { return cmp.Compare(x.Spec.NodeName, y.Spec.NodeName) }
	}},
	{"age", "Age", func(*request) func(x, y *corev1.Pod) int {
		return func(x, y *corev1.Pod) int { return y.CreationTimestamp.Compare(x.CreationTimestamp.Time) }
	}},
}

func restarts(p *corev1.Pod) (n int32) {
	for _, c := range p.Status.ContainerStatuses {
		n += c.RestartCount
	}
	return n
}

// podHasStatus tells whether a pod has a status of the list of pods.
func podHasStatus(a *request, p *corev1.Pod, status string) bool {
	switch status {
	case "attention":
		f := faultOf(a.Snapshot, p, a.now)
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

// podRowOf is the row of a pod.
func podRowOf(a *request, p *corev1.Pod) podRow {
	r := podRow{
		Name: p.Name, Namespace: p.Namespace, Href: podHref(p), podLine: podLineOf(p, a.now), Node: p.Spec.NodeName,
		Owner: ownerOf(a.Snapshot, p), Age: momentOf(p.CreationTimestamp.Time, a.now),
	}
	if r.Node != "" {
		r.NodeHref = nodeHref(r.Node)
		if n := a.Node(r.Node); n != nil {
			r.Site = state.SiteOf(n)
		}
	}
	r.Why, r.Pill.Kind = podTrouble(a.Snapshot, p, a.now)
	r.Pill.Text = r.Status
	if lacks, ok := strings.CutPrefix(r.Status, "OutOf"); ok { // the device refused it: OutOfmemory
		r.Pill.Text = "No room: " + lacks
	}
	if r.Pill.Kind == "" {
		r.Pill.Kind = quietKind(p, a.now)
	}
	return r
}

// quietKind is the shape of a pod that needs no attention.
func quietKind(p *corev1.Pod, now time.Time) string {
	ready := state.PodCondition(p, corev1.PodReady)
	if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && ready != nil && ready.Status == corev1.ConditionTrue {
		return "ok"
	}
	return "idle"
}

// ownerOf names what a pod belongs to: its deployment rather than the replica set
// between them.
func ownerOf(s state.Snapshot, p *corev1.Pod) string {
	ref := metav1.GetControllerOf(p)
	if ref == nil {
		return ""
	}
	if ref.Kind == "ReplicaSet" {
		if rs := s.ByUID(ref.UID); rs != nil {
			if up := metav1.GetControllerOf(rs); up != nil {
				ref = up
			}
		}
	}
	return strings.ToLower(ref.Kind) + "/" + ref.Name
}

// namespaceOptions are the namespaces that a list can be filtered by.
func namespaceOptions(a *request, chosen string) []option {
	o := []option{{"", "All namespaces", chosen == ""}}
	for ns := range a.All(state.Namespaces, "") {
		o = append(o, option{ns.GetName(), ns.GetName(), ns.GetName() == chosen})
	}
	return withChosen(o, chosen)
}
