package workload

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"flotilla.dev/hub/state"
	api "flotilla.dev/shared/fleet"
)

var daemonSetKind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// A daemon is the work on one DaemonSet.
type daemon struct {
	*pass
	key        state.Key
	ds         *appsv1.DaemonSet
	hash       string      // of the template's ControllerRevision
	sample     *corev1.Pod // a pod of the template, for checks against nodes
	fits       nodeaffinity.RequiredNodeAffinity
	changes    []state.Change
	deferred   int // number of deferred nodes
	next       time.Time
	podRefusal *string // why the DaemonSet's pods may not be created; nil: not checked yet

	unrevised string // why the template's ControllerRevision may not be created
}

// daemonSet ensures that each node has the pods that it should have. It handles the nodes in w, or
// all nodes.
func (p *pass) daemonSet(k state.Key, w *daemonWork) {
	ds, ok := p.s.Get(k).(*appsv1.DaemonSet)
	if !ok || p.terminating(k.Namespace) ||
		ds.DeletionTimestamp == nil && !selectsOwn(ds.Spec.Selector, &ds.Spec.Template) {
		return
	}
	d := &daemon{pass: p, key: k, ds: ds}
	defer func() {
		if !d.next.IsZero() {
			p.wakeTurn(k, d.next)
		}
	}()
	if ds.DeletionTimestamp != nil {
		d.status(d.byNode())
		return
	}
	d.claim(w.adopt)
	fresh, refused := d.revision(w.revise || ds.Status.ObservedGeneration != ds.Generation)
	d.sample = &corev1.Pod{ObjectMeta: ds.Spec.Template.ObjectMeta, Spec: *ds.Spec.Template.Spec.DeepCopy()}
	addDaemonTolerations(&d.sample.Spec)
	d.fits = nodeaffinity.GetRequiredNodeAffinity(d.sample)
	if d.unrevised = refused; refused != "" {
		if d.next = p.walkTime(p.s.Len(state.Nodes), w.turn); d.next.IsZero() {
			d.status(d.byNode())
		}
		return
	}
	if w.all || fresh { // the revision may have waited for quota, and the nodes for the revision
		byNode := d.byNode()
		for _, node := range slices.Sorted(maps.Keys(byNode)) {
			d.placeOrDefer(node, func() []*corev1.Pod { return byNode[node] })
		}
	} else {
		for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
			d.placeOrDefer(node, func() []*corev1.Pod { return p.daemonPodsOn(ds, node) })
		}
	}
	d.flush()
	if d.next = p.walkTime(p.s.Len(state.Nodes), w.turn); !d.next.IsZero() {
		return
	}
	pods := d.byNode()
	if !fresh && d.roll(pods) {
		pods = d.byNode()
	}
	d.trimRevisions(pods)
	d.status(pods)
}

// flush applies the collected changes in the order of their names.
func (d *daemon) flush() {
	sort.SliceStable(d.changes, func(i, j int) bool {
		return byKey(state.KeyOf(d.changes[i].Object), state.KeyOf(d.changes[j].Object)) < 0
	})
	d.do(d.changes...)
	d.changes = nil
}

// claim adopts matching pods and revisions without a controller.
func (d *daemon) claim(orphans []state.Object) {
	d.adoptPods(d.ds, daemonSetKind, d.ds.Spec.Selector, orphans)
	d.adoptRevisions(d.ds, daemonSetKind, d.ds.Spec.Selector, orphans)
}

