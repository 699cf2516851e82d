// Package volume decides which claims get a persistent volume, and when volumes and their data are
// removed.
//
// A claim with a class of state.LocalProvisioner gets a volume on the node of the first pod that
// uses it: a directory on that device, which remains after the pod. Package schedule places the
// claim's pods on that node. Package node tells the device which volumes its pods use and which
// data to remove, and reports the result. Phases, finalizers and events are those of Kubernetes'
// volume controllers. The package places no pod, and only the device can confirm that data is
// removed.
package volume

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// A Decider binds claims and removes volumes.
type Decider struct{}

// The sources of events, with Kubernetes' names.
const (
	controller = "persistentvolume-controller"
	notes      = "pv.kubernetes.io/"
)

var local = state.Subject{Key: state.Key{Kind: state.StorageClasses, Name: state.LocalClass}}

// Touches returns the claims and volumes that a change concerns: those of a pod that was created,
// deleted or placed, or whose node was created; a claim and its volume; all claims that wait for a
// class.
func (Decider) Touches(c state.Applied) (all []state.Subject) {
	switch c.Key.Kind {
	case state.Pods:
		old, _ := c.Old.(*corev1.Pod)
		next, _ := c.New.(*corev1.Pod)
		if old != nil && next != nil && old.Spec.NodeName == next.Spec.NodeName {
			return nil
		}
		for _, p := range []*corev1.Pod{old, next} {
			if p == nil {
				continue
			}
			for name := range state.ClaimsOf(p) {
				all = append(all, state.About(state.Key{Kind: state.Claims, Namespace: p.Namespace, Name: name}))
			}
		}
	case state.Claims:
		all = append(all, state.About(c.Key))
		for _, o := range []state.Object{c.Old, c.New} {
			if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName != "" {
				all = append(all, state.About(state.Key{Kind: state.Volumes, Name: claim.Spec.VolumeName}))
			}
		}
	case state.Volumes:
		all = append(all, state.About(c.Key))
		for _, o := range []state.Object{c.Old, c.New} {
			if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.ClaimRef != nil {
				all = append(all, state.About(state.Key{Kind: state.Claims, Namespace: v.Spec.ClaimRef.Namespace,
					Name: v.Spec.ClaimRef.Name}))
			}
		}
	case state.Nodes:
		if c.Old == nil {
			return []state.Subject{{Key: c.Key}}
		}
	case state.StorageClasses:
		return []state.Subject{{Key: c.Key}}
	}
	return all
}

// Subjects returns every claim and volume, and the built-in class.
func (Decider) Subjects(s state.Snapshot) []state.Subject {
	all := []state.Subject{local}
	for _, k := range []state.Kind{state.Claims, state.Volumes} {
		for o := range s.All(k, "") {
			all = append(all, state.About(state.KeyOf(o)))
		}
	}
	return all
}

// Decide binds claims, and releases and removes volumes.
func (Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) state.Plan {
	p := pass{s: s, now: now}
	for _, q := range subjects {
		switch q.Kind {
		case state.StorageClasses:
			p.class(q.Name)
		case state.Nodes:
			p.node(q.Name)
		case state.Claims:
			if c := p.s.Claim(q.Namespace, q.Name); c != nil {
				p.claim(c)
			}
		case state.Volumes:
			if v := p.s.Volume(q.Name); v != nil {
				p.volume(v)
			}
		}
	}
	return p.plan
}

// A pass is one call of Decide. Each subject sees the decisions on the subjects before it.
type pass struct {
	s    state.Snapshot
	now  time.Time
	plan state.Plan
}

func (p *pass) do(c state.Change) {
	p.plan.Do(c)
	p.s, _ = state.Apply(p.s, []state.Change{c})
}

// class restores the built-in class, and decides on the claims that wait for a class.
func (p *pass) class(name string) {
	if name == state.LocalClass && p.s.StorageClass(name) == nil {
		p.do(state.Put(localClass(p.now), ""))
	}
	for c := range state.Each[*corev1.PersistentVolumeClaim](p.s, state.Claims, "") {
		if c.Spec.StorageClassName == nil || c.Spec.VolumeName == "" && *c.Spec.StorageClassName == name {
			p.claim(c)
		}
	}
}

// node decides on the claims of pods that named a node before it existed.
func (p *pass) node(name string) {
	for pod := range p.s.PodsOn(name) {
		for claim := range state.ClaimsOf(pod) {
			if c := p.s.Claim(pod.Namespace, claim); c != nil {
				p.claim(c)
			}
		}
	}
}

// localClass returns the class of claims that name none.
func localClass(now time.Time) *storagev1.StorageClass {
	reclaim, mode := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: state.LocalClass, CreationTimestamp: metav1.NewTime(now.UTC().Truncate(time.Second)),
			Annotations: map[string]string{state.DefaultClassAnnotation: "true"},
		},
		Provisioner: state.LocalProvisioner, ReclaimPolicy: &reclaim, VolumeBindingMode: &mode,
	}
}

