package workloads

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/changes"
	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

// few is how many names a line of the page has.
const few = 12

// maxPods bounds the pods on a workload's page; the list of pods shows all.
const maxPods = 50

type versionRow struct {
	Number  int
	Now     bool
	Pods    int32
	Ready   int32
	Images  string
	Name    string
	Created *format.Moment
}

type workloadData struct {
	workloadRow
	Kind       string
	Chain      []string
	Facts      []frame.Fact
	Conditions finding.ConditionRows
	Versions   []versionRow
	Pods       []PodRow
	AllPods    string
	PodCount   int
	Events     []frame.EventRow
	Labels     []frame.Fact
	Menu       frame.Menu
	Did        *frame.Done
	YAML       string
	Changes    changes.Shown
}

// Workload shows a Deployment, StatefulSet or DaemonSet: its desired and actual state, and why they
// differ.
func Workload(a *frame.Request) (frame.Page, error) {
	kind, namespace, name := state.Kind(a.Param("kind")), a.Param("namespace"), a.Param("name")
	if !frame.HasPage(kind) {
		return frame.Page{}, frame.MissingError("A workload is a deployment, a stateful set or a daemon set.")
	}
	o := a.Get(state.Key{Kind: kind, Namespace: namespace, Name: name})
	if o == nil {
		return frame.Page{}, frame.MissingError(fmt.Sprintf("There is no %s %s in namespace %s.", kindWord(kind), name,
			namespace))
	}
	d := workloadData{
		workloadRow: workloadRowOf(o, a.Now), Labels: frame.FactsOf(o.GetLabels()), Menu: frame.MenuOf(a, o),
		Did:     frame.JustDone(a),
		YAML:    "/yaml" + frame.ObjectURL(kind, namespace, name),
		AllPods: frame.OwnerHref(namespace, strings.TrimSuffix(string(kind), "s"), name),
	}
	about := kind.Row().Name
	switch o := o.(type) {
	case *appsv1.Deployment:
		d.Kind, d.Facts = "Deployment", told(deploymentFacts(o))
	case *appsv1.DaemonSet:
		d.Kind, d.Facts = "Daemon set", told(daemonSetFacts(o))
	case *appsv1.StatefulSet:
		d.Kind, d.Facts = "Stateful set", told(statefulSetFacts(o))
	}
	for _, c := range diagnose.Conditions(o) {
		d.Conditions = append(d.Conditions,
			finding.ConditionRow{Type: c.Type, Pill: frame.Pill{Kind: workConditionKind(c), Text: string(c.Status)},
				Reason: c.Reason, Message: c.Message, Since: format.Time(c.Since.Time, a.Now),
				Help: frame.HelpURL("conditions", about, c.Type)})
	}
	for i, v := range versionsOf(a.Snapshot, o) {
		if v.Pods == 0 && i > 10 {
			break
		}
		d.Versions = append(d.Versions, versionRow{v.Number, i == 0, v.Pods, v.Ready, images(&v.Template.Spec), v.Name,
			format.Time(v.Created, a.Now)})
	}
	pods := podsOf(a.Snapshot, o)
	d.workloadRow = quietened(d.workloadRow, pods, a.Now)
	d.PodCount, d.Chain = len(pods), workloadChain(a, o, pods)
	d.Pods = worstPods(a, pods)
	d.Changes = changes.Show(a, changes.Subject{Object: o, Pods: pods, Workloads: []state.Object{o}})
	for _, e := range frame.EventsOf(a.Snapshot, about, namespace, name) {
		if len(d.Events) == 20 {
			break
		}
		d.Events = append(d.Events, frame.EventRowOf(a, e))
	}
	return frame.Page{Template: "workload", Title: name, Watch: []string{"workloads"}, Poll: 10, Data: d}, nil
}

// told returns the facts that have a value.
func told(facts []frame.Fact) []frame.Fact {
	return slices.DeleteFunc(facts, func(f frame.Fact) bool { return f.Value == "" || f.Value == "<none>" })
}

