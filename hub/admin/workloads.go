package admin

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

type workloadRow struct {
	Name, Namespace, Href string
	Pick                  string
	Pill                  pill
	Ready, Wanted         int32
	Updated, Available    int32
	Why                   string
	Cause                 cause
	told                  string // the condition whose message Why is, if it is one's
	Images                string
	Age                   *moment
}

// A workloadSection is the workloads of one kind in their list.
type workloadSection struct {
	Key, Title, Note string
	Found            int // on all pages
	Bulk             menu
	Rows             []workloadRow
	CronJobs         []cronJobRow
	Jobs             []taskRow
}

type workloadsData struct {
	Search, Wrong        string
	Namespaces, Statuses []option
	Sections             []workloadSection
	Picks                *pickBar
	Pager                pager
	Empty                bool
	PasteHref            string
}

// workloadStatuses are what the list of workloads can be filtered by.
var workloadStatuses = [][2]string{
	{"", "Any status"}, {"attention", "Needs attention"}, {"complete", "Complete"}, {"paused", "Paused or suspended"},
}

// workloads lists what should run.
func workloads(a *request) (page, error) {
	text, namespace, status := strings.TrimSpace(a.query("q")), a.query("namespace"), a.query("status")
	d := workloadsData{
		Search: text, Wrong: a.wrongSearch(state.Deployments), Namespaces: namespaceOptions(a, namespace), Statuses: options(status, workloadStatuses...), Empty: true,
	}
	if a.may("update", "deployments") {
		d.PasteHref = "/yaml"
	}
	filter := url.Values{"q": {text}, "namespace": {namespace}, "status": {status}}
	found := map[state.Kind][]state.Object{}
	var pickable []state.Kind
	total, picks := 0, 0
	for _, l := range listedWorkloads {
		found[l.kind] = findWorkloads(a, l.kind)
		d.Empty = d.Empty && a.Len(l.kind) == 0
		total += len(found[l.kind])
		if slices.ContainsFunc(a.actions, func(act *action) bool { return act.kind == l.kind }) {
			pickable = append(pickable, l.kind)
			picks += len(found[l.kind])
		}
	}
	d.Picks = pickBarOf(a, filter, picks, picks, pickable...)
	because := &causes{request: a}
	var at rowsAt
	at.from, at.to, d.Pager = pageOf(a, total, filter)
	for _, l := range listedWorkloads {
		s := workloadSection{Key: string(l.kind), Title: l.title, Note: l.note, Found: len(found[l.kind])}
		if d.Wrong == "" {
			s.Bulk = bulk(a, l.kind, s.Found, filter)
		}
		for _, o := range onPage(&at, found[l.kind]) {
			s.add(a, because, o)
		}
		if len(s.Rows)+len(s.CronJobs)+len(s.Jobs) > 0 {
			d.Sections = append(d.Sections, s)
		}
	}
	return page{Template: "workloads", Title: "Workloads", Watch: []string{"workloads"}, Poll: 10, Data: d}, nil
}

func (s *workloadSection) add(a *request, because *causes, o state.Object) {
	switch o := o.(type) {
	case *batchv1.CronJob:
		r := cronJobRowOf(o, a.now)
		r.Pick, r.Menu = a.pick(o), rowMenu(a, o)
		s.CronJobs = append(s.CronJobs, r)
	case *batchv1.Job:
		r := taskRowOf(o, a.now)
		if r.Pick, r.Menu = a.pick(o), rowMenu(a, o); r.Pill.troubled() {
			r.Cause = because.of(o)
		}
		s.Jobs = append(s.Jobs, r)
	default:
		r := workloadRowOf(o, a.now)
		if r.Pill.troubled() {
			r.Cause = because.of(o)
		} else {
			r = quietened(r, podsOf(a.Snapshot, o), a.now)
		}
		r.Pick = a.pick(o)
		s.Rows = append(s.Rows, r)
	}
}

// A rowsAt is the part of a list that a page shows, counted from where one is in it.
type rowsAt struct{ from, to int }

// onPage returns what the page shows of the kind that comes next in the list, and goes on
// behind it.
func onPage[T any](at *rowsAt, next []T) []T {
	n := len(next)
	from, to := min(max(at.from, 0), n), min(max(at.to, 0), n)
	at.from, at.to = at.from-n, at.to-n
	return next[from:to]
}