// defaultClass returns the newest class that is marked as the default, as in Kubernetes; nil if
// there is none.
func (p *pass) defaultClass() (class *storagev1.StorageClass) {
	for c := range state.Each[*storagev1.StorageClass](p.s, state.StorageClasses, "") {
		if c.Annotations[state.DefaultClassAnnotation] == "true" &&
			(class == nil || c.CreationTimestamp.After(class.CreationTimestamp.Time)) {
			class = c
		}
	}
	return class
}

// claim decides about one claim.
func (p *pass) claim(c *corev1.PersistentVolumeClaim) {
	if c.DeletionTimestamp != nil {
		p.endClaim(c)
		return
	}
	if !slices.Contains(c.Finalizers, state.ClaimProtection) {
		c = c.DeepCopy()
		c.Finalizers = append(c.Finalizers, state.ClaimProtection)
		change := state.Put(c, "")
		if c.Spec.VolumeName == "" {
			change = change.Event("WaitForFirstConsumer")
			change.Message, change.Source = "waiting for first consumer to be created before binding", controller
		}
		p.do(change)
	}
	if c.Spec.StorageClassName == nil {
		if class := p.defaultClass(); class != nil {
			c = c.DeepCopy()
			c.Spec.StorageClassName = &class.Name
			p.do(state.Put(c, fmt.Sprintf("claim %s gets the default storage class %s", state.Display(c), class.Name)))
		}
	}
	switch {
	case c.Spec.VolumeName != "":
		p.bound(c)
	case state.IsLocal(p.s, c):
		if pod := state.FirstConsumer(p.s, c); pod != nil {
			p.provision(c, pod)
		}
	}
}

// endClaim removes a deleted claim once no pod uses it. Pods without a node do not count, because
// they will not be placed.
func (p *pass) endClaim(c *corev1.PersistentVolumeClaim) {
	for pod := range p.s.PodsUsingClaim(c.Namespace, c.Name) {
		if pod.Spec.NodeName != "" {
			return
		}
	}
	p.removeFinalizer(c, state.ClaimProtection,
		fmt.Sprintf("remove claim %s: it was deleted, and no pod uses it", state.Display(c)))
}

// removeFinalizer removes a finalizer from an object that is being deleted. If it was the last
// finalizer, the object is removed too.
func (p *pass) removeFinalizer(o state.Object, finalizer, why string) {
	if !slices.Contains(o.GetFinalizers(), finalizer) {
		return
	}
	o = o.DeepCopyObject().(state.Object)
	o.SetFinalizers(slices.DeleteFunc(o.GetFinalizers(), func(f string) bool { return f == finalizer }))
	if len(o.GetFinalizers()) == 0 {
		p.do(state.Remove(o, why))
		return
	}
	p.do(state.Put(o, ""))
}

// bound updates a claim that names its volume.
func (p *pass) bound(c *corev1.PersistentVolumeClaim) {
	v := p.s.Volume(c.Spec.VolumeName)
	switch {
	case v == nil && c.Status.Phase == corev1.ClaimBound:
		next := c.DeepCopy()
		next.Status.Phase = corev1.ClaimLost
		change := state.Put(next, fmt.Sprintf("claim %s has lost its volume %s", state.Display(c),
			c.Spec.VolumeName)).Warning("ClaimLost")
		change.Message, change.Source = "Bound claim has lost its PersistentVolume. Data on the volume is lost!", controller
		p.do(change)
		return
	case v == nil || c.Status.Phase == corev1.ClaimLost:
		return
	case isAvailable(v, c):
		next := v.DeepCopy()
		next.Spec.ClaimRef = reference(c)
		next.Status.Phase = corev1.VolumeBound
		p.do(state.Put(next, fmt.Sprintf("bind volume %s to claim %s", v.Name, state.Display(c))))
		v = next
	}
	if state.ClaimHasVolume(c, v) && c.Status.Phase != corev1.ClaimBound {
		p.do(state.Put(bind(c, v, ""), fmt.Sprintf("bind claim %s to volume %s", state.Display(c), v.Name)))
	}
}

// isAvailable tells whether a volume has no claim and fits a claim that names it.
func isAvailable(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) bool {
	ref := v.Spec.ClaimRef
	wants, has := c.Spec.Resources.Requests[corev1.ResourceStorage], v.Spec.Capacity[corev1.ResourceStorage]
	return v.DeletionTimestamp == nil &&
		(ref == nil || ref.UID == "" && ref.Namespace == c.Namespace && ref.Name == c.Name) &&
		c.Spec.StorageClassName != nil && *c.Spec.StorageClassName == v.Spec.StorageClassName && wants.Cmp(has) <= 0 &&
		!slices.ContainsFunc(c.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
			return !slices.Contains(v.Spec.AccessModes, m)
		})
}

func reference(c *corev1.PersistentVolumeClaim) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID,
	}
}

