package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

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
	told                  appsv1.DeploymentConditionType // whose message Why is, if it is one's
	Images                string
	Age                   *moment
}

type workloadsData struct {
	Search, Wrong        string
	Namespaces, Statuses []option
	Deployments          []workloadRow
	DaemonSets           []workloadRow
	StatefulSets         []workloadRow
	ReplicaSets          []workloadRow
	CronJobs             []cronJobRow
	Jobs                 []taskRow
	Found                struct{ Deployments, DaemonSets, StatefulSets, ReplicaSets, CronJobs, Jobs int } // on all pages
	DeploymentBulk       menu
	DaemonSetBulk        menu
	StatefulSetBulk      menu
	CronJobBulk, JobBulk menu
	Picks                *pickBar
	Pager                pager
	Empty                bool
	PasteHref            string
}

var workloadStatuses = [][2]string{
	{"", "Any status"}, {"attention", "Needs attention"}, {"complete", "Complete"}, {"paused", "Paused or suspended"},
}

// workloads lists what should run: deployments, stateful sets, daemon sets, cron jobs and jobs.
func workloads(a *request) (page, error) {
	text, namespace, status := strings.TrimSpace(a.query("q")), a.query("namespace"), a.query("status")
	d := workloadsData{
		Search: text, Wrong: a.wrongSearch(state.Deployments), Namespaces: namespaceOptions(a, namespace), Statuses: options(status, workloadStatuses...),
		Empty: a.Len(state.Deployments)+a.Len(state.DaemonSets)+a.Len(state.StatefulSets)+a.Len(state.ReplicaSets)+a.Len(state.Jobs)+a.Len(state.CronJobs) == 0,
	}
	if a.may("update", "deployments") {
		d.PasteHref = "/yaml"
	}
	because := &causes{request: a}
	row := func(o state.Object, r workloadRow) workloadRow {
		if r.Pill.troubled() {
			r.Cause = because.of(o)
		}
		return r
	}
	deployments, daemonSets, statefulSets := findWorkloads[*appsv1.Deployment](a, state.Deployments), findWorkloads[*appsv1.DaemonSet](a, state.DaemonSets), findWorkloads[*appsv1.StatefulSet](a, state.StatefulSets)
	replicaSets := bareReplicaSets(findWorkloads[*appsv1.ReplicaSet](a, state.ReplicaSets))
	cronJobs, jobs := findWorkloads[*batchv1.CronJob](a, state.CronJobs), findWorkloads[*batchv1.Job](a, state.Jobs)
	newestJobsFirst(jobs)
	n := &d.Found
	n.Deployments, n.DaemonSets, n.StatefulSets, n.ReplicaSets, n.CronJobs, n.Jobs = len(deployments), len(daemonSets), len(statefulSets), len(replicaSets), len(cronJobs), len(jobs)
	filter := url.Values{"q": {text}, "namespace": {namespace}, "status": {status}}
	if d.Wrong == "" {
		d.DeploymentBulk, d.DaemonSetBulk = bulk(a, state.Deployments, n.Deployments, filter), bulk(a, state.DaemonSets, n.DaemonSets, filter)
		d.StatefulSetBulk = bulk(a, state.StatefulSets, n.StatefulSets, filter)
		d.CronJobBulk, d.JobBulk = bulk(a, state.CronJobs, n.CronJobs, filter), bulk(a, state.Jobs, n.Jobs, filter)
	}
	pickable := n.Deployments + n.DaemonSets + n.StatefulSets + n.CronJobs + n.Jobs
	d.Picks = pickBarOf(a, filter, pickable, pickable, state.Deployments, state.DaemonSets, state.StatefulSets, state.CronJobs, state.Jobs)

	var at rowsAt
	at.from, at.to, d.Pager = pageOf(a, pickable+n.ReplicaSets, filter)
	for _, o := range onPage(&at, deployments) {
		r := row(o, deploymentRow(o, a.now))
		r.Pick = a.pick(o)
		d.Deployments = append(d.Deployments, r)
	}
	for _, o := range onPage(&at, daemonSets) {
		r := row(o, daemonSetRow(o, a.now))
		r.Pick = a.pick(o)
		d.DaemonSets = append(d.DaemonSets, r)
	}
	for _, o := range onPage(&at, statefulSets) {
		r := row(o, statefulSetRow(o, a.now))
		r.Pick = a.pick(o)
		d.StatefulSets = append(d.StatefulSets, r)
	}
	for _, o := range onPage(&at, replicaSets) {
		d.ReplicaSets = append(d.ReplicaSets, row(o, replicaSetRow(o, a.now)))
	}
	for _, o := range onPage(&at, cronJobs) {
		r := cronJobRowOf(o, a.now)
		r.Pick, r.Menu = a.pick(o), rowMenu(a, o)
		d.CronJobs = append(d.CronJobs, r)
	}
	for _, o := range onPage(&at, jobs) {
		r := taskRowOf(o, a.now)
		r.Pick, r.Menu = a.pick(o), rowMenu(a, o)
		if r.Pill.troubled() {
			r.Cause = because.of(o)
		}
		d.Jobs = append(d.Jobs, r)
	}
	return page{Template: "workloads", Title: "Workloads", Watch: []string{"workloads"}, Poll: 10, Data: d}, nil
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

// findWorkloads returns the workloads of a kind that the query is about.
func findWorkloads[T state.Object](a *request, kind state.Kind) (found []T) {
	match := workloadFinder.matcher(a, a.searched(search.Workloads))
	for o := range state.Each[T](a.Snapshot, kind, a.query("namespace")) {
		if match(o) && workloadHasStatus(a, o, a.query("status")) {
			found = append(found, o)
		}
	}
	return found
}

func workloadHasStatus(a *request, o state.Object, status string) bool {
	if status == "" {
		return true
	}
	p := pillOf(o, a.now)
	switch status {
	case "attention":
		return p.Kind == "bad" || p.Kind == "warn"
	case "complete":
		return p.Kind == "ok"
	case "paused":
		return p.Text == "Paused" || p.Text == "Suspended"
	}
	return true
}

func pillOf(o state.Object, now time.Time) pill {
	switch o := o.(type) {
	case *batchv1.Job:
		return taskRowOf(o, now).Pill
	case *batchv1.CronJob:
		return cronJobRowOf(o, now).Pill
	case *appsv1.StatefulSet:
		return statefulSetRow(o, now).Pill
	case *appsv1.ReplicaSet:
		return replicaSetRow(o, now).Pill
	case *appsv1.Deployment:
		if o.Spec.Paused {
			return pill{"idle", "Paused"}
		}
	}
	return workloadRowOf(o, now).Pill
}

func workloadRowOf(o state.Object, now time.Time) workloadRow {
	switch o := o.(type) {
	case *appsv1.DaemonSet:
		return daemonSetRow(o, now)
	case *appsv1.StatefulSet:
		return statefulSetRow(o, now)
	}
	return deploymentRow(o.(*appsv1.Deployment), now)
}

func workloadHref(kind state.Kind, namespace, name string) string {
	return "/workloads/" + string(kind) + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}

func ownerHref(namespace, kind, name string) string {
	return "/pods?" + url.Values{"namespace": {namespace}, "owner": {kind + "/" + name}}.Encode()
}

func deploymentRow(d *appsv1.Deployment, now time.Time) workloadRow {
	wanted := state.Replicas(d)
	st := d.Status
	r := workloadRow{
		Name: d.Name, Namespace: d.Namespace, Href: workloadHref(state.Deployments, d.Namespace, d.Name), Ready: st.ReadyReplicas, Wanted: wanted,
		Updated: st.UpdatedReplicas, Available: st.AvailableReplicas, Images: images(d.Spec.Template), Age: at(d.CreationTimestamp.Time, now), Pill: pill{"ok", "Complete"},
	}
	for _, c := range st.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse ||
			(string(c.Type) == string(state.PodUnreachable) || c.Type == appsv1.DeploymentReplicaFailure) && c.Status == corev1.ConditionTrue {
			r.Pill, r.Why, r.told = pill{"bad", "Stuck"}, cmp.Or(c.Message, c.Reason), c.Type
			return r
		}
	}
	switch {
	case d.Spec.Paused:
		r.Pill = pill{"idle", "Paused"}
	case wanted == 0 && st.Replicas == 0:
		r.Pill = pill{"idle", "Scaled to none"}
	case st.ObservedGeneration < d.Generation || st.UpdatedReplicas < wanted:
		r.Pill, r.Why = pill{"warn", "Rolling out"}, fmt.Sprintf("%d of %d pods are of the newest version.", st.UpdatedReplicas, wanted)
	case st.AvailableReplicas < wanted:
		r.Pill, r.Why = pill{"warn", "Incomplete"}, fmt.Sprintf("%d of %d pods are available.", st.AvailableReplicas, wanted)
	case st.Replicas > wanted:
		r.Pill, r.Why = pill{"warn", "Rolling out"}, fmt.Sprintf("%d old pods are still to go.", st.Replicas-wanted)
	}
	return r
}

