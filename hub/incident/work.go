package incident

import (
	"fmt"
	"iter"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// controllerOf returns a pod's controller, or the pod itself if it has none.
func controllerOf(p *corev1.Pod) state.Key {
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		if k := state.KindNamed(ref.Kind); k != "" {
			return state.Key{Kind: k, Namespace: p.Namespace, Name: ref.Name}
		}
	}
	return state.Key{Kind: state.Pods, Namespace: p.Namespace, Name: p.Name}
}

// troubled returns the subject of a pod's incidents: the pod's controller, or the pod itself once
// it terminates, because its controller may be removed by then. workloadOf resolves the controller.
func troubled(p *corev1.Pod) state.Key {
	if p.DeletionTimestamp != nil {
		return state.KeyOf(p)
	}
	return controllerOf(p)
}

// workloadOfPod is workloadOf for a pod. It caches the result, because many pods have the same
// controller.
func (p *pass) workloadOfPod(pod *corev1.Pod) state.Key {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return state.KeyOf(pod)
	}
	key, known := p.makers[ref.UID]
	if !known {
		key = p.workloadOf(state.KeyOf(pod))
		p.makers[ref.UID] = key
	}
	return key
}

// workloadOf returns the workload that users know: the Deployment of a ReplicaSet, the CronJob of a
// Job. A new workload with the name of a deleted one is a different workload.
func (p *pass) workloadOf(key state.Key) state.Key {
	for range 3 {
		o := p.s.Get(key)
		if o == nil {
			break
		}
		ref := metav1.GetControllerOfNoCopy(o)
		if ref == nil {
			break
		}
		up := state.Key{Kind: state.KindNamed(ref.Kind), Namespace: key.Namespace, Name: ref.Name}
		if up.Kind == "" {
			break
		}
		if maker := p.s.Get(up); maker == nil || maker.GetUID() != ref.UID {
			break
		}
		key = up
	}
	return key
}

// owns tells whether a workload is itself the one that users know.
func (p *pass) owns(o state.Object) bool { return p.workloadOf(state.KeyOf(o)) == state.KeyOf(o) }

// podsOf walks the pods of a workload and of the objects that it owns.
func (p *pass) podsOf(key state.Key) iter.Seq[*corev1.Pod] {
	return func(yield func(*corev1.Pod) bool) {
		o := p.s.Get(key)
		if o == nil {
			return
		}
		if pod, ok := o.(*corev1.Pod); ok {
			yield(pod)
			return
		}
		p.podsBelow(o.GetUID(), 3, yield)
	}
}

func (p *pass) podsBelow(uid types.UID, depth int, yield func(*corev1.Pod) bool) bool {
	if depth == 0 || uid == "" {
		return true
	}
	for d := range p.s.Dependents(uid) {
		if ref := metav1.GetControllerOfNoCopy(d); ref == nil || ref.UID != uid {
			continue
		}
		switch d := d.(type) {
		case *corev1.Pod:
			if !yield(d) {
				return false
			}
		case *appsv1.ReplicaSet, *batchv1.Job:
			if !p.podsBelow(d.GetUID(), depth-1, yield) {
				return false
			}
		}
	}
	return true
}

// large tells whether a workload has too many pods to count them at each change.
func large(s state.Snapshot, o state.Object) bool { return state.PodsOf(s, o) > state.LargeSet }

