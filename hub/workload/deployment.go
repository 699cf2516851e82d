package workload

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

// Annotations of ReplicaSets that kubectl and the rollout rules read.
const (
	revisionAnnotation        = "deployment.kubernetes.io/revision"
	revisionHistoryAnnotation = "deployment.kubernetes.io/revision-history"
	desiredAnnotation         = "deployment.kubernetes.io/desired-replicas"
	maxAnnotation             = "deployment.kubernetes.io/max-replicas"
)

var deploymentKind = appsv1.SchemeGroupVersion.WithKind("Deployment")

// A rollout is the work on one Deployment. Its objects are copies that it may change.
type rollout struct {
	*pass
	d           *appsv1.Deployment   // with the changes of this pass
	before      *appsv1.Deployment   // as stored
	current     *appsv1.ReplicaSet   // the ReplicaSet of the Deployment's template; may be nil
	old         []*appsv1.ReplicaSet // the ReplicaSets of earlier templates, oldest first
	was         map[string]*appsv1.ReplicaSet
	why         map[string]state.Change // the change of each modified ReplicaSet
	surge, gone int32                   // maxSurge and maxUnavailable as numbers of pods
	refused     string                  // why the new ReplicaSet may not be created
	stopping    []*corev1.Pod           // old pods that must stop before the first new one is created
	stuck       string                  // why stopping may not end, if that is new
	news        string                  // about images that are pulled in advance
	newsReason  string
}

// deployment takes the next steps of a Deployment's rollout.
func (p *pass) deployment(k state.Key, orphans []state.Object) {
	before, ok := p.s.Get(k).(*appsv1.Deployment)
	if !ok || p.terminating(k.Namespace) || before.DeletionTimestamp == nil &&
		!selectsOwn(before.Spec.Selector, &before.Spec.Template) {
		return
	}
	r := &rollout{pass: p, before: before, d: before.DeepCopy(), was: map[string]*appsv1.ReplicaSet{},
		why: map[string]state.Change{}}
	if r.d.Spec.Replicas == nil {
		r.d.Spec.Replicas = new(int32(1))
	}
	r.surge, r.gone = r.bounds()
	r.gather(orphans)
	if before.Status.ObservedGeneration != before.Generation {
		r.dropCondition(imagesPulled) // it may be about another template
	}
	if before.DeletionTimestamp == nil {
		r.pausedCondition()
		switch {
		case before.Spec.Paused:
			r.syncRevision(false)
			r.scale()
		case before.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
			r.recreate()
		case r.rescaled():
			r.syncRevision(false)
			r.scale()
		default:
			r.roll()
		}
	}
	r.status()
	r.write()
}

// gather collects the Deployment's ReplicaSets, adopts matching orphans and releases those that no
// longer match.
func (r *rollout) gather(orphans []state.Object) {
	var mine []*appsv1.ReplicaSet
	take := func(rs *appsv1.ReplicaSet) {
		r.was[rs.Name] = rs
		mine = append(mine, rs.DeepCopy())
	}
	for o := range r.s.Owned(r.d.UID, state.ReplicaSets) {
		rs := o.(*appsv1.ReplicaSet)
		switch {
		case !controlledBy(rs, r.d):
		case matches(r.d.Spec.Selector, rs.Labels):
			take(rs)
		case r.d.DeletionTimestamp == nil:
			r.do(state.Put(release(rs, r.d),
				fmt.Sprintf("release %s from %s: its labels no longer match", state.Display(rs), r.d.Name)))
		}
	}
	for _, o := range orphans {
		rs, ok := r.s.Get(state.KeyOf(o)).(*appsv1.ReplicaSet)
		if ok && r.d.DeletionTimestamp == nil && rs.DeletionTimestamp == nil && metav1.GetControllerOfNoCopy(rs) == nil &&
			r.was[rs.Name] == nil {
			rs = adopt(rs, r.d, deploymentKind).(*appsv1.ReplicaSet)
			r.do(state.Put(rs, fmt.Sprintf("adopt %s into %s: its labels match", state.Display(rs), r.d.Name)))
			take(rs)
		}
	}
	slices.SortFunc(mine, func(a, b *appsv1.ReplicaSet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for _, rs := range mine {
		if r.current == nil && sameTemplate(&rs.Spec.Template, &r.d.Spec.Template) {
			r.current = rs
		} else {
			r.old = append(r.old, rs)
		}
	}
}

// sameTemplate compares templates without the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	delete(a.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	delete(b.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return equality.Semantic.DeepEqual(a, b)
}

// all returns every ReplicaSet, the current one last.
func (r *rollout) all() []*appsv1.ReplicaSet {
	if r.current == nil {
		return r.old
	}
	return append(slices.Clone(r.old), r.current)
}

// bounds resolves maxSurge, rounded up, and maxUnavailable, rounded down. If both are zero one pod
// may be unavailable, as in Kubernetes.
func (r *rollout) bounds() (surge, gone int32) {
	ru := r.d.Spec.Strategy.RollingUpdate
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return 0, 0
	}
	quarter := intstr.FromString("25%")
	if ru == nil {
		ru = &appsv1.RollingUpdateDeployment{MaxSurge: &quarter, MaxUnavailable: &quarter}
	}
	surge = scaled(ru.MaxSurge, *r.d.Spec.Replicas, true)
	gone = scaled(ru.MaxUnavailable, *r.d.Spec.Replicas, false)
	if surge == 0 && gone == 0 {
		gone = 1
	}
	return surge, min(gone, *r.d.Spec.Replicas)
}

