package schedule_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
)

var midday = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// A pod with a claim gets the node in want, or the reason in want in Kubernetes' words.
func TestClaims(t *testing.T) {
	class, gone := state.LocalClass, metav1.NewTime(midday)
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "claim"}}
		c.Spec.StorageClassName = &class
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		change(c)
		return c
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "claim"}
	volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
			Values: []string{"b"}}}}}}}
	bound := func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }
	pod := func(name, node string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		p.Spec.NodeName = node
		p.Spec.Volumes = []corev1.Volume{{Name: "v",
			VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		return p
	}
	full := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(5,
				resource.DecimalSI)}}}
	}
	for _, c := range []struct {
		name    string
		objects []state.Object
		want    string // a node or a reason
	}{
		{"no claim", nil, `0/2 nodes are available: persistentvolumeclaim "data" not found.`},
		{"a claim that is deleted", []state.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &gone })},
			`0/2 nodes are available: persistentvolumeclaim "data" is being deleted.`},
		{"a claim whose volume is missing", []state.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName, c.Status.Phase = "v", corev1.ClaimLost })},
			`0/2 nodes are available: persistentvolumeclaim "data" bound to non-existent persistentvolume "v".`},
		{"a claim without a class", []state.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil })},
			"0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."},
		{"a claim with a missing class", []state.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &[]string{"other"}[0] })},
			"0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."},
		{"a claim that names another claim's volume", []state.Object{claim(func(c *corev1.PersistentVolumeClaim) { c.UID, c.Spec.VolumeName = "other", "v" }), volume},
			"0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."},
		{"a claim that is not bound yet", []state.Object{claim(func(*corev1.PersistentVolumeClaim) {})}, "a"},
		{"a volume on b", []state.Object{claim(bound), volume}, "b"},
		{"a volume on b, which is cordoned", []state.Object{claim(bound), volume, func() state.Object { n := full("b"); n.Spec.Unschedulable = true; return n }()},
			"0/2 nodes are available: 1 node(s) had volume node affinity conflict, 1 node(s) were unschedulable."},
		{"a volume that another pod gets on b", []state.Object{claim(func(*corev1.PersistentVolumeClaim) {}), pod("other", "b")}, "b"},
		{"a volume on b with exclusive use", []state.Object{claim(func(c *corev1.PersistentVolumeClaim) {
			bound(c)
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
		}), volume, pod("other", "b")},
			"0/2 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode, 1 node(s) had volume node affinity conflict."},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := state.Empty("claims", midday)
			changes := []state.Change{
				state.Put(full("a"), ""), state.Put(full("b"), ""),
				state.Put(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: state.LocalProvisioner},
					""), state.Put(pod("p", ""), ""),
			}
			for _, o := range c.objects {
				changes = append(changes, state.Put(o, ""))
			}
			s, _ = state.Apply(s, changes)
			plan := schedule.Decider{}.Decide(s, schedule.Decider{}.Subjects(s), midday)
			if len(plan.Changes) != 1 {
				t.Fatalf("the decider still changes %v", plan.Changes)
			}
			p := plan.Changes[0].Object.(*corev1.Pod)
			got := p.Spec.NodeName
			if got == "" {
				got = state.PodCondition(p, corev1.PodScheduled).Message
			}
			if got != c.want {
				t.Errorf("the pod's message is %q, want %q", got, c.want)
			}
		})
	}
}
