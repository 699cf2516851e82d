package workloads

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

var workloadFinder = frame.Finder[state.Object]{List: search.Workloads,
	Has: map[string]func(*frame.Request, search.Term) frame.Match[state.Object]{
		"":          frame.Key(func(o state.Object, t search.Term) bool { return t.In(o.GetName()) }),
		"namespace": frame.Key(func(o state.Object, t search.Term) bool { return t.Is(o.GetNamespace()) }),
		"label":     frame.Key(func(o state.Object, t search.Term) bool { return t.Has(o.GetLabels()) }),
		"image": frame.Key(func(o state.Object,
			t search.Term) bool {
			return frame.HasImage(t, state.PodSpecOf(o))
		}),
		"condition": frame.Key(func(o state.Object, t search.Term) bool {
			return slices.ContainsFunc(diagnose.Conditions(o),
				func(c diagnose.Condition) bool { return frame.IsCondition(t, c.Type, string(c.Status)) })
		}),
		"owner": frame.Key(func(o state.Object, t search.Term) bool {
			ref := metav1.GetControllerOf(o)
			return ref != nil && frame.IsOwner(t, strings.ToLower(ref.Kind)+"/"+ref.Name)
		}),
		"status": func(a *frame.Request, t search.Term) frame.Match[state.Object] {
			return frame.OfStatus(frame.WorkloadStatuses, t,
				func(o state.Object, status string) bool { return workloadHasStatus(a, o, status) })
		},
	}}

type workloadRow struct {
	Name, Namespace, Href string
	Pick                  string
	Pill                  frame.Pill
	Ready, Wanted         int32
	Updated, Available    int32
	Why                   string
	Cause                 cause
	told                  string // the condition whose message is Why, if any
	Images                string
	Age                   *format.Moment
}

// A workloadSection is the workloads of one kind in their list.
type workloadSection struct {
	Key, Title, Note string
	Found            int // number on all pages
	Bulk             frame.Menu
	Rows             []workloadRow
	CronJobs         []cronJobRow
	Jobs             []taskRow
}

type workloadsData struct {
	Search, Wrong        string
	Namespaces, Statuses []frame.Option
	Sections             []workloadSection
	Picks                *frame.PickBar
	Pager                frame.Pager
	Empty                bool
	Bare                 int // pods without a workload; 0 under a search
	PasteHref            string
}

// List lists the workloads.
func List(a *frame.Request) (frame.Page, error) {
	text, namespace, status := strings.TrimSpace(a.Query("q")), a.Query("namespace"), a.Query("status")
	d := workloadsData{
		Search: text, Wrong: a.WrongSearch(state.Deployments), Namespaces: frame.NamespaceOptions(a, namespace),
		Statuses: frame.Options(status, frame.WorkloadStatuses...), Empty: true,
	}
	if a.May("update", "deployments") {
		d.PasteHref = "/yaml"
	}
	filter := url.Values{"q": {text}, "namespace": {namespace}, "status": {status}}
	found := map[state.Kind][]state.Object{}
	var pickable []state.Kind
	total, picks := 0, 0
	for _, l := range frame.ListedWorkloads {
		found[l.Kind] = findWorkloads(a, l.Kind)
		d.Empty = d.Empty && a.Len(l.Kind) == 0
		total += len(found[l.Kind])
		if slices.ContainsFunc(a.Actions, func(act *frame.Action) bool { return act.Kind == l.Kind }) {
			pickable = append(pickable, l.Kind)
			picks += len(found[l.Kind])
		}
	}
	d.Picks = frame.PickBarOf(a, filter, picks, picks, pickable...)
	because := &causes{Request: a}
	var at rowsAt
	at.from, at.to, d.Pager = frame.PageOf(a, total, filter)
	for _, l := range frame.ListedWorkloads {
		s := workloadSection{Key: string(l.Kind), Title: l.Title, Note: l.Note, Found: len(found[l.Kind])}
		if d.Wrong == "" {
			s.Bulk = frame.BulkMenu(a, l.Kind, s.Found, filter)
		}
		for _, o := range onPage(&at, found[l.Kind]) {
			s.add(a, because, o)
		}
		if len(s.Rows)+len(s.CronJobs)+len(s.Jobs) > 0 {
			d.Sections = append(d.Sections, s)
		}
	}
	if text == "" && status == "" {
		for p := range a.Pods(namespace) {
			if metav1.GetControllerOfNoCopy(p) == nil {
				d.Bare++
			}
		}
	}
	return frame.Page{Template: "workloads", Title: "Workloads", Watch: []string{"workloads"}, Poll: 10, Data: d}, nil
}

func (s *workloadSection) add(a *frame.Request, because *causes, o state.Object) {
	switch o := o.(type) {
	case *batchv1.CronJob:
		r := cronJobRowOf(o, a.Now)
		r.Pick, r.Menu = a.Pick(o), rowMenu(a, o)
		s.CronJobs = append(s.CronJobs, r)
	case *batchv1.Job:
		r := taskRowOf(o, a.Now)
		if r.Pick, r.Menu = a.Pick(o), rowMenu(a, o); r.Pill.Troubled() {
			r.Cause = because.of(o)
		}
		s.Jobs = append(s.Jobs, r)
	default:
		r := workloadRowOf(o, a.Now)
		if r.Pill.Troubled() {
			r.Cause = because.of(o)
		} else {
			r = quietened(r, podsOf(a.Snapshot, o), a.Now)
		}
		r.Pick = a.Pick(o)
		s.Rows = append(s.Rows, r)
	}
}