// findWorkloads returns the workloads of a kind that the query is about: of a Deployment's
// ReplicaSets the Deployment tells.
func findWorkloads(a *request, kind state.Kind) (found []state.Object) {
	match := workloadFinder.matcher(a, a.searched(search.Workloads))
	for o := range a.All(kind, a.query("namespace")) {
		if isListed(o) && match(o) && workloadHasStatus(a, o, a.query("status")) {
			found = append(found, o)
		}
	}
	if kind == state.Jobs {
		newestFirstOf(found)
	}
	return found
}

// isListed tells whether a workload is one that people know.
func isListed(o state.Object) bool {
	return state.KindOf(o) != state.ReplicaSets || diagnose.IsKnown(o)
}

func workloadHasStatus(a *request, o state.Object, status string) bool {
	if status == "" {
		return true
	}
	p := workloadPill(o, a.now)
	switch status {
	case "attention":
		return p.troubled()
	case "complete":
		return p.Kind == "ok"
	case "paused":
		d, ok := o.(*appsv1.Deployment)
		return p.Text == "Suspended" || ok && d.Spec.Paused
	}
	return true
}

func workloadPill(o state.Object, now time.Time) pill {
	switch o := o.(type) {
	case *batchv1.Job:
		return taskRowOf(o, now).Pill
	case *batchv1.CronJob:
		return cronJobRowOf(o, now).Pill
	}
	return workloadRowOf(o, now).Pill
}

// workloadHref is the page of a workload.
func workloadHref(kind state.Kind, namespace, name string) string {
	return "/workloads/" + string(kind) + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

// ownerHref is the list of the pods of an owner.
func ownerHref(namespace, kind, name string) string {
	return "/pods?" + url.Values{"namespace": {namespace}, "owner": {kind + "/" + name}}.Encode()
}

// stages are the shapes of how far a workload is.
var stages = map[diagnose.Stage]string{
	diagnose.Complete: "ok", diagnose.None: "idle", diagnose.Paused: "idle", diagnose.Incomplete: "warn",
	diagnose.RollingOut: "warn", diagnose.ScalingDown: "warn", diagnose.Stuck: "bad",
}

// workloadRowOf is the row of a workload that keeps its pods running.
func workloadRowOf(o state.Object, now time.Time) workloadRow {
	p, kind := diagnose.ProgressOf(o), state.KindOf(o)
	r := workloadRow{
		Name: o.GetName(), Namespace: o.GetNamespace(), Ready: p.Ready, Wanted: p.Wanted, Updated: p.Updated, Available: p.Available,
		Images: images(state.PodSpecOf(o)), Age: at(o.GetCreationTimestamp().Time, now), Pill: pill{stages[p.Stage], string(p.Stage)},
	}
	if hasPage(kind) {
		r.Href = workloadHref(kind, r.Namespace, r.Name)
	} else {
		r.Href = ownerHref(r.Namespace, strings.ToLower(kind.Row().Name), r.Name)
	}
	switch p.Stage {
	case diagnose.None:
		if r.Pill.Text = "Scaled to none"; kind == state.DaemonSets {
			r.Pill.Text = "On no node"
		}
	case diagnose.Stuck:
		r.Why, r.told = p.Message, p.Condition
	case diagnose.Incomplete:
		r.Why = fmt.Sprintf("%d of %d pods are available.", p.Available, p.Wanted)
	case diagnose.ScalingDown:
		r.Why = fmt.Sprintf("%d pods are still to go.", p.Extra)
	case diagnose.RollingOut:
		r.Why = fmt.Sprintf("%d of %d pods are of the newest version.", p.Updated, p.Target)
		if p.Extra > 0 && p.Updated >= p.Target && p.Available >= p.Wanted {
			r.Why = fmt.Sprintf("%d old pods are still to go.", p.Extra)
		}
	}
	return r
}

func images(s *corev1.PodSpec) string {
	var list []string
	for _, c := range s.Containers {
		list = append(list, c.Image)
	}
	return strings.Join(list, ", ")
}

// workloadListings are the lists of pods, and of each kind that makes them.
var workloadListings = func() map[state.Kind]listing {
	all := map[state.Kind]listing{state.Pods: {
		found: func(a *request) []state.Object { return objects(findPods(a)) },
		pill:  func(a *request, o state.Object) pill { return podRowOf(a, o.(*corev1.Pod)).Pill },
		where: func(_ *request, o state.Object) string { return o.(*corev1.Pod).Spec.NodeName },
	}}
	for _, l := range listedWorkloads {
		all[l.kind] = listing{
			found: func(a *request) []state.Object { return findWorkloads(a, l.kind) },
			pill:  func(a *request, o state.Object) pill { return workloadPill(o, a.now) },
		}
	}
	return all
}()
