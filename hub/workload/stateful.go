package workload

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
)

var statefulSetKind = appsv1.SchemeGroupVersion.WithKind("StatefulSet")

const statefulSource = "statefulset-controller"

// A stateful is the work on one StatefulSet. Its pods have identities: a name with an ordinal,
// and claims of that name. There is never more than one pod of an identity: one that has been
// asked to leave has its name until its device has said that it has stopped, or somebody says
// that it never will (kubectl delete --force, or kubectl delete node).
type stateful struct {
	*pass
	key      state.Key
	set      *appsv1.StatefulSet
	ordered  bool                  // one after the other
	first    int64                 // the first ordinal
	want     int64                 // how many from there on
	pods     map[int64]*corev1.Pod // by ordinal
	missing  bool                  // one that is wanted could not be made
	refuse   string                // why
	waitsFor *corev1.Pod           // of an older revision than it would be made of, which all after it wait for
	denied   map[string]string     // why a claim may not be made, by the name of its template
	next     time.Time

	current, update *appsv1.ControllerRevision
	collisions      int32
}

// statefulSet takes the next steps towards what a StatefulSet asks for. orphans are pods and
// revisions that it may adopt. What becomes of the pods of a large one is looked at once in a
// while, what is wanted of it at once.
func (p *pass) statefulSet(k state.Key, orphans []state.Object, turn bool) {
	set, ok := p.s.Get(k).(*appsv1.StatefulSet)
	if !ok || p.born[k] || set.DeletionTimestamp == nil && !finds(set.Spec.Selector, &set.Spec.Template) {
		return
	}
	if p.later(k, state.PodsOf(p.s, set), turn || len(orphans) > 0) {
		return
	}
	d := &stateful{
		pass: p, key: k, set: set, ordered: set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement,
		want: int64(state.Replicas(set)), collisions: ptr.Deref(set.Status.CollisionCount, 0),
	}
	if set.Spec.Ordinals != nil {
		d.first = int64(max(set.Spec.Ordinals.Start, 0))
	}
	ends := set.DeletionTimestamp != nil || p.dying(k.Namespace)
	if !ends {
		d.adopt(orphans)
	}
	d.gather(!ends)
	if !ends {
		if d.revisions() && d.grow() && d.shrink() {
			d.roll()
		}
	}
	d.status(ends)
	if !d.next.IsZero() {
		p.again(k, d.next)
	}
}

