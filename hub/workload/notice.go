package workload

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// A set of keys, walked in the order of kind, namespace and name.
type set map[state.Key]bool

func (s set) sorted() []state.Key { return slices.SortedFunc(maps.Keys(s), byKey) }

func byKey(a, b state.Key) int {
	return cmp.Or(strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// work is what one look is about.
type work struct {
	deployments, replicaSets, daemons, budgets set

	daemonLook map[state.Key]*daemonLook
	orphans    map[state.Key][]state.Object // pods or replica sets without a controller, by who may adopt them

	check      set  // objects whose owners, finalizers or node may be gone
	namespaces set  // namespaces that may be empty now
	lost       set  // pods whose quarantine is over
	nodes      set  // nodes that may be gone or out of service
	finished   bool // the moment has come to count finished pods
	events     bool // the moment has come to walk the events
}

// A daemonLook says what of a DaemonSet is to be looked at.
type daemonLook struct {
	nodes  map[string]bool // where one pod should run, or none
	all    bool            // every node
	revise bool            // the template may differ from the newest revision
	ringed bool            // the moment has come for what walks all nodes
	adopt  []*corev1.Pod   // pods without a controller that it may take
}

// notice maps what has changed to the workloads that it concerns.
func (p *pass) notice(look state.Look) *work {
	w := &work{
		deployments: set{}, replicaSets: set{}, daemons: set{}, budgets: set{},
		daemonLook: map[state.Key]*daemonLook{}, orphans: map[state.Key][]state.Object{},
		check: set{}, namespaces: set{}, lost: set{}, nodes: set{},
	}
	if look.All {
		p.noticeAll(w)
	}
	for _, a := range look.Recent {
		p.noticeChange(w, a)
	}
	for _, k := range look.Due {
		switch {
		case k == allPods:
			w.finished = true
		case k == allEvents:
			w.events = true
		case k.Kind == state.Pods:
			w.lost[k] = true
		case k.Kind == state.DaemonSets:
			name, node, one := strings.Cut(k.Name, "@")
			k.Name = name
			if l := w.daemon(k); one {
				l.nodes[node] = true
			} else {
				l.ringed = true
			}
		default:
			w.add(k)
		}
	}
	return w
}

func (w *work) add(k state.Key) {
	switch k.Kind {
	case state.Deployments:
		w.deployments[k] = true
	case state.ReplicaSets:
		w.replicaSets[k] = true
	case state.PodDisruptionBudgets:
		w.budgets[k] = true
	}
}

func (w *work) daemon(k state.Key) *daemonLook {
	l := w.daemonLook[k]
	if l == nil {
		l = &daemonLook{nodes: map[string]bool{}}
		w.daemonLook[k], w.daemons[k] = l, true
	}
	return l
}

// noticeAll looks at everything, as after a start.
func (p *pass) noticeAll(w *work) {
	for _, kind := range state.Kinds() {
		if kind == state.Events {
			continue
		}
		for o := range p.s.All(kind, "") {
			k := state.KeyOf(o)
			w.add(k)
			switch o := o.(type) {
			case *appsv1.DaemonSet:
				*w.daemon(k) = daemonLook{nodes: map[string]bool{}, all: true, revise: true, ringed: true, adopt: w.daemon(k).adopt}
			case *appsv1.ReplicaSet:
				p.offer(w, o)
			case *corev1.Node:
				w.nodes[k] = true
			case *corev1.Namespace:
				w.namespaces[k] = true
			case *corev1.Pod:
				p.offer(w, o)
				p.quarantine(o)
			}
			if len(o.GetOwnerReferences()) > 0 || o.GetDeletionTimestamp() != nil {
				w.check[k] = true
			}
		}
	}
	p.wakeFinished()
	p.wakeEvents()
}

func (p *pass) noticeChange(w *work, a state.Applied) {
	if a.Key.Kind == state.Events {
		if a.Old == nil {
			p.noticeEvent()
		}
		return
	}
	w.add(a.Key)
	p.noticeOwnership(w, a)
	old, was := a.Old.(*corev1.Pod)
	pod, is := a.New.(*corev1.Pod)
	switch {
	case was || is:
		for _, o := range []*corev1.Pod{old, pod} {
			if o != nil {
				p.noticePod(w, o)
			}
		}
		if is && (!was || old.Spec.NodeName != pod.Spec.NodeName) {
			p.quarantine(pod)
		}
		if is && state.Terminated(pod) && (!was || !state.Terminated(old)) {
			p.wakeFinished()
		}
		return
	}
	switch a.Key.Kind {
	case state.ReplicaSets:
		p.noticeOwner(w, a.Old)
		p.noticeOwner(w, a.New)
		if rs, ok := a.New.(*appsv1.ReplicaSet); ok {
			p.offer(w, rs)
			if a.Old == nil {
				p.seekPods(w, a.Key, rs.Spec.Selector)
			}
		}
	case state.Deployments:
		if d, ok := a.New.(*appsv1.Deployment); ok && a.Old == nil {
			for rs := range state.Each[*appsv1.ReplicaSet](p.s, state.ReplicaSets, d.Namespace) {
				p.offer(w, rs)
			}
		}
	case state.DaemonSets:
		l := w.daemon(a.Key)
		ds, ok := a.New.(*appsv1.DaemonSet)
		if was, had := a.Old.(*appsv1.DaemonSet); ok && (!had || was.Generation != ds.Generation || was.UID != ds.UID || ds.DeletionTimestamp != nil) {
			l.all, l.revise = true, true
			if !had {
				p.seekPods(w, a.Key, ds.Spec.Selector)
			}
		}
	case state.ControllerRevisions:
		p.noticeOwner(w, a.Old)
		p.noticeOwner(w, a.New)
	case state.Nodes:
		p.noticeNode(w, a)
	}
}

// noticeOwner looks at the controller of an object; o may be nil.
func (p *pass) noticeOwner(w *work, o state.Object) {
	if o == nil {
		return
	}
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		if owner := p.s.ByUID(ref.UID); owner != nil {
			k := state.KeyOf(owner)
			w.add(k)
			if k.Kind == state.DaemonSets {
				w.daemon(k).revise = true
			}
		}
	}
}

func (p *pass) noticePod(w *work, pod *corev1.Pod) {
	for b := range state.Each[*policyv1.PodDisruptionBudget](p.s, state.PodDisruptionBudgets, pod.Namespace) {
		if matches(b.Spec.Selector, pod.Labels) {
			w.budgets[state.KeyOf(b)] = true
		}
	}
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		if live := p.s.Pod(pod.Namespace, pod.Name); live != nil {
			p.offer(w, live)
		}
		return
	}
	owner := p.s.ByUID(ref.UID)
	if owner == nil {
		return
	}
	k := state.KeyOf(owner)
	w.add(k)
	switch o := owner.(type) {
	case *appsv1.ReplicaSet:
		p.noticeOwner(w, o) // a Deployment that recreates waits for the last old pod
	case *appsv1.DaemonSet:
		l := w.daemon(k)
		if node := targetOf(pod); node != "" {
			l.nodes[node] = true
		}
	}
}