func kindWord(k state.Kind) string {
	switch k {
	case state.DaemonSets:
		return "daemon set"
	case state.StatefulSets:
		return "stateful set"
	}
	return strings.TrimSuffix(string(k), "s")
}

// workConditionKind is the pill's kind of a workload's condition.
func workConditionKind(c diagnose.Condition) string {
	switch {
	case diagnose.IsStuck(c):
		return "bad"
	case c.Type == string(appsv1.DeploymentAvailable) && c.Status != corev1.ConditionTrue:
		return "warn"
	}
	return "ok"
}

func deploymentFacts(d *appsv1.Deployment) []frame.Fact {
	facts := []frame.Fact{
		{Name: "Namespace", Value: d.Namespace}, {Name: "Wanted", Value: format.Plural(int(state.Replicas(d)), "pod")},
		{Name: "Strategy", Value: string(d.Spec.Strategy.Type)},
		{Name: "Selector", Value: metav1.FormatLabelSelector(d.Spec.Selector)},
		{Name: "Created", Value: format.Stamp(d.CreationTimestamp.Time)},
	}
	if r := d.Spec.Strategy.RollingUpdate; r != nil && r.MaxSurge != nil && r.MaxUnavailable != nil {
		facts[2].Value += fmt.Sprintf(", %s more and %s fewer at a time", r.MaxSurge, r.MaxUnavailable)
	}
	if d.Spec.Paused {
		facts = append(facts, frame.Fact{Name: "Paused", Value: "changes are not rolled out"})
	}
	return facts
}

func daemonSetFacts(d *appsv1.DaemonSet) []frame.Fact {
	facts := []frame.Fact{
		{Name: "Namespace", Value: d.Namespace},
		{Name: "Wanted on", Value: format.Plural(int(d.Status.DesiredNumberScheduled), "node")},
		{Name: "Strategy", Value: string(d.Spec.UpdateStrategy.Type)},
		{Name: "Selector", Value: metav1.FormatLabelSelector(d.Spec.Selector)},
		{Name: "Created", Value: format.Stamp(d.CreationTimestamp.Time)},
	}
	if n := d.Status.NumberMisscheduled; n > 0 {
		facts = append(facts, frame.Fact{Name: "Where it should not be", Value: format.Plural(int(n), "node")})
	}
	return facts
}

func statefulSetFacts(s *appsv1.StatefulSet) []frame.Fact {
	facts := []frame.Fact{
		{Name: "Namespace", Value: s.Namespace}, {Name: "Wanted", Value: format.Plural(int(state.Replicas(s)), "pod")},
		{Name: "Started", Value: "one after the other"}, {Name: "Strategy", Value: string(s.Spec.UpdateStrategy.Type)},
		{Name: "Selector", Value: metav1.FormatLabelSelector(s.Spec.Selector)},
		{Name: "Created", Value: format.Stamp(s.CreationTimestamp.Time)},
	}
	if s.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		facts[2].Value = "all at once"
	}
	if u := s.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil && *u.Partition > 0 {
		facts[3].Value += fmt.Sprintf(", from pod %d on", *u.Partition)
	}
	for _, c := range s.Spec.VolumeClaimTemplates {
		q := c.Spec.Resources.Requests[corev1.ResourceStorage]
		facts = append(facts, frame.Fact{Name: "Claim of each pod",
			Value: strings.TrimSpace(c.Name + " " + q.String())})
	}
	return facts
}

