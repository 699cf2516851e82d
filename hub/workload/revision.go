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

// revisions returns the DaemonSet's ControllerRevisions, oldest first.
func (d *daemon) revisions() (all []*appsv1.ControllerRevision) {
	for o := range d.s.Owned(d.ds.UID, state.ControllerRevisions) {
		if controlledBy(o, d.ds) {
			all = append(all, o.(*appsv1.ControllerRevision))
		}
	}
	slices.SortFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Name, b.Name))
	})
	return all
}

// revision finds the ControllerRevision of the template, by which kubectl tells
// the history and goes back in it. One that is missing is made, one that is used
// again becomes the newest. Where the template cannot have changed the newest is
// it. It says whether it made or moved one: then the rollout waits for the next round.
func (d *daemon) revision(changed bool) (fresh bool) {
	all := d.revisions()
	newest := int64(0)
	if len(all) > 0 {
		newest = all[len(all)-1].Revision
		if !changed {
			d.hash = hashLabel(all[len(all)-1])
			return false
		}
	}
	for _, r := range slices.Backward(all) {
		if !recorded(r, &d.ds.Spec.Template) {
			continue
		}
		d.hash = hashLabel(r)
		if r.Revision < newest {
			r = r.DeepCopy()
			r.Revision = newest + 1
			d.do(state.Put(r, ""))
			return true
		}
		return false
	}
	collisions := d.ds.Status.CollisionCount
	var name string
	for { // a name that something else has counts as a collision of hashes
		d.hash = hashOf(&d.ds.Spec.Template, collisions)
		name = d.ds.Name + "-" + d.hash
		if d.s.Get(state.Key{Kind: state.ControllerRevisions, Namespace: d.ds.Namespace, Name: name}) == nil {
			break
		}
		if collisions == nil {
			collisions = new(int32)
		}
		collisions = new(*collisions + 1)
	}
	if !equality.Semantic.DeepEqual(collisions, d.ds.Status.CollisionCount) {
		d.ds = d.ds.DeepCopy()
		d.ds.Status.CollisionCount = collisions
		d.do(state.Put(d.ds, ""))
	}
	labels := maps.Clone(d.ds.Spec.Template.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[appsv1.ControllerRevisionHashLabelKey] = d.hash
	d.do(state.Put(&appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: d.ds.Namespace, Labels: labels, Annotations: maps.Clone(d.ds.Annotations),
			CreationTimestamp: d.stamp(), OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d.ds, daemonSetKind)},
		},
		Data: runtime.RawExtension{Raw: patchOf(&d.ds.Spec.Template)}, Revision: newest + 1,
	}, ""))
	return true
}

func hashLabel(r *appsv1.ControllerRevision) string {
	return r.Labels[appsv1.ControllerRevisionHashLabelKey]
}

// patchOf is the patch that brings a DaemonSet back to the template; kubectl
// sends it as it is.
func patchOf(t *corev1.PodTemplateSpec) []byte {
	template := map[string]any{}
	raw, _ := json.Marshal(t)
	_ = json.Unmarshal(raw, &template)
	template["$patch"] = "replace"
	raw, _ = json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	return raw
}

// recorded tells whether the revision is of the template. It compares what they
// say, not the bytes, which may differ between versions of the hub.
func recorded(r *appsv1.ControllerRevision, t *corev1.PodTemplateSpec) bool {
	var patch struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if json.Unmarshal(r.Data.Raw, &patch) != nil {
		return false
	}
	want := corev1.PodTemplateSpec{}
	raw, _ := json.Marshal(t)
	return json.Unmarshal(raw, &want) == nil && equality.Semantic.DeepEqual(patch.Spec.Template, want)
}

// trimRevisions removes the oldest revisions beyond the history that is kept;
// those that pods still run stay.
func (d *daemon) trimRevisions(byNode map[string][]*corev1.Pod) {
	all := d.revisions()
	limit := 10
	if l := d.ds.Spec.RevisionHistoryLimit; l != nil {
		limit = int(*l)
	}
	if len(all)-1 <= limit {
		return
	}
	used := map[string]bool{d.hash: true}
	for _, pods := range byNode {
		for _, pod := range pods {
			used[pod.Labels[appsv1.ControllerRevisionHashLabelKey]] = true
		}
	}
	idle := slices.DeleteFunc(all, func(r *appsv1.ControllerRevision) bool { return used[hashLabel(r)] })
	for _, r := range idle[:max(len(idle)-limit, 0)] {
		d.removeObject(r, fmt.Sprintf("remove %s of %s: %d old revisions are kept", r.Name, d.ds.Name, limit))
	}
}
