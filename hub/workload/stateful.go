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

// A stateful is the work on one StatefulSet. Each of its pods has an identity: a name with an
// ordinal, and claims of that name. Two pods never have the same identity. A terminating pod keeps
// its name until its device reports that it has stopped, or until a user decides that the report
// will never come (kubectl delete --force, or kubectl delete node).
type stateful struct {
	*pass
	key      state.Key
	set      *appsv1.StatefulSet
	ordered  bool                  // pod management OrderedReady
	first    int64                 // the first ordinal
	want     int64                 // number of pods from the first ordinal on
	pods     map[int64]*corev1.Pod // by ordinal
	missing  bool                  // a wanted pod could not be created
	refuse   string                // why the missing pod could not be created
	waitsFor *corev1.Pod           // a pod of an older revision that blocks the pods after it
	denied   map[string]string     // why claims may not be created, by the name of their template
	next     time.Time

	current, update *appsv1.ControllerRevision
	collisions      int32
}

// statefulSet takes the next steps of a StatefulSet. orphans are pods and revisions that it may
// adopt. It checks the pods of a large StatefulSet only at intervals, but applies a change of its
// spec at once.
func (p *pass) statefulSet(k state.Key, orphans []state.Object, turn bool) {
	set, ok := p.s.Get(k).(*appsv1.StatefulSet)
	if !ok || p.born[k] || set.DeletionTimestamp == nil && !selectsOwn(set.Spec.Selector, &set.Spec.Template) {
		return
	}
	if p.deferWalk(k, state.PodsOf(p.s, set), turn || len(orphans) > 0) {
		return
	}
	d := &stateful{
		pass: p, key: k, set: set, ordered: set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement,
		want: int64(state.Replicas(set)), collisions: ptr.Deref(set.Status.CollisionCount, 0),
	}
	if set.Spec.Ordinals != nil {
		d.first = int64(max(set.Spec.Ordinals.Start, 0))
	}
	ends := set.DeletionTimestamp != nil || p.terminating(k.Namespace)
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
		p.wakeTurn(k, d.next)
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

// namesake returns the StatefulSet that would give this name to one of its pods; nil if there is
// none.
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

// inRange reports whether the StatefulSet should have a pod of the ordinal.
func (d *stateful) inRange(ordinal int64) bool {
	return ordinal >= d.first && ordinal-d.first < d.want
}

// adopt adopts matching pods and revisions without a controller.
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

// gather collects the pods, and releases pods that no longer match.
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

// revisions finds the revision of the template and the revision that it replaces. It reports
// whether the template has one.
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

// used reports whether pods have or will get the revision.
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

// isAvailable reports whether a pod is running, ready, available and not terminating.
func (d *stateful) isAvailable(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning &&
		d.available(pod, d.set.Spec.MinReadySeconds, &d.next)
}

// grow creates missing pods and removes finished pods in the order of their ordinals: each once all
// before it are available, or all at once. It reports whether the other steps may follow.
func (d *stateful) grow() bool {
	there := slices.Collect(maps.Values(d.pods))
	room, bare := burst-createdAt(d.stamp(), there), maxUnplaced-unplaced(there)
	for n := d.first; d.inRange(n); n++ {
		pod := d.pods[n]
		switch {
		case pod != nil && state.Terminated(pod):
			d.missing = true
			d.removeFinished(pod)
			if d.ordered {
				return false
			}
		case pod != nil:
			if pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil {
				d.claims(n, false)
			}
			if d.ordered && !d.isAvailable(pod) {
				if revision, _ := d.revisionFor(n); revision == d.update.Name && revisionLabel(pod) != revision &&
					d.set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
					d.waitsFor = pod
				}
				return false
			}
			d.identify(pod, n)
			d.setClaimOwners(pod, n)
		case room <= 0:
			d.missing = true
			setEarlier(&d.next, nextMultiple(d.now, time.Second))
			return !d.ordered
		case bare <= 0:
			d.missing, d.refuse = true,
				fmt.Sprintf("%d of its pods have no node yet: more are created when they have", maxUnplaced)
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
			case forbidden != "": // pods of the newer revision come after all pods of the older one
				n = d.first + d.olderCount() - 1
			}
		}
	}
	return true
}

// removeFinished removes a finished pod so that a new pod can take its name: at once, or after a
// back-off if the pod ends repeatedly. Until then the pod shows why it ended.
func (d *stateful) removeFinished(pod *corev1.Pod) {
	if pod.DeletionTimestamp != nil {
		return
	}
	if many, retry := d.allowance(d.set, pod.Name, 1, nil); many == 0 {
		setEarlier(&d.next, retry)
		return
	}
	d.drop(pod, "it has ended")
}

// create creates the claims and then the pod of an ordinal. forbidden is a revision whose pods may
// not be created. It does not affect the claims, since other ordinals may have them already.
func (d *stateful) create(n int64) (made bool, forbidden string) {
	name := d.name(n)
	many, retry := d.allowance(d.set, name, 1, nil)
	if many == 0 {
		setEarlier(&d.next, retry)
		return false, ""
	}
	revision, template := d.revisionFor(n)
	if why := d.refused(d.set, template); why != "" {
		d.refuse = why
		return false, revision
	}
	if d.s.Pod(d.set.Namespace, name) != nil {
		d.refuse = cmp.Or(d.refuse, fmt.Sprintf("pods %q already exists, and does not belong to this StatefulSet", name))
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

// olderCount returns how many pods from the first on have the older revision: the pods below the
// partition, or without a partition all existing pods.
func (d *stateful) olderCount() int64 {
	s := d.set.Spec.UpdateStrategy
	switch {
	case s.Type == appsv1.OnDeleteStatefulSetStrategyType:
		return 0
	case s.RollingUpdate != nil:
		return int64(ptr.Deref(s.RollingUpdate.Partition, 0))
	}
	return int64(d.set.Status.CurrentReplicas)
}

// revisionFor returns the revision and the template of a new pod of an ordinal.
func (d *stateful) revisionFor(n int64) (string, *corev1.PodTemplateSpec) {
	if n-d.first < d.olderCount() {
		if t := templateOf(d.current); t != nil {
			return d.current.Name, t
		}
	}
	return d.update.Name, &d.set.Spec.Template
}

// mount adds a pod's claims as volumes, in place of the template's volumes of the same names.
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

// identify adds the labels of its ordinal to an adopted pod.
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

// shrink deletes surplus pods, the last first: one at a time while all others are available, or all
// at once. It reports whether the other steps may follow.
func (d *stateful) shrink() bool {
	var spare []int64
	for n := range d.pods {
		if !d.inRange(n) {
			spare = append(spare, n)
		}
	}
	slices.Sort(spare)
	weak := slices.IndexFunc(spare, func(n int64) bool { return !d.isAvailable(d.pods[n]) })
	for _, n := range spare {
		d.setClaimOwners(d.pods[n], n)
	}
	for i, n := range slices.Backward(spare) {
		pod := d.pods[n]
		switch {
		case pod.DeletionTimestamp != nil && d.ordered:
			return false
		case pod.DeletionTimestamp != nil:
			continue
		case d.ordered && i != weak && !d.isAvailable(pod):
			return false // another pod is not available
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
