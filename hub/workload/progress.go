package workload

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"flotilla.dev/hub/state"
)

// status updates the status, with the conditions Available and Progressing.
func (r *rollout) status() {
	was, st := &r.before.Status, &r.d.Status
	all := r.all()
	existing := all[:0:0]
	var leaving int32
	for _, rs := range all {
		if !r.born(rs) {
			existing = append(existing, rs)
		}
		if rs.Status.TerminatingReplicas != nil {
			leaving += *rs.Status.TerminatingReplicas
		}
	}
	st.ObservedGeneration = r.d.Generation
	st.Replicas = total(existing, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.Replicas })
	st.UpdatedReplicas = 0
	if r.current != nil {
		st.UpdatedReplicas = r.current.Status.Replicas
	}
	st.ReadyReplicas = total(existing, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.ReadyReplicas })
	st.AvailableReplicas = total(existing, availableOf)
	st.UnavailableReplicas = max(total(all, replicasOf)-st.AvailableReplicas, 0)
	st.TerminatingReplicas = &leaving

	if want := *r.d.Spec.Replicas; st.AvailableReplicas >= want-r.gone {
		r.setCondition(appsv1.DeploymentAvailable, corev1.ConditionTrue, "MinimumReplicasAvailable",
			"Deployment has minimum availability.")
	} else {
		r.setCondition(appsv1.DeploymentAvailable, corev1.ConditionFalse, "MinimumReplicasUnavailable",
			"Deployment does not have minimum availability.")
	}
	r.failure(existing)
	r.unreachable()
	complete := r.complete()
	if !r.d.Spec.Paused && r.d.DeletionTimestamp == nil {
		r.progress(was, complete)
	}
	if complete || r.d.Spec.Paused {
		r.cleanUp()
	}
	if equality.Semantic.DeepEqual(was, st) {
		r.d.Status = *was
	}
}

// failure copies the condition ReplicaFailure from the ReplicaSets, the current one first.
func (r *rollout) failure(sets []*appsv1.ReplicaSet) {
	for _, rs := range slices.Backward(sets) {
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
				if have := r.condition(appsv1.DeploymentReplicaFailure); have != nil && have.Message != c.Message {
					r.dropCondition(appsv1.DeploymentReplicaFailure)
				}
				r.setCondition(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, c.Reason, c.Message)
				return
			}
		}
	}
	r.dropCondition(appsv1.DeploymentReplicaFailure)
}

// unreachable sets a condition, which Kubernetes lacks, while a Recreate rollout waits for pods on
// unreachable devices.
func (r *rollout) unreachable() {
	const t = appsv1.DeploymentConditionType(state.PodUnreachable)
	text := ""
	if r.stopping != nil {
		text = r.pass.unreachable(slices.Values(r.stopping),
			"The pods of the new template are created when the device is back and has stopped it")
	}
	switch have := r.condition(t); {
	case text == "":
		r.dropCondition(t)
	case have == nil:
		r.setCondition(t, corev1.ConditionTrue, string(t), text)
		r.stuck = text
	default:
		have.Message = text
	}
}

func (r *rollout) complete() bool {
	st, want := &r.d.Status, *r.d.Spec.Replicas
	return r.current != nil && st.UpdatedReplicas == want && st.Replicas == want && st.AvailableReplicas == want
}

// replicaSetRefused is Kubernetes' reason for a rollout whose ReplicaSet may not be created.
const replicaSetRefused = "ReplicaSetCreateError"