// ordinalOf returns the ordinal in the name of a StatefulSet's pod.
func ordinalOf(set, pod string) (int64, bool) {
	text, ok := strings.CutPrefix(pod, set+"-")
	if !ok || text == "" || len(text) > 10 || len(text) > 1 && text[0] == '0' {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err == nil
}

// namesake returns the StatefulSet that a pod's name may be of, nil for none.
func (p *pass) namesake(pod *corev1.Pod) *appsv1.StatefulSet {
	i := strings.LastIndexByte(pod.Name, '-')
	if i < 1 {
		return nil
	}
	set, _ := p.s.Get(state.Key{Kind: state.StatefulSets, Namespace: pod.Namespace,
		Name: pod.Name[:i]}).(*appsv1.StatefulSet)
	if set == nil {
		return nil
	}
	if _, ok := ordinalOf(set.Name, pod.Name); !ok {
		return nil
	}
	return set
}

func (d *stateful) name(ordinal int64) string { return fmt.Sprintf("%s-%d", d.set.Name, ordinal) }

// inRange tells whether the pod of an ordinal is wanted.
func (d *stateful) inRange(ordinal int64) bool {
	return ordinal >= d.first && ordinal-d.first < d.want
}

// adopt takes pods and revisions that match and have no controller.
func (d *stateful) adopt(orphans []state.Object) {
	for _, o := range orphans {
		pod := d.s.Pod(o.GetNamespace(), o.GetName())
		if pod == nil || state.KindOf(o) != state.Pods || pod.DeletionTimestamp != nil ||
			metav1.GetControllerOfNoCopy(pod) != nil || !matches(d.set.Spec.Selector, pod.Labels) {
			continue
		}
		if _, ok := ordinalOf(d.set.Name, pod.Name); ok {
			d.do(state.Put(adopt(pod, d.set, statefulSetKind),
				fmt.Sprintf("adopt %s into %s: its labels match", state.Display(pod), d.set.Name)))
		}
	}
	d.adoptRevisions(d.set, statefulSetKind, d.set.Spec.Selector, orphans)
}

// gather finds the pods, and lets those go that no longer match.
func (d *stateful) gather(let bool) {
	d.pods = map[int64]*corev1.Pod{}
	var strangers []*corev1.Pod
	for o := range d.s.Owned(d.set.UID, state.Pods) {
		pod := o.(*corev1.Pod)
		if !controlledBy(pod, d.set) {
			continue
		}
		if n, ok := ordinalOf(d.set.Name, pod.Name); ok && matches(d.set.Spec.Selector, pod.Labels) {
			d.pods[n] = pod
		} else if pod.DeletionTimestamp == nil {
			strangers = append(strangers, pod)
		}
	}
	for _, pod := range strangers {
		if let {
			d.do(state.Put(release(pod, d.set),
				fmt.Sprintf("release %s from %s: its labels no longer match", state.Display(pod), d.set.Name)))
		}
	}
}

// revisions finds the revision of the template, and the one from which it is rolled out. It says
// whether there is one.
func (d *stateful) revisions() bool {
	st, all := &d.set.Status, d.pass.revisions(d.set)
	if n := len(all); n > 0 && st.ObservedGeneration == d.set.Generation && all[n-1].Name == st.UpdateRevision {
		d.update = all[n-1] // the template cannot have changed
	} else {
		update, _, collisions, err := d.revise(d.set, statefulSetKind, &d.set.Spec.Template, all, st.CollisionCount)
		if err != nil {
			d.refuse = err.Error()
			return false
		}
		d.update = update
		d.collisions = ptr.Deref(collisions, 0)
	}
	d.current = d.update
	for _, r := range all {
		if r.Name == st.CurrentRevision && r.Name != d.update.Name {
			d.current = r
		}
	}
	d.trim(d.set, d.set.Spec.RevisionHistoryLimit, d.used)
	return true
}

// used tells whether a revision is one that pods have or are to get.
func (d *stateful) used(r *appsv1.ControllerRevision) bool {
	if r.Name == d.current.Name || r.Name == d.update.Name {
		return true
	}
	for _, pod := range d.pods {
		if revisionLabel(pod) == r.Name {
			return true
		}
	}
	return false
}

func revisionLabel(pod *corev1.Pod) string { return pod.Labels[appsv1.StatefulSetRevisionLabel] }

// serves tells whether a pod is Running, Ready and available, and goes on to be.
func (d *stateful) serves(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning &&
		d.available(pod, d.set.Spec.MinReadySeconds, &d.next)
}

// grow makes the pods that are missing and clears those away that have ended, by their
// ordinals: one after the other, each as soon as all before it serve, or all at once. It
// says whether what comes after may be done, too.
func (d *stateful) grow() bool {
	there := slices.Collect(maps.Values(d.pods))
	room, bare := burst-madeAt(d.stamp(), there), mostUnplaced-unplaced(there)
	for n := d.first; d.inRange(n); n++ {
		pod := d.pods[n]
		switch {
		case pod != nil && state.Terminated(pod):
			d.missing = true
			d.clear(pod)
			if d.ordered {
				return false
			}
		case pod != nil:
			if pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil {
				d.claims(n, false)
			}
			if d.ordered && !d.serves(pod) {
				if revision, _ := d.revisionFor(n); revision == d.update.Name && revisionLabel(pod) != revision &&
					d.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
					d.waitsFor = pod
				}
				return false
			}
			d.identify(pod, n)
			d.owned(pod, n)
		case room <= 0:
			d.missing = true
			sooner(&d.next, until(d.now, time.Second))
			return !d.ordered
		case bare <= 0:
			d.missing, d.refuse = true,
				fmt.Sprintf("%d of its pods have no node yet: more are made when they have", mostUnplaced)
			return !d.ordered
		default:
			made, forbidden := d.create(n)
			if made {
				room, bare = room-1, bare-1
			} else {
				d.missing = true
			}
			switch {
			case d.ordered || forbidden == d.update.Name:
				return !d.ordered
			case forbidden != "": // as every other of the older revision: those of the newer come after them
				n = d.first + d.older() - 1
			}
		}
	}
	return true
}

// clear removes a pod that has ended, so that another can have its name: at once, or where
// its pods end again and again after a while. Until then it tells why.
func (d *stateful) clear(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return
	}
	if many, again := d.allowance(d.set, pod.Name, 1, nil); many == 0 {
		sooner(&d.next, again)
		return
	}
	d.drop(pod, "it has ended")
}