func daemonSetRow(d *appsv1.DaemonSet, now time.Time) workloadRow {
	st := d.Status
	r := workloadRow{
		Name: d.Name, Namespace: d.Namespace, Href: workloadHref(state.DaemonSets, d.Namespace, d.Name), Ready: st.NumberReady, Wanted: st.DesiredNumberScheduled,
		Updated: st.UpdatedNumberScheduled, Available: st.NumberAvailable, Images: images(d.Spec.Template), Age: at(d.CreationTimestamp.Time, now), Pill: pill{"ok", "Complete"},
	}
	switch {
	case st.DesiredNumberScheduled == 0:
		r.Pill = pill{"idle", "On no node"}
	case st.UpdatedNumberScheduled < st.DesiredNumberScheduled:
		r.Pill, r.Why = pill{"warn", "Rolling out"}, fmt.Sprintf("%d of %d pods are of the newest version.", st.UpdatedNumberScheduled, st.DesiredNumberScheduled)
	case st.NumberAvailable < st.DesiredNumberScheduled:
		r.Pill, r.Why = pill{"warn", "Incomplete"}, fmt.Sprintf("%d of %d pods are available.", st.NumberAvailable, st.DesiredNumberScheduled)
	}
	return r
}

func statefulSetRow(s *appsv1.StatefulSet, now time.Time) workloadRow {
	wanted := state.Replicas(s)
	st := s.Status
	r := workloadRow{
		Name: s.Name, Namespace: s.Namespace, Href: workloadHref(state.StatefulSets, s.Namespace, s.Name), Ready: st.ReadyReplicas, Wanted: wanted,
		Updated: st.UpdatedReplicas, Available: st.AvailableReplicas, Images: images(s.Spec.Template), Age: at(s.CreationTimestamp.Time, now), Pill: pill{"ok", "Complete"},
	}
	from := int32(0)
	if u := s.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil {
		from = min(*u.Partition, wanted)
	}
	for _, c := range st.Conditions {
		if (c.Type == state.PodUnreachable || c.Type == state.RolloutBlocked || string(c.Type) == string(appsv1.ReplicaSetReplicaFailure)) && c.Status == corev1.ConditionTrue {
			r.Pill, r.Why = pill{"bad", "Stuck"}, cmp.Or(c.Message, c.Reason)
			return r
		}
	}
	switch {
	case wanted == 0 && st.Replicas == 0:
		r.Pill = pill{"idle", "Scaled to none"}
	case st.AvailableReplicas < wanted:
		r.Pill, r.Why = pill{"warn", "Incomplete"}, fmt.Sprintf("%d of %d pods are available.", st.AvailableReplicas, wanted)
	case st.ObservedGeneration < s.Generation || st.UpdatedReplicas < wanted-from && s.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType:
		r.Pill, r.Why = pill{"warn", "Rolling out"}, fmt.Sprintf("%d of %d pods are of the newest version.", st.UpdatedReplicas, wanted-from)
	case st.Replicas > wanted:
		r.Pill, r.Why = pill{"warn", "Scaling down"}, fmt.Sprintf("%d pods are still to go.", st.Replicas-wanted)
	}
	return r
}

func images(t corev1.PodTemplateSpec) string {
	var list []string
	for _, c := range t.Spec.Containers {
		list = append(list, c.Image)
	}
	return strings.Join(list, ", ")
}