// progress updates the condition Progressing. It is True while the rollout progresses and when it
// is complete, False once nothing has changed for the deadline.
func (r *rollout) progress(was *appsv1.DeploymentStatus, complete bool) {
	const done, late = "NewReplicaSetAvailable", "ProgressDeadlineExceeded"
	c, st := r.condition(appsv1.DeploymentProgressing), &r.d.Status
	if r.refused != "" {
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse, replicaSetRefused, r.refused)
		r.wake(state.KeyOf(r.before), r.retryAt(r.condition(appsv1.DeploymentProgressing).LastUpdateTime))
		return
	}
	if !r.hasDeadline() {
		r.dropCondition(appsv1.DeploymentProgressing)
		return
	}
	subject := fmt.Sprintf("Deployment %q", r.d.Name)
	if r.current != nil {
		subject = fmt.Sprintf("ReplicaSet %q", r.current.Name)
	}
	const succeeded = " has successfully progressed."
	if c != nil && c.Reason == done && c.Message == subject+succeeded && st.Replicas == st.UpdatedReplicas && !complete {
		return // a pod that fails after the completion does not change the condition
	}
	moved := st.UpdatedReplicas > was.UpdatedReplicas ||
		st.Replicas-st.UpdatedReplicas < was.Replicas-was.UpdatedReplicas ||
		st.ReadyReplicas > was.ReadyReplicas || st.AvailableReplicas > was.AvailableReplicas
	switch {
	case complete:
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, done, subject+succeeded)
	case moved:
		since := r.stamp()
		if c != nil && c.Status == corev1.ConditionTrue {
			since = c.LastTransitionTime
		}
		r.dropCondition(appsv1.DeploymentProgressing)
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "ReplicaSetUpdated", subject+" is progressing.")
		r.condition(appsv1.DeploymentProgressing).LastTransitionTime = since
	case c != nil && c.Reason != done && c.Reason != late:
		if at := r.deadline(c); !r.now.Before(at) {
			r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionFalse, late, subject+" has timed out progressing.")
		}
	}
	if c := r.condition(appsv1.DeploymentProgressing); c != nil && c.Reason != done && c.Reason != late {
		r.wake(state.KeyOf(r.before), r.deadline(c))
	}
}

// deadline returns when a rollout without progress is late. If that was while the hub could not
// receive reports, devices get a grace period first.
func (r *rollout) deadline(c *appsv1.DeploymentCondition) time.Time {
	at := c.LastUpdateTime.Add(time.Duration(*r.d.Spec.ProgressDeadlineSeconds) * time.Second)
	listening := r.s.Listening()
	if reported := listening.Add(r.Silence.Grace); c.LastUpdateTime.Time.Before(listening) && reported.After(at) {
		return reported
	}
	return at
}

// pausedCondition records in the condition Progressing that a rollout was paused or resumed. After
// a resume the deadline starts again.
func (r *rollout) pausedCondition() {
	c := r.condition(appsv1.DeploymentProgressing)
	if !r.hasDeadline() || c != nil && c.Reason == "ProgressDeadlineExceeded" {
		return
	}
	paused := c != nil && c.Reason == "DeploymentPaused"
	if r.d.Spec.Paused && !paused {
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, "DeploymentPaused", "Deployment is paused")
	} else if !r.d.Spec.Paused && paused {
		r.setCondition(appsv1.DeploymentProgressing, corev1.ConditionUnknown, "DeploymentResumed", "Deployment is resumed")
	}
}

func (r *rollout) hasDeadline() bool {
	s := r.d.Spec.ProgressDeadlineSeconds
	return s != nil && *s != math.MaxInt32
}

func (r *rollout) condition(t appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range r.d.Status.Conditions {
		if r.d.Status.Conditions[i].Type == t {
			return &r.d.Status.Conditions[i]
		}
	}
	return nil
}

// setCondition sets a condition, unless it is unchanged.
func (r *rollout) setCondition(t appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason,
	message string) {
	now := r.stamp()
	c := appsv1.DeploymentCondition{Type: t, Status: status, Reason: reason, Message: message, LastUpdateTime: now,
		LastTransitionTime: now}
	have := r.condition(t)
	switch {
	case have == nil:
		r.d.Status.Conditions = append(r.d.Status.Conditions, c)
	case have.Status == status && have.Reason == reason:
	default:
		if have.Status == status {
			c.LastTransitionTime = have.LastTransitionTime
		}
		*have = c
	}
}