// create makes the pod of an ordinal, and its claims before it. forbidden is the revision of which
// no pod may be made: not so of claims, which another ordinal may have from before.
func (d *stateful) create(n int64) (made bool, forbidden string) {
	name := d.name(n)
	many, again := d.allowance(d.set, name, 1, nil)
	if many == 0 {
		sooner(&d.next, again)
		return false, ""
	}
	revision, template := d.revisionFor(n)
	if why := d.refused(d.set, template); why != "" {
		d.refuse = why
		return false, revision
	}
	if d.s.Pod(d.set.Namespace, name) != nil {
		d.refuse = cmp.Or(d.refuse, fmt.Sprintf("pods %q already exists, and is not of this StatefulSet", name))
		return false, ""
	}
	if why := d.claims(n, true); why != "" {
		d.refuse = cmp.Or(d.refuse, why)
		return false, ""
	}
	pod := d.newPod(d.set, statefulSetKind, template)
	pod.Name = name
	pod.Spec.Hostname, pod.Spec.Subdomain = name, d.set.Spec.ServiceName
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.StatefulSetPodNameLabel], pod.Labels[appsv1.PodIndexLabel] = name, strconv.FormatInt(n, 10)
	pod.Labels[appsv1.StatefulSetRevisionLabel] = revision
	d.mount(pod, n)
	d.tell(state.Put(d.admitted(pod), fmt.Sprintf("create %s for %s", state.Display(pod), d.set.Name)), "SuccessfulCreate")
	d.pods[n] = pod
	return true, ""
}

func (d *stateful) tell(c state.Change, reason string) {
	c = c.Event(reason)
	c.About, c.Source = d.set, statefulSource
	d.do(c)
}

// older is how many pods from the first on are of the older revision: those below the partition,
// and where no partition is said as many as there are.
func (d *stateful) older() int64 {
	s := d.set.Spec.UpdateStrategy
	switch {
	case s.Type == appsv1.OnDeleteStatefulSetStrategyType:
		return 0
	case s.RollingUpdate != nil:
		return int64(ptr.Deref(s.RollingUpdate.Partition, 0))
	}
	return int64(d.set.Status.CurrentReplicas)
}

// revisionFor returns of which revision a new pod of an ordinal is, and that one's template.
func (d *stateful) revisionFor(n int64) (string, *corev1.PodTemplateSpec) {
	if n-d.first < d.older() {
		if t := templateOf(d.current); t != nil {
			return d.current.Name, t
		}
	}
	return d.update.Name, &d.set.Spec.Template
}

// mount gives a pod the volumes of its claims, in the place of the template's of the same name.
func (d *stateful) mount(pod *corev1.Pod, n int64) {
	var volumes []corev1.Volume
	claimed := map[string]bool{}
	for i := range d.set.Spec.VolumeClaimTemplates {
		t := &d.set.Spec.VolumeClaimTemplates[i]
		if claimed[t.Name] {
			continue
		}
		claimed[t.Name] = true
		volumes = append(volumes, corev1.Volume{Name: t.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: d.claimName(t, n)}}})
	}
	pod.Spec.Volumes = append(volumes, slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return claimed[v.Name]
	})...)
}

// identify gives an adopted pod the labels of its identity.
func (d *stateful) identify(pod *corev1.Pod, n int64) {
	if pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name {
		return
	}
	pod = pod.DeepCopy()
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.StatefulSetPodNameLabel], pod.Labels[appsv1.PodIndexLabel] = pod.Name, strconv.FormatInt(n, 10)
	d.do(state.Put(pod, ""))
}

// shrink asks the pods to leave that are not wanted, the last first: one after the other,
// while all others serve, or all at once. It says whether what comes after may be done, too.
func (d *stateful) shrink() bool {
	var spare []int64
	for n := range d.pods {
		if !d.inRange(n) {
			spare = append(spare, n)
		}
	}
	slices.Sort(spare)
	weak := slices.IndexFunc(spare, func(n int64) bool { return !d.serves(d.pods[n]) })
	for _, n := range spare {
		d.owned(d.pods[n], n)
	}
	for i, n := range slices.Backward(spare) {
		pod := d.pods[n]
		switch {
		case pod.DeletionTimestamp != nil && d.ordered:
			return false
		case pod.DeletionTimestamp != nil:
			continue
		case d.ordered && i != weak && !d.serves(pod):
			return false // a lower one is in trouble, too
		}
		d.drop(pod, fmt.Sprintf("%d replicas are wanted", d.want))
		if d.ordered {
			return false
		}
	}
	return true
}

func (d *stateful) drop(pod *corev1.Pod, because string) {
	if c, ok := state.Delete(pod, d.now, nil,
		fmt.Sprintf("delete %s of %s: %s", state.Display(pod), d.set.Name, because)); ok {
		d.tell(c, "SuccessfulDelete")
	}
}
