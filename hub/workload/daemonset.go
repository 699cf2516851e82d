package workload

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"flotilla.dev/hub/state"
)

var daemonSetKind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// A daemon is one look at one DaemonSet.
type daemon struct {
	*pass
	key     state.Key
	ds      *appsv1.DaemonSet
	hash    string      // of the template's ControllerRevision
	pattern *corev1.Pod // a pod of the template, to judge nodes by
	fits    nodeaffinity.RequiredNodeAffinity
	changes []state.Change
	later   int // nodes that are put off
	next    time.Time
}

// daemonSet brings one pod onto each node that should have one: on the nodes of
// the look, or on all.
func (p *pass) daemonSet(k state.Key, look *daemonLook) {
	ds, ok := p.s.Get(k).(*appsv1.DaemonSet)
	if !ok || p.dying(k.Namespace) {
		return
	}
	d := &daemon{pass: p, key: k, ds: ds}
	defer func() {
		if !d.next.IsZero() {
			p.wake(k, d.next)
		}
	}()
	if ds.DeletionTimestamp != nil {
		d.status(d.byNode())
		return
	}
	d.claim(look.adopt)
	fresh := d.revision(look.revise || ds.Status.ObservedGeneration != ds.Generation)
	d.pattern = &corev1.Pod{ObjectMeta: ds.Spec.Template.ObjectMeta, Spec: *ds.Spec.Template.Spec.DeepCopy()}
	tolerateLikeDaemon(&d.pattern.Spec)
	d.fits = nodeaffinity.GetRequiredNodeAffinity(d.pattern)

	if look.all {
		byNode := d.byNode()
		for _, node := range slices.Sorted(maps.Keys(byNode)) {
			d.inTurn(node, func() []*corev1.Pod { return byNode[node] })
		}
	} else {
		for _, node := range slices.Sorted(maps.Keys(look.nodes)) {
			d.inTurn(node, func() []*corev1.Pod { return p.daemonPodsOn(ds, node) })
		}
	}
	d.flush()
	if d.next = p.hurry(p.s.Len(state.Nodes), look.ringed); !d.next.IsZero() {
		return
	}
	pods := d.byNode()
	if !fresh && d.roll(pods) {
		pods = d.byNode()
	}
	d.trimRevisions(pods)
	d.status(pods)
}

// flush carries the collected changes out, in the order of their names.
func (d *daemon) flush() {
	slices.SortStableFunc(d.changes, func(a, b state.Change) int { return byKey(state.KeyOf(a.Object), state.KeyOf(b.Object)) })
	d.do(d.changes...)
	d.changes = nil
}

// claim adopts pods that have no controller and match.
func (d *daemon) claim(orphans []*corev1.Pod) {
	objects := make([]state.Object, len(orphans))
	for i, o := range orphans {
		objects[i] = o
	}
	d.adoptPods(d.ds, daemonSetKind, d.ds.Spec.Selector, objects)
}

// targetOf returns the node that a pod runs on, or is meant for.
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

// daemonPodsOn returns the DaemonSet's pods of one node, placed or meant for it.
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

// waitingDaemonPods are the pods that are not placed yet but meant for one node,
// by that node. The pending pods are walked once a pass, and only if it is about
// DaemonSets.
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

// byNode returns every pod of the DaemonSet by its node, and every node, be it
// without a pod.
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

// should tells whether the DaemonSet wants a pod on the node, and whether one
// that is there may stay: a taint that only forbids new pods drives none away.
func (d *daemon) should(n *corev1.Node) (run, stay bool) {
	if name := d.pattern.Spec.NodeName; name != "" && name != n.Name {
		return false, false
	}
	if ok, err := d.fits.Match(n); err != nil || !ok {
		return false, false
	}
	run, stay = true, true
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if t.Effect == corev1.TaintEffectPreferNoSchedule || tolerates(d.pattern.Spec.Tolerations, t) {
			continue
		}
		run, stay = false, stay && t.Effect != corev1.TaintEffectNoExecute
	}
	return run, stay
}

func tolerates(all []corev1.Toleration, t *corev1.Taint) bool {
	return slices.ContainsFunc(all, func(tol corev1.Toleration) bool { return tol.ToleratesTaint(klog.Logger{}, t, false) })
}

// tolerateLikeDaemon adds the tolerations that every DaemonSet's pod has, as
// Kubernetes does: its node's troubles do not drive it away.
//
// Ours: not-ready is tolerated for NoSchedule too. Kubernetes' documentation and
// tests promise that daemons start on nodes that are not ready, but its own taint
// forbids it. A node that is unreachable gets none, so that it does not count as
// wanted and a rollout does not wait for devices that are switched off.
func tolerateLikeDaemon(spec *corev1.PodSpec) {
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
	if spec.HostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
}

// inTurn places on a node, or puts it off when this pass has done enough.
func (d *daemon) inTurn(node string, pods func() []*corev1.Pod) {
	if len(d.changes) < burst {
		d.place(node, pods())
		return
	}
	d.wake(d.at(node), d.now.Add(time.Duration(1+d.later/burst)*burstTime))
	d.later++
}

// place sees to it that a node has the one pod that it should have, or none. A
// pod that is on its way out keeps the place until it is gone: two daemons on one
// device would fight for its ports and files.
func (d *daemon) place(node string, pods []*corev1.Pod) {
	n := d.s.Node(node)
	if n == nil {
		for _, pod := range pods {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil { // one that has run is quarantined, see lost
				d.drop(pod, "its node is gone")
			}
		}
		return
	}
	run, stay := d.should(n)
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
		many, again := d.allowance(1, 1, finished, nil)
		for range many {
			d.launch(node)
		}
		d.forget(node, finished, again)
	default:
		d.forget(node, finished, time.Time{})
		d.thin(live)
	}
}

// at is the subject of the alarms for one node of the DaemonSet.
func (d *daemon) at(node string) state.Key {
	return state.Key{Kind: state.DaemonSets, Namespace: d.key.Namespace, Name: d.key.Name + "@" + node}
}

// forget removes finished pods that no longer count against a new trial, and
// wakes the node for the others or for the next trial.
func (d *daemon) forget(node string, finished []*corev1.Pod, next time.Time) {
	for _, pod := range finished {
		if at := pod.CreationTimestamp.Add(backoffWindow); at.After(d.now) {
			sooner(&next, at)
		} else {
			d.drop(pod, "it has finished")
		}
	}
	if !next.IsZero() {
		d.wake(d.at(node), next)
	}
}

// thin keeps the oldest pod of a node, and while a rollout may surge the oldest
// of each template.
func (d *daemon) thin(live []*corev1.Pod) {
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

// launch creates the pod of a node. Kubernetes' way: the pod is tied to its node
// by affinity and the scheduler binds it, so that room, ports and priority count
// as for any other pod and what is missing stands in its condition.
func (d *daemon) launch(node string) {
	pod := d.newPod(d.ds, daemonSetKind, &d.ds.Spec.Template)
	tolerateLikeDaemon(&pod.Spec)
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
	c := state.Put(d.admitted(pod), fmt.Sprintf("create %s for %s on %s", state.Display(pod), d.ds.Name, node)).Event("SuccessfulCreate")
	c.About, c.Source = d.ds, "daemonset-controller"
	d.changes = append(d.changes, c)
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