// noticeNode looks at what a node's change means for the DaemonSets and for its
// pods. A node that only reports its condition again means nothing to them.
func (p *pass) noticeNode(w *work, a state.Applied) {
	old, _ := a.Old.(*corev1.Node)
	n, _ := a.New.(*corev1.Node)
	if old == nil || n == nil || outOfService(old) != outOfService(n) {
		w.nodes[a.Key] = true
	}
	if old != nil && n != nil && old.Spec.Unschedulable == n.Spec.Unschedulable && old.UID == n.UID &&
		maps.Equal(old.Labels, n.Labels) && slices.EqualFunc(old.Spec.Taints, n.Spec.Taints, func(x, y corev1.Taint) bool {
		return x.Key == y.Key && x.Value == y.Value && x.Effect == y.Effect
	}) {
		return
	}
	for ds := range state.Each[*appsv1.DaemonSet](p.s, state.DaemonSets, "") {
		w.daemon(state.KeyOf(ds)).nodes[a.Key.Name] = true
	}
}

// noticeOwnership looks at what the change means for owners and dependents.
func (p *pass) noticeOwnership(w *work, a state.Applied) {
	if a.New != nil && (len(a.New.GetOwnerReferences()) > 0 || a.New.GetDeletionTimestamp() != nil) {
		w.check[a.Key] = true
	}
	var gone types.UID
	if a.Old != nil && (a.New == nil || a.New.GetUID() != a.Old.GetUID()) {
		gone = a.Old.GetUID()
	}
	if gone != "" {
		for o := range p.s.Dependents(gone) {
			w.check[state.KeyOf(o)] = true
		}
	}
	if a.Old != nil { // an owner may be waiting for this one to go
		for _, ref := range a.Old.GetOwnerReferences() {
			if o := p.s.ByUID(ref.UID); o != nil && o.GetDeletionTimestamp() != nil {
				w.check[state.KeyOf(o)] = true
			}
		}
	}
	if ns := (state.Key{Kind: state.Namespaces, Name: a.Key.Namespace}); a.Key.Kind == state.Namespaces {
		w.namespaces[a.Key] = true
	} else if a.Key.Namespace != "" && p.dying(a.Key.Namespace) {
		w.namespaces[ns] = true
	}
}

