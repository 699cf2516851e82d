package admin

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

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

// maxPods is how many pods a workload's page shows; its list of pods shows all.
const maxPods = 50

type versionRow struct {
	Number  int
	Now     bool
	Pods    int32
	Ready   int32
	Images  string
	Name    string
	Created *moment
}

type workloadData struct {
	workloadRow
	Kind       string
	Chain      []string
	Facts      []Fact
	Conditions conditionRows
	Versions   []versionRow
	Pods       []podRow
	AllPods    string
	PodCount   int
	Events     []eventRow
	Labels     []Fact
	Menu       menu
	Did        *done
	YAML       string
}

// workload shows a deployment, a stateful set or a daemon set: what it wants, what it has, and why
// not what it wants.
func workload(a *request) (page, error) {
	kind, namespace, name := state.Kind(a.param("kind")), a.param("namespace"), a.param("name")
	if !hasPage(kind) {
		return page{}, errMissing("A workload is a deployment, a stateful set or a daemon set.")
	}
	o := a.Get(state.Key{Kind: kind, Namespace: namespace, Name: name})
	if o == nil {
		return page{}, errMissing(fmt.Sprintf("There is no %s %s in namespace %s.", kindWord(kind), name, namespace))
	}
	d := workloadData{
		workloadRow: workloadRowOf(o, a.now), Labels: factsOf(o.GetLabels()), Menu: menuOf(a, o), Did: justDone(a),
		YAML: "/yaml" + objectURL(kind, namespace, name), AllPods: ownerHref(namespace, strings.TrimSuffix(string(kind), "s"), name),
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
		d.Conditions = append(d.Conditions, conditionRow{c.Type, pill{workConditionKind(c), string(c.Status)}, c.Reason, c.Message, at(c.Since.Time, a.now), helpURL("conditions", about, c.Type)})
	}
	for i, v := range versionsOf(a.Snapshot, o) {
		if v.Pods == 0 && i > 10 {
			break
		}
		d.Versions = append(d.Versions, versionRow{v.Number, i == 0, v.Pods, v.Ready, images(&v.Template.Spec), v.Name, at(v.Created, a.now)})
	}
	pods := podsOf(a.Snapshot, o)
	d.workloadRow = quietened(d.workloadRow, pods, a.now)
	d.PodCount, d.Chain = len(pods), workloadChain(a, o, pods)
	d.Pods = worstPods(a, pods)
	for _, e := range eventsOf(a.Snapshot, about, namespace, name) {
		if len(d.Events) == 20 {
			break
		}
		d.Events = append(d.Events, eventRowOf(a, e))
	}
	return page{Template: "workload", Title: name, Watch: []string{"workloads"}, Poll: 10, Data: d}, nil
}

// told leaves out what has no value.
func told(facts []Fact) []Fact {
	return slices.DeleteFunc(facts, func(f Fact) bool { return f.Value == "" || f.Value == "<none>" })
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

// workConditionKind is the shape of a workload's condition.
func workConditionKind(c diagnose.Condition) string {
	switch {
	case diagnose.IsStuck(c):
		return "bad"
	case c.Type == string(appsv1.DeploymentAvailable) && c.Status != corev1.ConditionTrue:
		return "warn"
	}
	return "ok"
}

func deploymentFacts(d *appsv1.Deployment) []Fact {
	facts := []Fact{
		{"Namespace", d.Namespace}, {"Wanted", plural(int(state.Replicas(d)), "pod")}, {"Strategy", string(d.Spec.Strategy.Type)},
		{"Selector", metav1.FormatLabelSelector(d.Spec.Selector)}, {"Created", stamp(d.CreationTimestamp.Time)},
	}
	if r := d.Spec.Strategy.RollingUpdate; r != nil && r.MaxSurge != nil && r.MaxUnavailable != nil {
		facts[2].Value += fmt.Sprintf(", %s more and %s fewer at a time", r.MaxSurge, r.MaxUnavailable)
	}
	if d.Spec.Paused {
		facts = append(facts, Fact{"Paused", "changes are not rolled out"})
	}
	return facts
}

func daemonSetFacts(d *appsv1.DaemonSet) []Fact {
	facts := []Fact{
		{"Namespace", d.Namespace}, {"Wanted on", plural(int(d.Status.DesiredNumberScheduled), "node")}, {"Strategy", string(d.Spec.UpdateStrategy.Type)},
		{"Selector", metav1.FormatLabelSelector(d.Spec.Selector)}, {"Created", stamp(d.CreationTimestamp.Time)},
	}
	if n := d.Status.NumberMisscheduled; n > 0 {
		facts = append(facts, Fact{"Where it should not be", plural(int(n), "node")})
	}
	return facts
}

func statefulSetFacts(s *appsv1.StatefulSet) []Fact {
	facts := []Fact{
		{"Namespace", s.Namespace}, {"Wanted", plural(int(state.Replicas(s)), "pod")}, {"Started", "one after the other"}, {"Strategy", string(s.Spec.UpdateStrategy.Type)},
		{"Selector", metav1.FormatLabelSelector(s.Spec.Selector)}, {"Created", stamp(s.CreationTimestamp.Time)},
	}
	if s.Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
		facts[2].Value = "all at once"
	}
	if u := s.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil && *u.Partition > 0 {
		facts[3].Value += fmt.Sprintf(", from pod %d on", *u.Partition)
	}
	for _, c := range s.Spec.VolumeClaimTemplates {
		q := c.Spec.Resources.Requests[corev1.ResourceStorage]
		facts = append(facts, Fact{"Claim of each pod", strings.TrimSpace(c.Name + " " + q.String())})
	}
	return facts
}