// bind returns the claim bound to the volume. node is the selected node, "" if the claim has one
// already.
func bind(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, node string) *corev1.PersistentVolumeClaim {
	c = c.DeepCopy()
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[notes+"bind-completed"] = "yes"
	if c.Spec.VolumeName == "" {
		c.Annotations[notes+"bound-by-controller"] = "yes"
	}
	if node != "" {
		c.Annotations["volume.kubernetes.io/selected-node"] = node
		c.Annotations["volume.kubernetes.io/storage-provisioner"] = state.LocalProvisioner
	}
	c.Spec.VolumeName = v.Name
	c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: v.Spec.AccessModes,
		Capacity: v.Spec.Capacity}
	return c
}

// provision creates the volume of a claim on the node of the first pod that uses it. The device
// creates the directory when it starts the pod.
func (p *pass) provision(c *corev1.PersistentVolumeClaim, pod *corev1.Pod) {
	class := p.s.StorageClass(*c.Spec.StorageClassName)
	reclaim := corev1.PersistentVolumeReclaimDelete
	if class.ReclaimPolicy != nil {
		reclaim = *class.ReclaimPolicy
	}
	mode, uid := corev1.PersistentVolumeFilesystem, state.VolumeUID(c)
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-" + string(c.UID), UID: uid, CreationTimestamp: metav1.NewTime(p.now.UTC().Truncate(time.Second)),
			Annotations: map[string]string{notes + "provisioned-by": state.LocalProvisioner},
			Finalizers:  []string{state.VolumeProtection, state.DataProtection},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.
				ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   c.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: reclaim, StorageClassName: class.Name, VolumeMode: &mode, ClaimRef: reference(c),
			// The path is relative to the device's state directory.
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "persistent/" +
				string(uid)}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.
				NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
					Values: []string{pod.Spec.NodeName}}},
			}}}},
		},
		Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
	}
	if p.s.Volume(v.Name) != nil {
		return // a user has deleted the volume that the claim had
	}
	change := state.Put(v, fmt.Sprintf("make volume %s on %s for claim %s: %s runs there", v.Name, pod.Spec.NodeName,
		state.Display(c), state.Display(pod))).Event("ProvisioningSucceeded")
	change.Message, change.Source, change.About = "Successfully provisioned volume "+v.Name, state.LocalProvisioner, c
	p.do(change)
	p.do(state.Put(bind(c, v, pod.Spec.NodeName), ""))
}

// volume decides on one volume. A volume without a claim is bound to a claim that names it.
func (p *pass) volume(v *corev1.PersistentVolume) {
	if v.Spec.ClaimRef == nil {
		for c := range state.Each[*corev1.PersistentVolumeClaim](p.s, state.Claims, "") {
			if c.Spec.VolumeName == v.Name {
				p.claim(c)
			}
		}
		v = p.s.Volume(v.Name)
	}
	phase := corev1.VolumeAvailable
	if ref := v.Spec.ClaimRef; ref != nil && ref.UID != "" {
		phase = corev1.VolumeReleased
		if state.ClaimHasVolume(p.s.Claim(ref.Namespace, ref.Name), v) {
			phase = corev1.VolumeBound
		}
	}
	if v.Status.Phase != phase {
		next := v.DeepCopy()
		next.Status.Phase = phase
		p.do(state.Put(next, fmt.Sprintf("volume %s is %s", v.Name, strings.ToLower(string(phase)))))
		v = next
	}
	deletes := v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	if v.DeletionTimestamp == nil {
		next := v.DeepCopy()
		for _, f := range []string{state.VolumeProtection, state.DataProtection} {
			if !slices.Contains(next.Finalizers, f) {
				next.Finalizers = append(next.Finalizers, f)
			}
		}
		why := ""
		if phase == corev1.VolumeReleased && deletes {
			at, zero := metav1.NewTime(p.now.UTC().Truncate(time.Second)), int64(0)
			next.DeletionTimestamp, next.DeletionGracePeriodSeconds = &at, &zero
			why = fmt.Sprintf("delete volume %s on %s with its data: its claim %s/%s is gone", v.Name,
				cmp.Or(state.NodeOfVolume(v), "no node"), v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)
		}
		if len(next.Finalizers) != len(v.Finalizers) || why != "" {
			p.do(state.Put(next, why))
			v = next
		}
	}
	if v.DeletionTimestamp == nil || phase == corev1.VolumeBound {
		return
	}
	if slices.Contains(v.Finalizers, state.VolumeProtection) {
		p.removeFinalizer(v, state.VolumeProtection, fmt.Sprintf("remove volume %s: it was deleted", v.Name))
		if v = p.s.Volume(v.Name); v == nil {
			return
		}
	}
	if !deletes { // the data stays, so the device need not confirm its removal
		p.removeFinalizer(v, state.DataProtection,
			fmt.Sprintf("remove volume %s: its data stays on %s in %s", v.Name,
				cmp.Or(state.NodeOfVolume(v), "its node"), path(v)))
	}
}

func path(v *corev1.PersistentVolume) string {
	if v.Spec.Local == nil {
		return "its directory"
	}
	return v.Spec.Local.Path
}