// targetOf returns the node that a pod runs on or, before it is bound, must run on.
func targetOf(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" {
		return pod.Spec.NodeName
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

// daemonPodsOn returns the DaemonSet's pods that run or must run on a node.
func (p *pass) daemonPodsOn(ds *appsv1.DaemonSet, node string) (pods []*corev1.Pod) {
	for pod := range p.s.PodsOn(node) {
		if controlledBy(pod, ds) {
			pods = append(pods, pod)
		}
	}
	for _, pod := range p.waitingDaemonPods()[state.Key{Kind: state.Nodes, Name: node}] {
		if live := p.s.Pod(pod.Namespace, pod.Name); live != nil && live.Spec.NodeName == "" && controlledBy(live, ds) {
			pods = append(pods, live)
		}
	}
	return pods
}

// waitingDaemonPods returns the unplaced DaemonSet pods by their target node. It walks the pending
// pods at most once per pass.
func (p *pass) waitingDaemonPods() map[state.Key][]*corev1.Pod {
	if p.waiting == nil {
		p.waiting = map[state.Key][]*corev1.Pod{}
		for pod := range p.s.PodsOn("") {
			if node := targetOf(pod); node != "" {
				k := state.Key{Kind: state.Nodes, Name: node}
				p.waiting[k] = append(p.waiting[k], pod)
			}
		}
	}
	return p.waiting
}

// byNode returns the DaemonSet's pods by node, with an entry for every node.
func (d *daemon) byNode() map[string][]*corev1.Pod {
	out := make(map[string][]*corev1.Pod, d.s.Len(state.Nodes))
	for n := range d.s.Nodes() {
		out[n.Name] = nil
	}
	for o := range d.s.Owned(d.ds.UID, state.Pods) {
		pod := o.(*corev1.Pod)
		if node := targetOf(pod); controlledBy(pod, d.ds) && !(state.Terminated(pod) && pod.DeletionTimestamp != nil) {
			out[node] = append(out[node], pod)
		}
	}
	return out
}

// wants reports whether the DaemonSet should run a pod on the node (run), and whether an existing
// pod may stay. A NoSchedule taint removes no pod. silent means that only the hub's taint for a
// silent node prevents a pod.
func (d *daemon) wants(n *corev1.Node) (run, stay, silent bool) {
	if name := d.sample.Spec.NodeName; name != "" && name != n.Name {
		return false, false, false
	}
	if ok, err := d.fits.Match(n); err != nil || !ok {
		return false, false, false
	}
	run, stay = true, true
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule || state.Tolerates(d.sample.Spec.Tolerations, t) {
			continue
		}
		stay = stay && t.Effect != corev1.TaintEffectNoExecute
		if t.Key == corev1.TaintNodeUnreachable {
			silent = true
		} else {
			run = false
		}
	}
	return run && !silent, stay, run && silent
}

// addDaemonTolerations adds the tolerations that Kubernetes gives each DaemonSet pod, so that
// problems of its node do not evict it.
//
// Unlike in Kubernetes, a DaemonSet pod also tolerates not-ready for NoSchedule. Kubernetes'
// documentation and tests promise that daemons start on nodes that are not ready, but Kubernetes'
// own taint prevents it. An unreachable node gets no new pod.
func addDaemonTolerations(spec *corev1.PodSpec) {
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		same := func(o corev1.Toleration) bool {
			return o.Key == key && o.Effect == effect && o.Operator == t.Operator && o.Value == ""
		}
		if i := slices.IndexFunc(spec.Tolerations, same); i >= 0 {
			spec.Tolerations[i] = t
		} else {
			spec.Tolerations = append(spec.Tolerations, t)
		}
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	if critical(spec) { // as Kubernetes did while it had this taint
		add(api.TaintOutOfDisk, corev1.TaintEffectNoExecute)
		add(api.TaintOutOfDisk, corev1.TaintEffectNoSchedule)
	}
	if spec.HostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
}

// critical reports whether the pods have one of the two system priority classes.
func critical(spec *corev1.PodSpec) bool {
	return spec.PriorityClassName == "system-node-critical" || spec.PriorityClassName == "system-cluster-critical" ||
		spec.Priority != nil && *spec.Priority >= 2_000_000_000
}

// placeOrDefer calls place for a node, or defers it to the next burst if this pass has handled
// enough nodes.
func (d *daemon) placeOrDefer(node string, pods func() []*corev1.Pod) {
	if len(d.changes) < burst {
		d.place(node, pods())
		return
	}
	d.wakeFor(d.onNode(node), d.now.Add(time.Duration(1+d.deferred/burst)*burstTime))
	d.deferred++
}