// worstPods returns the pods to show: those with trouble first, then the newest.
func worstPods(a *frame.Request, pods []*corev1.Pod) (rows []PodRow) {
	type ranked struct {
		*corev1.Pod
		rank int
	}
	list := make([]ranked, 0, len(pods))
	for _, p := range pods {
		kind := finding.PillKind(finding.PodFault(a.Snapshot, p, a.Now))
		if kind == "" {
			kind = "ok"
		}
		list = append(list, ranked{p, frame.Rank(kind)})
	}
	sort.SliceStable(list, func(i, j int) bool {
		x, y := list[i], list[j]
		return cmp.Or(cmp.Compare(x.rank, y.rank), y.CreationTimestamp.Compare(x.CreationTimestamp.Time),
			cmp.Compare(x.Name, y.Name)) < 0
	})
	for _, p := range list[:min(len(list), maxPods)] {
		rows = append(rows, PodRowOf(a, p.Pod))
	}
	return rows
}

// workloadChain says why a workload is in trouble: its conditions, and the reasons of its pods with
// their number.
func workloadChain(a *frame.Request, o state.Object, pods []*corev1.Pod) (chain []string) {
	told := workloadRowOf(o, a.Now).told
	for _, c := range diagnose.Conditions(o) {
		if workConditionKind(c) != "ok" && c.Message != "" && c.Type != told {
			chain = append(chain, c.Message)
		}
	}
	if d, ok := o.(*appsv1.Deployment); ok && d.Spec.Paused {
		chain = append(chain, "It is paused: changes of its template wait until it is resumed.")
	}
	return append(chain, podReasons(a, pods)...)
}

// A podReason is why some pods of a workload do not run.
type podReason struct {
	diagnose.Finding // the finding of the first pod
	pod              *corev1.Pod
	why              string
	count            int
	sites            map[string]int // pods on nodes that are not ready, by site
}

// podReasons says why pods do not run, with the number of pods for each reason. Pods on nodes that are
// not ready are counted by site; replaced pods come last.
func podReasons(a *frame.Request, pods []*corev1.Pod) (chain []string) {
	var all []*podReason
	known := map[string]*podReason{}
	for _, p := range pods {
		f := finding.PodFault(a.Snapshot, p, a.Now)
		if f.Cause == "" {
			continue
		}
		n := a.Node(p.Spec.NodeName)
		away := n != nil && f.About.Kind == state.Nodes.Row().Name
		key := string(f.Cause)
		if !away {
			key = finding.PodWhy(a.Snapshot, p, f)
		}
		r := known[key]
		if r == nil {
			r = &podReason{Finding: f, pod: p, why: key, sites: map[string]int{}}
			known[key] = r
			all = append(all, r)
		}
		if r.count++; away {
			r.sites[state.SiteOf(n)]++
		}
	}
	slices.SortStableFunc(all, func(x, y *podReason) int {
		if x, y := diagnose.RuleOf(x.Cause).Alone, diagnose.RuleOf(y.Cause).Alone; x != y {
			return map[bool]int{true: 1, false: -1}[x]
		}
		return cmp.Or(cmp.Compare(y.count, x.count), strings.Compare(x.why, y.why))
	})
	for i, r := range all {
		if i == few {
			chain = append(chain, fmt.Sprintf("and %d other reasons.", len(all)-few))
			break
		}
		chain = append(chain, r.String(a))
	}
	return chain
}

func (r *podReason) String(a *frame.Request) string {
	who := format.Plural(r.count, "pod")
	if r.count == 1 {
		who = r.pod.Name
	}
	switch {
	case len(r.sites) == 0 && r.Cause == diagnose.PodReplaced:
		return who + ", replaced since: " + r.why
	case len(r.sites) == 0:
		return who + ": " + r.why
	case r.count == 1:
		return who + ": " + finding.PodWhy(a.Snapshot, r.pod, r.Finding)
	}
	var sites []string
	for _, name := range slices.SortedFunc(maps.Keys(r.sites),
		func(x, y string) int { return cmp.Or(cmp.Compare(r.sites[y], r.sites[x]), strings.Compare(x, y)) }) {
		sites = append(sites, fmt.Sprintf("%s: %d", name, r.sites[name]))
	}
	return fmt.Sprintf("%s are on nodes that %s (%s).", who, strings.TrimPrefix(diagnose.RuleOf(r.Cause).Many, "%s "),
		format.List(sites, few))
}