func (r *rollout) dropCondition(t appsv1.DeploymentConditionType) {
	var kept []appsv1.DeploymentCondition
	for _, c := range r.d.Status.Conditions {
		if c.Type != t {
			kept = append(kept, c)
		}
	}
	r.d.Status.Conditions = kept
}

// imagesPulled is the condition, which Kubernetes lacks, of a rollout whose new images are pulled
// before a pod is stopped.
const imagesPulled = appsv1.DeploymentConditionType("ImagesPulled")

// Reasons of the condition, and of its events.
const (
	prepulling      = "Prepulling"
	prepullTimedOut = "PrepullTimedOut"
)

// prepullTime is how long a rollout without a progress deadline waits for images.
const prepullTime = 10 * time.Minute

// holdForImages reports whether no old pod may stop yet: a device with one does not have the new
// images. It waits for the progress deadline at most, and not for devices that do not answer.
func (r *rollout) holdForImages() bool {
	nodes := r.withoutImages()
	if len(nodes) == 0 {
		r.dropCondition(imagesPulled)
		return false
	}
	most := prepullTime
	if r.hasDeadline() {
		most = time.Duration(*r.d.Spec.ProgressDeadlineSeconds) * time.Second
	}
	began := r.condition(imagesPulled) == nil
	if began {
		r.setCondition(imagesPulled, corev1.ConditionFalse, prepulling, "")
	}
	c := r.condition(imagesPulled)
	if c.Reason == prepullTimedOut {
		return false
	}
	names := strings.Join(nodes[:min(len(nodes), maxNamed)], ", ")
	if more := len(nodes) - maxNamed; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	c.Message = fmt.Sprintf("The new images are pulled on %s before a pod is stopped", names)
	at := c.LastUpdateTime.Add(most)
	if r.now.Before(at) {
		if began {
			r.news, r.newsReason = c.Message, prepulling
		}
		r.wake(state.KeyOf(r.before), at)
		return true
	}
	r.news = fmt.Sprintf("The new images are not on %s after %s; the rollout goes on without them", names, most)
	r.newsReason = prepullTimedOut
	r.setCondition(imagesPulled, corev1.ConditionFalse, prepullTimedOut, r.news)
	return false
}

// withoutImages returns the nodes with old pods that lack an image of the template, by name.
func (r *rollout) withoutImages() (nodes []string) {
	if !state.WantsPrepull(r.d, &r.d.Spec.Template) {
		return nil
	}
	for _, rs := range r.old {
		for o := range r.s.Owned(rs.UID, state.Pods) {
			pod := o.(*corev1.Pod)
			n := r.s.Node(pod.Spec.NodeName)
			if active(pod) && n != nil && !silent(n) && !state.HasImages(n, state.NewImages(&r.d.Spec.Template, pod)) {
				nodes = append(nodes, n.Name)
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// prepulled adds the Deployments and DaemonSets that may have waited for images of a node.
func (p *pass) prepulled(w *work, node string) {
	for pod := range p.s.PodsOn(node) {
		if state.PrepullTemplate(p.s, pod) == nil {
			continue
		}
		for _, q := range appendController(nil, pod) {
			if q.Kind == state.DaemonSets {
				w.daemon(q.Key).nodes[node] = true
				continue
			}
			if rs := p.s.Get(q.Key); rs != nil {
				for _, d := range appendController(nil, rs) {
					w.add(d.Key)
				}
			}
		}
	}
}

// waitsForImages reports whether a DaemonSet's pod must not be replaced yet, since its node does not
// have the new images. It waits for prepullTime after the template has changed.
func (d *daemon) waitsForImages(node string, pod *corev1.Pod) bool {
	t := &d.ds.Spec.Template
	if !state.WantsPrepull(d.ds, t) || state.HasImages(d.s.Node(node), state.NewImages(t, pod)) {
		return false
	}
	all := d.revisions(d.ds)
	at := all[len(all)-1].CreationTimestamp.Add(prepullTime)
	if !d.now.Before(at) {
		return false
	}
	d.wakeTurn(d.key, at)
	return true
}