// work finds the incidents of a workload and of its pods.
func (p *pass) work(key state.Key) (f findings) {
	o := p.s.Get(key)
	if pod, ok := o.(*corev1.Pod); o == nil || !p.owns(o) ||
		ok && controllerOf(pod) != key && pod.DeletionTimestamp == nil {
		f.gone = true // the workload is removed, or will be with its owner
		return f
	}
	object := fleet.IncidentObject{Kind: key.Kind.Row().Name, Namespace: key.Namespace, Name: key.Name}
	by := map[diagnose.Family]*found{}
	var parents []string
	var placeless *corev1.Pod
	for pod := range p.podsOf(key) {
		n := p.s.Node(pod.Spec.NodeName)
		if n != nil && !diagnose.Ready(n) {
			if name := p.incidentOf(n); name != "" && !state.Terminated(pod) {
				parents = append(parents, name)
			}
			continue // the pod belongs to its node's incident
		}
		x := diagnose.Pod(p.s, pod)
		if x.Cause == "" || x.Cause == diagnose.ImageNotPulled || diagnose.RuleOf(x.Cause).Alone {
			continue
		}
		if x.Pending(p.now) {
			f.wake = earliest(f.wake, x.Due)
			continue
		}
		if x.Cause == diagnose.CannotBePlaced && placeless == nil {
			placeless = pod
		}
		p.add(by, x.Cause, object, x.Since, x.Detail())
		i := by[diagnose.RuleOf(x.Cause).Family]
		i.Count.Pods++
		i.Examples = append(i.Examples, pod.Name)
		switch site := ""; {
		case n == nil:
		case i.Count.Pods == 1:
			i.Site = state.SiteOf(n)
		default:
			if site = state.SiteOf(n); site != i.Site {
				i.Site = ""
			}
		}
	}
	p.ownTrouble(o, by, object, &f)
	short := diagnose.WorkOf(o).Short
	for _, fam := range []diagnose.Family{diagnose.FamilyRun, diagnose.FamilyPlace, diagnose.FamilyGate,
		diagnose.FamilyStop, diagnose.FamilyMake, diagnose.FamilyBoot} {
		i := by[fam]
		if i == nil {
			continue
		}
		if short && fam != diagnose.FamilyStop {
			i.Count.Workloads = 1
		}
		p.finish(state.About(key), i)
		if fam == diagnose.FamilyPlace && len(parents) == 0 {
			parents = p.awayOf(placeless)
		}
		if fam == diagnose.FamilyPlace && len(parents) > 0 { // the pods left dark nodes, or only dark nodes can run them
			i.PartOf = parents[0]
			if i.old != nil && slices.Contains(parents, i.old.PartOf) {
				i.PartOf = i.old.PartOf
			}
		}
		f.all = append(f.all, *i)
	}
	return f
}

// ownTrouble adds the causes that a workload's own conditions report. In a namespace that is being
// deleted these conditions are out of date, so it adds none.
func (p *pass) ownTrouble(o state.Object, by map[diagnose.Family]*found, object fleet.IncidentObject, f *findings) {
	if ns := p.s.Get(state.Key{Kind: state.Namespaces, Name: o.GetNamespace()}); ns != nil &&
		ns.GetDeletionTimestamp() != nil {
		return
	}
	for _, x := range diagnose.Workload(p.s, o) {
		if !x.Until.IsZero() && !x.Until.After(p.now) {
			continue
		}
		f.wake = earliest(f.wake, x.Until)
		p.add(by, x.Cause, object, x.Since, x.Detail())
	}
	if r := fleet.RolloutOf(o); r != nil && by[diagnose.FamilyBoot] != nil {
		i := by[diagnose.FamilyBoot]
		i.Count.Nodes = r.Status.Bad
		for _, n := range r.Status.NodeStates {
			if n.State == fleet.FirmwareOverdue {
				i.Count.Nodes++
			}
			if n.State == fleet.FirmwareBad || n.State == fleet.FirmwareOverdue {
				i.Examples = append(i.Examples, n.Name)
			}
		}
	}
}

// add adds a cause to a workload's causes. Of each family it keeps the worst.
func (p *pass) add(by map[diagnose.Family]*found, cause fleet.IncidentCause, object fleet.IncidentObject, at time.Time,
	detail string) {
	r := diagnose.RuleOf(cause)
	if at.IsZero() || at.After(p.now) {
		at = p.now
	}
	i := by[r.Family]
	if i == nil {
		i = &found{Incident: fleet.Incident{Cause: cause, About: object, Since: metav1.NewTime(at), Detail: detail}}
		by[r.Family] = i
	}
	if r.Rank < diagnose.RuleOf(i.Cause).Rank {
		i.Cause, i.Detail = cause, detail
	}
	if i.Detail == "" && i.Cause == cause {
		i.Detail = detail
	}
	if at.Before(i.Since.Time) {
		i.Since = metav1.NewTime(at)
	}
}