// scaled resolves a number or a percentage of total; nil is 0.
func scaled(v *intstr.IntOrString, total int32, up bool) int32 {
	if v == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, int(total), up)
	if err != nil {
		return 0
	}
	return int32(max(n, 0))
}

// syncRevision finds or creates the ReplicaSet of the template and gives it the newest revision. A
// ReplicaSet that is used again, for example after a rollback, gets a new revision.
func (r *rollout) syncRevision(create bool) {
	newest := int64(0)
	for _, rs := range r.old {
		newest = max(newest, revisionOf(rs))
	}
	if r.current == nil && create {
		r.create(newest + 1)
	} else if r.current != nil {
		r.annotate(r.current, newest+1)
		r.current.Spec.MinReadySeconds = r.d.Spec.MinReadySeconds
		if c := r.condition(appsv1.DeploymentProgressing); r.hasDeadline() && (c == nil || c.Reason == replicaSetRefused) {
			r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "FoundNewReplicaSet",
				fmt.Sprintf("Found new replica set %q", r.current.Name))
		}
	}
	if r.current != nil && r.d.Annotations[revisionAnnotation] != r.current.Annotations[revisionAnnotation] {
		if r.d.Annotations == nil {
			r.d.Annotations = map[string]string{}
		}
		r.d.Annotations[revisionAnnotation] = r.current.Annotations[revisionAnnotation]
	}
}

func (r *rollout) create(revision int64) {
	var hash, name string
	for { // a name that is in use counts as a hash collision
		hash = hashOf(&r.d.Spec.Template, r.d.Status.CollisionCount)
		name = hashed(r.d.Name, hash)
		if r.s.Get(state.Key{Kind: state.ReplicaSets, Namespace: r.d.Namespace, Name: name}) == nil {
			break
		}
		if r.d.Status.CollisionCount == nil {
			r.d.Status.CollisionCount = new(int32)
		}
		*r.d.Status.CollisionCount++
	}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: r.d.Namespace, CreationTimestamp: r.stamp(), Generation: 1,
			Labels:          maps.Clone(r.d.Spec.Template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(r.d, deploymentKind)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(int32), MinReadySeconds: r.d.Spec.MinReadySeconds,
			Selector: r.d.Spec.Selector.DeepCopy(), Template: *r.d.Spec.Template.DeepCopy(),
		},
	}
	for _, labels := range []*map[string]string{&rs.Labels, &rs.Spec.Template.Labels, &rs.Spec.Selector.MatchLabels} {
		if *labels == nil {
			*labels = map[string]string{}
		}
		(*labels)[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	}
	r.annotate(rs, revision)
	if r.Charge != nil {
		if _, err := r.Charge(rs, r.s, r.now); err != nil {
			r.refused = fmt.Sprintf("Failed to create new replica set %q: replicasets.apps %q is forbidden: %v", name, name, err)
			return
		}
	}
	r.current = rs
	r.setSize(rs, r.roomForNew())
	if r.hasDeadline() {
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "NewReplicaSetCreated",
			fmt.Sprintf("Created new replica set %q", name))
	}
}