// worstPods returns the pods to show: those that need attention first, then the newest.
func worstPods(a *request, pods []*corev1.Pod) (rows []podRow) {
	type ranked struct {
		*corev1.Pod
		rank int
	}
	list := make([]ranked, 0, len(pods))
	for _, p := range pods {
		kind := kindOf(faultOf(a.Snapshot, p, a.now))
		if kind == "" {
			kind = "ok"
		}
		list = append(list, ranked{p, rank(kind)})
	}
	sort.SliceStable(list, func(i, j int) bool {
		x, y := list[i], list[j]
		return cmp.Or(cmp.Compare(x.rank, y.rank), y.CreationTimestamp.Compare(x.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name)) < 0
	})
	for _, p := range list[:min(len(list), maxPods)] {
		rows = append(rows, podRowOf(a, p.Pod))
	}
	return rows
}

// workloadChain is what stands behind a workload that is not what it should be: its
// conditions, and what its pods wait for, each with how many do.
func workloadChain(a *request, o state.Object, pods []*corev1.Pod) (chain []string) {
	told := workloadRowOf(o, a.now).told
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
	diagnose.Finding // of the first
	pod              *corev1.Pod
	why              string
	count            int
	sites            map[string]int // of nodes that are not ready
}

// podReasons says why pods do not do what they should, each with how many; those that their
// workload has replaced come last. Pods on nodes that are not ready are counted by site.
func podReasons(a *request, pods []*corev1.Pod) (chain []string) {
	var all []*podReason
	known := map[string]*podReason{}
	for _, p := range pods {
		f := faultOf(a.Snapshot, p, a.now)
		if f.Cause == "" {
			continue
		}
		n := a.Node(p.Spec.NodeName)
		away := n != nil && f.About.Kind == state.Nodes.Row().Name
		key := string(f.Cause)
		if !away {
			key = podWhy(a.Snapshot, p, f)
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

func (r *podReason) String(a *request) string {
	who := plural(r.count, "pod")
	if r.count == 1 {
		who = r.pod.Name
	}
	switch {
	case len(r.sites) == 0 && r.Cause == diagnose.PodReplaced:
		return who + ", replaced since: " + r.why
	case len(r.sites) == 0:
		return who + ": " + r.why
	case r.count == 1:
		return who + ": " + podWhy(a.Snapshot, r.pod, r.Finding)
	}
	var sites []string
	for _, name := range slices.SortedFunc(maps.Keys(r.sites), func(x, y string) int { return cmp.Or(cmp.Compare(r.sites[y], r.sites[x]), strings.Compare(x, y)) }) {
		sites = append(sites, fmt.Sprintf("%s: %d", name, r.sites[name]))
	}
	return fmt.Sprintf("%s are on nodes that %s (%s).", who, strings.TrimPrefix(diagnose.RuleOf(r.Cause).Many, "%s "), listed(sites, few))
}
