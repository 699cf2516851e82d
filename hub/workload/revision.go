package workload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/state"
)

// revisions returns a workload's ControllerRevisions, oldest first.
func (p *pass) revisions(owner state.Object) (all []*appsv1.ControllerRevision) {
	for o := range p.s.Owned(owner.GetUID(), state.ControllerRevisions) {
		if controlledBy(o, owner) {
			all = append(all, o.(*appsv1.ControllerRevision))
		}
	}
	slices.SortFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Name, b.Name))
	})
	return all
}

// adoptRevisions makes the owner the controller of matching revisions without a controller. A
// workload that was deleted without its pods and created again uses them to find its pods'
// templates.
func (p *pass) adoptRevisions(owner state.Object, kind gvk, selector *metav1.LabelSelector, orphans []state.Object) {
	for _, o := range orphans {
		r, ok := p.s.Get(state.KeyOf(o)).(*appsv1.ControllerRevision)
		if ok && r.DeletionTimestamp == nil && metav1.GetControllerOfNoCopy(r) == nil && matches(selector, r.Labels) {
			p.do(state.Put(adopt(r, owner, kind),
				fmt.Sprintf("adopt %s into %s: its labels match", state.Display(r), owner.GetName())))
		}
	}
}

// revision finds or creates the ControllerRevision of the DaemonSet's template. Unless the template
// may have changed it is the newest one. fresh means that it was created or renumbered, so the
// rollout continues in the next pass. refused says why it may not be created.
func (d *daemon) revision(changed bool) (fresh bool, refused string) {
	all := d.revisions(d.ds)
	if len(all) > 0 && !changed {
		d.hash = hashLabel(all[len(all)-1])
		return false, ""
	}
	r, fresh, collisions, err := d.revise(d.ds, daemonSetKind, &d.ds.Spec.Template, all, d.ds.Status.CollisionCount)
	if err != nil {
		return false, err.Error()
	}
	d.hash = hashLabel(r)
	if !equality.Semantic.DeepEqual(collisions, d.ds.Status.CollisionCount) {
		d.ds = d.ds.DeepCopy()
		d.ds.Status.CollisionCount = collisions
		d.do(state.Put(d.ds, ""))
	}
	return fresh, ""
}

// revise finds the ControllerRevision of a workload's template among all. It creates a missing
// revision, and gives an older one a new number; then fresh is true. kubectl uses the revisions for
// the history and for rollbacks. If a quota refuses a new revision, the template is not rolled out,
// as in Kubernetes.
func (p *pass) revise(owner state.Object, kind gvk, t *corev1.PodTemplateSpec, all []*appsv1.ControllerRevision,
	collisions *int32) (r *appsv1.ControllerRevision, fresh bool, after *int32, err error) {
	newest := int64(0)
	if len(all) > 0 {
		newest = all[len(all)-1].Revision
	}
	for _, r := range slices.Backward(all) {
		if !hasTemplate(r, t) {
			continue
		}
		if r.Revision < newest {
			r = r.DeepCopy()
			r.Revision = newest + 1
			p.do(state.Put(r, ""))
			return r, true, collisions, nil
		}
		return r, false, collisions, nil
	}
	var hash, name string
	for { // a name that is in use counts as a hash collision
		hash = hashOf(t, collisions)
		name = hashed(owner.GetName(), hash)
		if p.s.Get(state.Key{Kind: state.ControllerRevisions, Namespace: owner.GetNamespace(), Name: name}) == nil {
			break
		}
		if collisions == nil {
			collisions = new(int32)
		}
		collisions = new(*collisions + 1)
	}
	labels := maps.Clone(t.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[appsv1.ControllerRevisionHashLabelKey] = hash
	r = &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: owner.GetNamespace(), Labels: labels, Annotations: maps.Clone(owner.GetAnnotations()),
			CreationTimestamp: p.stamp(), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Data: runtime.RawExtension{Raw: patchOf(t)}, Revision: newest + 1,
	}
	if p.Charge != nil {
		if _, err := p.Charge(r, p.s, p.now); err != nil {
			return nil, false, collisions, fmt.Errorf("controllerrevisions.apps %q is forbidden: %w", name, err)
		}
	}
	p.do(state.Put(r, ""))
	return r, true, collisions, nil
}

func hashLabel(r *appsv1.ControllerRevision) string {
	return r.Labels[appsv1.ControllerRevisionHashLabelKey]
}

// patchOf returns the patch that restores the template. kubectl sends it unchanged.
func patchOf(t *corev1.PodTemplateSpec) []byte {
	template := map[string]any{}
	raw, _ := json.Marshal(t)
	_ = json.Unmarshal(raw, &template)
	template["$patch"] = "replace"
	raw, _ = json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	return raw
}

// hasTemplate reports whether the revision has the template. It compares decoded values, since
// versions of the hub may encode them differently.
func hasTemplate(r *appsv1.ControllerRevision, t *corev1.PodTemplateSpec) bool {
	have := templateOf(r)
	want := corev1.PodTemplateSpec{}
	raw, _ := json.Marshal(t)
	return have != nil && json.Unmarshal(raw, &want) == nil && equality.Semantic.DeepEqual(*have, want)
}

// templateOf returns the template of a revision, nil if it cannot be decoded.
func templateOf(r *appsv1.ControllerRevision) *corev1.PodTemplateSpec {
	var patch struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if json.Unmarshal(r.Data.Raw, &patch) != nil {
		return nil
	}
	return &patch.Spec.Template
}

// trimRevisions removes the oldest revisions beyond the history limit that no pod uses.
func (d *daemon) trimRevisions(byNode map[string][]*corev1.Pod) {
	used := map[string]bool{d.hash: true}
	for _, pods := range byNode {
		for _, pod := range pods {
			used[pod.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
		}
	}
	d.trim(d.ds, d.ds.Spec.RevisionHistoryLimit, func(r *appsv1.ControllerRevision) bool { return used[hashLabel(r)] })
}

// trim removes a workload's oldest unused revisions beyond the limit.
func (p *pass) trim(owner state.Object, most *int32, used func(*appsv1.ControllerRevision) bool) {
	limit := 10
	if most != nil {
		limit = int(*most)
	}
	all := p.revisions(owner)
	if limit < 0 || len(all)-1 <= limit {
		return
	}
	idle := slices.DeleteFunc(all, used)
	for _, r := range idle[:max(len(idle)-limit, 0)] {
		p.removeObject(r, fmt.Sprintf("remove %s of %s: %d old revisions are kept", r.Name, owner.GetName(), limit))
	}
}