// maxPastRevisions limits a ReplicaSet's list of past revisions in bytes, as in Kubernetes.
const maxPastRevisions = 2000

// annotate copies the Deployment's annotations, and raises the revision.
func (r *rollout) annotate(rs *appsv1.ReplicaSet, revision int64) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	for k, v := range r.d.Annotations {
		switch k {
		case corev1.LastAppliedConfigAnnotation, revisionAnnotation, revisionHistoryAnnotation, desiredAnnotation,
			maxAnnotation, appsv1.DeprecatedRollbackTo:
		default:
			rs.Annotations[k] = v
		}
	}
	if had := revisionOf(rs); had < revision {
		if had > 0 {
			past := strings.TrimPrefix(rs.Annotations[revisionHistoryAnnotation]+","+strconv.FormatInt(had, 10), ",")
			for len(past) > maxPastRevisions {
				_, past, _ = strings.Cut(past, ",")
			}
			rs.Annotations[revisionHistoryAnnotation] = past
		}
		rs.Annotations[revisionAnnotation] = strconv.FormatInt(revision, 10)
	}
}

func revisionOf(o metav1.Object) int64 {
	n, _ := strconv.ParseInt(o.GetAnnotations()[revisionAnnotation], 10, 64)
	return n
}

// write adds each changed object to the plan once.
func (r *rollout) write() {
	for _, rs := range r.all() {
		was := r.was[rs.Name]
		if was != nil && equality.Semantic.DeepEqual(was, rs) {
			continue
		}
		if was != nil && !equality.Semantic.DeepEqual(&was.Spec, &rs.Spec) {
			rs.Generation++
		}
		c, changed := r.why[rs.Name]
		if !changed {
			c = state.Put(rs, "")
		}
		c.Object = rs
		r.do(c)
	}
	r.d.Spec.Replicas = r.before.Spec.Replicas
	if equality.Semantic.DeepEqual(r.before, r.d) {
		return
	}
	c := state.Put(r.d, "")
	if r.stuck != "" {
		c = waitChange(r.d, r.stuck, string(state.PodUnreachable), "deployment-controller")
	}
	if r.news != "" {
		c = state.Put(r.d, fmt.Sprintf("%s: %s", state.Display(r.d), r.news)).Event(r.newsReason)
		if r.newsReason == prepullTimedOut {
			c = c.Warning(r.newsReason)
		}
		c.Message, c.Source = r.news, "deployment-controller"
	}
	if r.refused != "" && !slices.ContainsFunc(r.before.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
		return c.Reason == replicaSetRefused
	}) {
		c = state.Put(r.d, fmt.Sprintf("create no replica set for %s: %s", state.Display(r.d),
			r.refused)).Warning(replicaSetRefused)
		c.Message, c.Source = r.refused, "deployment-controller"
	}
	r.do(c)
}

// cleanUp removes the oldest idle ReplicaSets beyond the history limit.
func (r *rollout) cleanUp() {
	limit := 10
	if l := r.d.Spec.RevisionHistoryLimit; l != nil {
		if *l == math.MaxInt32 {
			return
		}
		limit = int(*l)
	}
	var idle []*appsv1.ReplicaSet
	for _, rs := range r.old {
		if rs.DeletionTimestamp == nil && rs.Status.Replicas == 0 && replicasOf(rs) == 0 &&
			rs.Generation <= rs.Status.ObservedGeneration {
			idle = append(idle, rs)
		}
	}
	slices.SortStableFunc(idle, func(a, b *appsv1.ReplicaSet) int { return cmp.Compare(revisionOf(a), revisionOf(b)) })
	for _, rs := range idle[:max(len(idle)-limit, 0)] {
		r.old = slices.DeleteFunc(r.old, func(o *appsv1.ReplicaSet) bool { return o == rs })
		r.removeObject(r.was[rs.Name],
			fmt.Sprintf("remove %s of %s: %d old revisions are kept", state.Display(rs), r.d.Name, limit))
	}
}