// place ensures that a node has one pod, or none if it should have none. A terminating pod counts
// until it is removed, because two daemons on one device would compete for ports and files.
func (d *daemon) place(node string, pods []*corev1.Pod) {
	n := d.s.Node(node)
	if n == nil {
		for _, pod := range pods {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil { // a bound pod is quarantined; see lost
				d.drop(pod, "its node is gone")
			}
		}
		return
	}
	run, stay, _ := d.wants(n)
	var live, finished []*corev1.Pod
	leaving := false
	for _, pod := range pods {
		switch {
		case state.Terminated(pod):
			if pod.DeletionTimestamp == nil {
				finished = append(finished, pod)
			}
		case pod.DeletionTimestamp != nil:
			leaving = true
		default:
			live = append(live, pod)
		}
	}
	switch {
	case !run && !stay:
		for _, pod := range append(live, finished...) {
			d.drop(pod, "it should not run on "+node)
		}
	case len(live) == 0 && run && !leaving:
		many, retry := d.allowance(d.ds, node, 1, nil)
		if many == 0 { // keep the finished pod: it shows why it ended
			d.wakeFor(d.onNode(node), retry)
			return
		}
		d.launch(node)
		d.removeFinished(finished)
	default:
		d.removeFinished(finished)
		d.removeDuplicates(live)
	}
}

// onNode returns the subject of the DaemonSet's work on one node.
func (d *daemon) onNode(node string) state.Subject { return state.Subject{Key: d.key, Part: node} }

// removeFinished removes finished pods that have been replaced.
func (d *daemon) removeFinished(finished []*corev1.Pod) {
	for _, pod := range finished {
		d.drop(pod, "it has finished")
	}
}

// removeDuplicates keeps only the oldest pod of a node. If a rollout may surge it keeps the oldest
// pod of each template.
func (d *daemon) removeDuplicates(live []*corev1.Pod) {
	slices.SortFunc(live, byAge)
	surge, _ := d.bounds(1)
	kept := map[bool]bool{}
	for _, pod := range live {
		updated := surge > 0 && d.updated(pod)
		if kept[updated] {
			d.drop(pod, "its node has another")
		}
		kept[updated] = true
	}
}

func byAge(a, b *corev1.Pod) int {
	if c := first(a.Spec.NodeName != "", b.Spec.NodeName != ""); c != 0 {
		return c
	}
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// launch creates the pod of a node. As in Kubernetes, node affinity selects the node and the
// scheduler binds the pod. So resources, ports and priority count as for any pod, and the condition
// PodScheduled says what is missing.
func (d *daemon) launch(node string) {
	if d.refusal() != "" {
		return
	}
	pod := d.newPod(d.ds, daemonSetKind, &d.ds.Spec.Template)
	addDaemonTolerations(&pod.Spec)
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = d.hash
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
		}}},
	}
	c := state.Put(d.admitted(pod),
		fmt.Sprintf("create %s for %s on %s", state.Display(pod), d.ds.Name, node)).Event("SuccessfulCreate")
	c.About, c.Source = d.ds, "daemonset-controller"
	if d.counted(d.ds.Namespace) { // check the quota again before the next pod
		d.do(c)
		d.podRefusal = nil
		return
	}
	d.changes = append(d.changes, c)
}

// refusal returns why the DaemonSet's pods may not be created; "" if they may.
func (d *daemon) refusal() string {
	if d.podRefusal == nil {
		why := d.refused(d.ds, &d.ds.Spec.Template)
		d.podRefusal = &why
	}
	return *d.podRefusal
}

func (d *daemon) drop(pod *corev1.Pod, because string) {
	c, ok := state.Delete(pod, d.now, nil, fmt.Sprintf("delete %s of %s: %s", state.Display(pod), d.ds.Name, because))
	if !ok {
		return
	}
	c = c.Event("SuccessfulDelete")
	c.About, c.Source = d.ds, "daemonset-controller"
	d.changes = append(d.changes, c)
}
