package node

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// claimed returns a fleet in which a pod on pi-1 uses a claim with a volume of pi-1.
func claimed(edit func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, *corev1.Pod)) state.Snapshot {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", UID: "v-1",
		Finalizers: []string{state.VolumeProtection, state.DataProtection}}}
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "default", Name: "data", UID: "c-1"}
	v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
			Values: []string{"pi-1"}}},
	}}}}
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "c-1"},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p-1"},
		Spec: corev1.PodSpec{NodeName: "pi-1",
			Volumes: []corev1.Volume{{Name: "d",
				VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}}}
	edit(v, c, p)
	var objects []state.Object
	for _, o := range []state.Object{v, c, p} {
		if o.GetName() != "" {
			objects = append(objects, o)
		}
	}
	return state.Load(state.Empty("test", time.Now()), objects, 9)
}

func leaving(v *corev1.PersistentVolume) {
	at := metav1.Now()
	v.DeletionTimestamp, v.Finalizers = &at, []string{state.DataProtection}
}

// A device must remove exactly the data of its volumes that are being deleted and that no pod uses.
// This holds even if a user has removed a volume's finalizer.
func TestADeviceRemovesTheDataOfDeletedVolumes(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim, p *corev1.Pod)
		want string
	}{
		{"a pod uses the volume", func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, *corev1.Pod) {}, "use data made=false"},
		{"the directory existed before", func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim, _ *corev1.Pod) {
			v.Annotations = map[string]string{state.MadeAnnotation: "true"}
		}, "use data made=true"},
		{"the pod is gone", func(_ *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim, p *corev1.Pod) { p.Name = "" }, ""},
		{"the pod is elsewhere", func(_ *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim, p *corev1.Pod) {
			p.Spec.NodeName = "pi-2"
		}, ""},
		{"the claim is a new one with the name", func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim, _ *corev1.Pod) { c.UID = "c-2" }, ""},
		{"everything is deleted", func(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim, p *corev1.Pod) {
			leaving(v)
			c.Name, p.Name = "", ""
		}, "remove"},
		{"the volume waits for its claim", func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim, p *corev1.Pod) {
			leaving(v)
			v.Finalizers, p.Name = append(v.Finalizers, state.VolumeProtection), ""
		}, ""},
		{"the data must stay", func(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim, p *corev1.Pod) {
			leaving(v)
			v.Spec.PersistentVolumeReclaimPolicy, c.Name, p.Name = corev1.PersistentVolumeReclaimRetain, "", ""
		}, ""},
		{"a user removed the finalizer while a pod uses the volume", func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim, _ *corev1.Pod) { leaving(v) }, "use data made=false"},
		{"the volume is another device's", func(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim, p *corev1.Pod) {
			leaving(v)
			v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] = "pi-2"
			c.Name, p.Name = "", ""
		}, ""},
	} {
		got := ""
		for _, v := range volumesFor(claimed(c.edit), "pi-1") {
			if got = "remove"; !v.Remove {
				got = fmt.Sprintf("use %s made=%v", v.Claim, v.Made)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A device may report only its own volumes, and removed data only if the removal was requested.
func TestReportsOfVolumes(t *testing.T) {
	whole := func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim, *corev1.Pod) {}
	gone := func(v *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim, p *corev1.Pod) {
		leaving(v)
		c.Name, p.Name = "", ""
	}
	for _, c := range []struct {
		name string
		s    state.Snapshot
		node string
		uid  types.UID
		gone bool
		want string
	}{
		{"the directory exists", claimed(whole), "pi-1", "v-1", false, "made"},
		{"another device's directory exists", claimed(whole), "pi-2", "v-1", false, ""},
		{"an unknown volume", claimed(whole), "pi-1", "v-2", false, ""},
		{"an invalid volume", claimed(whole), "pi-1", "p-1", true, ""},
		{"the data was removed without a request", claimed(whole), "pi-1", "v-1", true, ""},
		{"the data was removed as requested", claimed(gone), "pi-1", "v-1", true, "removed"},
		{"another device reports the data as removed", claimed(gone), "pi-2", "v-1", true, ""},
	} {
		got := ""
		for _, change := range volumeChanges(c.s, c.node, []wire.VolumeState{{UID: c.uid, Gone: c.gone}}) {
			if got = "made"; change.Delete {
				got = "removed"
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	v := claimed(whole).Volume("v").DeepCopy()
	v.Annotations = map[string]string{state.MadeAnnotation: "true"}
	s, _ := state.Apply(claimed(whole), []state.Change{state.Put(v, "")})
	if changes := volumeChanges(s, "pi-1", []wire.VolumeState{{UID: "v-1"}}); len(changes) > 0 {
		t.Error("a known state is written again")
	}
}