// offer shows an object without a controller to those whose selector matches it.
func (p *pass) offer(w *work, o state.Object) {
	if metav1.GetControllerOfNoCopy(o) != nil || o.GetDeletionTimestamp() != nil {
		return
	}
	switch o := o.(type) {
	case *corev1.Pod:
		if state.Terminated(o) {
			return
		}
		for rs := range state.Each[*appsv1.ReplicaSet](p.s, state.ReplicaSets, o.Namespace) {
			if rs.DeletionTimestamp == nil && matches(rs.Spec.Selector, o.Labels) {
				k := state.KeyOf(rs)
				w.replicaSets[k], w.orphans[k] = true, append(w.orphans[k], o)
				return
			}
		}
		for ds := range state.Each[*appsv1.DaemonSet](p.s, state.DaemonSets, o.Namespace) {
			if ds.DeletionTimestamp == nil && matches(ds.Spec.Selector, o.Labels) {
				k := state.KeyOf(ds)
				l := w.daemon(k)
				l.adopt = append(l.adopt, o)
				return
			}
		}
	case *appsv1.ReplicaSet:
		for d := range state.Each[*appsv1.Deployment](p.s, state.Deployments, o.Namespace) {
			if d.DeletionTimestamp == nil && matches(d.Spec.Selector, o.Labels) {
				k := state.KeyOf(d)
				w.deployments[k], w.orphans[k] = true, append(w.orphans[k], o)
				return
			}
		}
	}
}

// seekPods offers the pods without a controller to a new workload.
func (p *pass) seekPods(w *work, k state.Key, selector *metav1.LabelSelector) {
	for _, pod := range p.straysIn(k.Namespace) {
		if matches(selector, pod.Labels) {
			p.offer(w, pod)
		}
	}
}

// straysIn returns the pods of a namespace that have no controller. Only a new
// workload asks: it walks the namespace, once a pass.
func (p *pass) straysIn(namespace string) []*corev1.Pod {
	if found, ok := p.strays[namespace]; ok {
		return found
	}
	var found []*corev1.Pod
	for pod := range p.s.Pods(namespace) {
		if metav1.GetControllerOfNoCopy(pod) == nil {
			found = append(found, pod)
		}
	}
	if p.strays == nil {
		p.strays = map[string][]*corev1.Pod{}
	}
	p.strays[namespace] = found
	return found
}

// matches tells whether the selector selects the labels. None, and one that
// cannot be read, selects nothing.
func matches(s *metav1.LabelSelector, l map[string]string) bool {
	if s == nil {
		return false
	}
	if len(s.MatchExpressions) == 0 {
		for k, v := range s.MatchLabels {
			if have, ok := l[k]; !ok || have != v {
				return false
			}
		}
		return true
	}
	sel, err := metav1.LabelSelectorAsSelector(s)
	return err == nil && sel.Matches(labels.Set(l))
}