// A rowsAt is the range of rows that the page shows, counted from the first row of the next kind.
type rowsAt struct{ from, to int }

// onPage returns the rows of the next kind that the page shows, and moves the range past that kind.
func onPage[T any](at *rowsAt, next []T) []T {
	n := len(next)
	from, to := min(max(at.from, 0), n), min(max(at.to, 0), n)
	at.from, at.to = at.from-n, at.to-n
	return next[from:to]
}

// findWorkloads returns a kind's workloads under the query's filter, without the ReplicaSets of
// Deployments.
func findWorkloads(a *frame.Request, kind state.Kind) (found []state.Object) {
	match := workloadFinder.Matcher(a, a.Searched(search.Workloads))
	for o := range a.All(kind, a.Query("namespace")) {
		if frame.IsListed(o) && match(o) && workloadHasStatus(a, o, a.Query("status")) {
			found = append(found, o)
		}
	}
	if kind == state.Jobs {
		newestFirstOf(found)
	}
	return found
}

func workloadHasStatus(a *frame.Request, o state.Object, status string) bool {
	if status == "" {
		return true
	}
	p := workloadPill(o, a.Now)
	switch status {
	case "attention":
		return p.Troubled()
	case "complete":
		return p.Kind == "ok"
	case "paused":
		d, ok := o.(*appsv1.Deployment)
		return p.Text == "Suspended" || ok && d.Spec.Paused
	}
	return true
}

func workloadPill(o state.Object, now time.Time) frame.Pill {
	switch o := o.(type) {
	case *batchv1.Job:
		return taskRowOf(o, now).Pill
	case *batchv1.CronJob:
		return cronJobRowOf(o, now).Pill
	}
	return workloadRowOf(o, now).Pill
}

// stages are the pills' kinds of each stage.
var stages = map[diagnose.Stage]string{
	diagnose.Complete: "ok", diagnose.None: "idle", diagnose.Paused: "idle", diagnose.Incomplete: "warn",
	diagnose.RollingOut: "warn", diagnose.ScalingDown: "warn", diagnose.Stuck: "bad",
	diagnose.Running: "ok", diagnose.BackingOff: "warn", diagnose.GivingUp: "warn", diagnose.GaveUp: "bad",
	diagnose.Suspended: "idle", diagnose.Scheduled: "ok", diagnose.NeverDue: "warn",
}

// StagePill returns the pill of a stage.
func StagePill(s diagnose.Stage) frame.Pill { return frame.Pill{Kind: stages[s], Text: string(s)} }

// workloadRowOf is the row of a workload that keeps its pods running.
func workloadRowOf(o state.Object, now time.Time) workloadRow {
	p, kind := diagnose.ProgressOf(o), state.KindOf(o)
	r := workloadRow{
		Name: o.GetName(), Namespace: o.GetNamespace(), Ready: p.Ready, Wanted: p.Wanted, Updated: p.Updated,
		Available: p.Available,
		Images:    images(state.PodSpecOf(o)), Age: format.Time(o.GetCreationTimestamp().Time, now),
		Pill: StagePill(p.Stage),
	}
	if frame.HasPage(kind) {
		r.Href = frame.WorkloadHref(kind, r.Namespace, r.Name)
	} else {
		r.Href = frame.OwnerHref(r.Namespace, strings.ToLower(kind.Row().Name), r.Name)
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
		r.Why = fmt.Sprintf("%d pods have still to leave.", p.Extra)
	case diagnose.RollingOut:
		r.Why = fmt.Sprintf("%d of %d pods are of the newest version.", p.Updated, p.Target)
		if p.Extra > 0 && p.Updated >= p.Target && p.Available >= p.Wanted {
			r.Why = fmt.Sprintf("%d old pods have still to leave.", p.Extra)
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

// Listings are the lists of pods and of each kind of workload.
var Listings = func() map[state.Kind]frame.Listing {
	all := map[state.Kind]frame.Listing{state.Pods: {
		Found: func(a *frame.Request) []state.Object { return frame.Objects(findPods(a)) },
		Pill:  func(a *frame.Request, o state.Object) frame.Pill { return PodRowOf(a, o.(*corev1.Pod)).Pill },
		Where: func(_ *frame.Request, o state.Object) string { return o.(*corev1.Pod).Spec.NodeName },
		Sorts: frame.SortNames(podOrders),
	}}
	for _, l := range frame.ListedWorkloads {
		all[l.Kind] = frame.Listing{
			Found: func(a *frame.Request) []state.Object { return findWorkloads(a, l.Kind) },
			Pill:  func(a *frame.Request, o state.Object) frame.Pill { return workloadPill(o, a.Now) },
		}
	}
	return all
}()