// finish fills in a finding from the stored incident.
func (p *pass) finish(q state.Subject, f *found) {
	slices.Sort(f.Examples)
	f.Examples = f.Examples[:min(len(f.Examples), examples)]
	rule := diagnose.RuleOf(f.Cause)
	for _, i := range p.open[q] {
		if diagnose.RuleOf(i.Cause).Family != rule.Family {
			continue
		}
		f.old = i
		if diagnose.RuleOf(i.Cause).Rank < rule.Rank { // between two crashes a crashing pod is only not ready
			f.Cause, f.Detail = i.Cause, i.Detail
		}
		if i.Cause == f.Cause && f.Detail == "" {
			f.Detail = i.Detail
		}
	}
	f.Detail = bounded(f.Detail)
	f.Latest = metav1.NewMicroTime(f.Since.Time)
	if f.old != nil {
		f.Latest = f.old.Latest
	}
	f.Message = sentence(&f.Incident)
}

// incidentOf returns the name of the open incident of a node that is not ready.
func (p *pass) incidentOf(n *corev1.Node) (name string) {
	for x := range diagnose.Node(n) {
		for _, i := range p.open[aboutSite(state.SiteOf(n))] {
			g := group{since: i.Since.Time, latest: i.Latest.Time}
			if diagnose.RuleOf(i.Cause).Family == diagnose.RuleOf(x.Cause).Family && g.takes(x.Since) {
				name = i.Name
			}
		}
	}
	return name
}

// awayOf names the incidents that together have all nodes which a pod's selector, affinity and
// volumes allow. The pod can run once one of these incidents ends.
func (p *pass) awayOf(pod *corev1.Pod) (names []string) {
	where := fmt.Sprint(pod.Spec.NodeSelector)
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		where += a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.String()
	}
	var volumes []string // the nodes that have the volumes
	for name := range state.ClaimsOf(pod) {
		if at := state.NodeOfVolume(state.VolumeOf(p.s, p.s.Claim(pod.Namespace, name))); at != "" {
			volumes = append(volumes, at)
		}
	}
	where += fmt.Sprint(volumes)
	if known, ok := p.away[where]; ok {
		return known
	}
	defer func() { p.away[where] = names }()
	fits := nodeaffinity.GetRequiredNodeAffinity(pod)
	for n := range p.s.Nodes() {
		if fit, err := fits.Match(n); err != nil || !fit || slices.ContainsFunc(volumes, func(at string) bool {
			return at != n.Name
		}) {
			continue
		}
		name := ""
		if !diagnose.Ready(n) && !state.NeverReported(n) {
			name = p.incidentOf(n)
		}
		if name == "" {
			return nil
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// image finds the pods that cannot pull an image.
func (p *pass) image(image string) (f findings) {
	by := map[diagnose.Family]*found{}
	workloads := map[state.Key]bool{}
	sites := map[string]bool{}
	for pod := range p.s.Pods("") {
		x := diagnose.PodItself(pod)
		if x.Image != image || diagnose.Pod(p.s, pod).Cause != diagnose.ImageNotPulled {
			continue // the pod has another cause, or belongs to its node's incident
		}
		n := p.s.Node(pod.Spec.NodeName)
		p.add(by, x.Cause, fleet.IncidentObject{Kind: diagnose.KindImage, Name: image}, x.Since, x.Detail())
		i := by[diagnose.FamilyImage]
		i.Count.Pods++
		i.Examples = append(i.Examples, pod.Name)
		workloads[p.workloadOfPod(pod)] = true
		sites[state.SiteOf(n)], i.Site = true, state.SiteOf(n)
	}
	i := by[diagnose.FamilyImage]
	if i == nil {
		return f
	}
	for key := range workloads {
		if diagnose.WorkOf(p.s.Get(key)).Short {
			i.Count.Workloads++
		}
	}
	if len(sites) > 1 {
		i.Site = ""
	}
	p.finish(aboutImage(image), i)
	f.all = append(f.all, *i)
	return f
}
