package volume_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/volume"
)

var noon = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

// A stage is a fleet with only the volume decider. The test places pods and reports for devices.
type stage struct {
	t   *testing.T
	s   state.Snapshot
	log []state.Applied
}

func newStage(t *testing.T) *stage {
	g := &stage{t: t, s: state.Empty("volumes", noon)}
	g.settle(volume.Decider{}.Subjects(g.s))
	for _, n := range []string{"pi-1", "pi-2"} {
		g.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}})
	}
	return g
}

// settle runs the decider until it settles, and checks that a full pass then changes nothing.
func (g *stage) settle(subjects []state.Subject) {
	g.t.Helper()
	for range 20 {
		plan := volume.Decider{}.Decide(g.s, subjects, noon)
		var done []state.Applied
		g.s, done = state.Apply(g.s, plan.Changes)
		g.log = append(g.log, done...)
		if subjects = state.Touched(volume.Decider{}.Touches, done); len(subjects) == 0 {
			if rest := (volume.Decider{}).Decide(g.s, volume.Decider{}.Subjects(g.s), noon); len(rest.Changes) > 0 {
				g.t.Fatalf("a full pass still changes %v", rest.Changes)
			}
			return
		}
	}
	g.t.Fatal("the decider does not settle")
}

func (g *stage) apply(c state.Change) {
	g.t.Helper()
	var done []state.Applied
	g.s, done = state.Apply(g.s, []state.Change{c})
	g.settle(state.Touched(volume.Decider{}.Touches, done))
}

func (g *stage) put(o state.Object) { g.t.Helper(); g.apply(state.Put(o, "")) }

// delete deletes an object as the API does: it only marks an object with finalizers.
func (g *stage) delete(o state.Object) {
	g.t.Helper()
	if len(o.GetFinalizers()) == 0 {
		g.apply(state.Remove(o, ""))
		return
	}
	o = o.DeepCopyObject().(state.Object)
	at := metav1.NewTime(noon)
	o.SetDeletionTimestamp(&at)
	g.put(o)
}

func (g *stage) claim(name string, change ...func(*corev1.PersistentVolumeClaim)) {
	g.t.Helper()
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse("1Gi")}
	for _, f := range change {
		f(c)
	}
	g.put(c)
}

func (g *stage) pod(name, node, claim string) {
	g.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	p.Spec.NodeName = node
	p.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	g.put(p)
}

func (g *stage) of(claim string) *corev1.PersistentVolumeClaim { return g.s.Claim("default", claim) }

// says returns the state of the claims and volumes as text.
func (g *stage) says() string {
	var all []string
	for c := range state.Each[*corev1.PersistentVolumeClaim](g.s, state.Claims, "") {
		all = append(all, fmt.Sprintf("%s %s%s", c.Name, c.Status.Phase, ends(c)))
	}
	for v := range state.Each[*corev1.PersistentVolume](g.s, state.Volumes, "") {
		remove := ""
		if state.MustRemoveData(v) {
			remove = " remove"
		}
		all = append(all, fmt.Sprintf("volume %s %s%s%s", v.Status.Phase, state.NodeOfVolume(v), ends(v), remove))
	}
	return strings.Join(all, ", ")
}

func ends(o metav1.Object) string {
	if o.GetDeletionTimestamp() != nil {
		return " terminating"
	}
	return ""
}

func (g *stage) want(says string) {
	g.t.Helper()
	if got := g.says(); got != says {
		g.t.Fatalf("the state is %q, want %q", got, says)
	}
}

func (g *stage) only() *corev1.PersistentVolume {
	g.t.Helper()
	for v := range state.Each[*corev1.PersistentVolume](g.s, state.Volumes, "") {
		return v
	}
	g.t.Fatal("there is no volume")
	return nil
}

func (g *stage) told(reason string) bool {
	return slices.ContainsFunc(g.log, func(a state.Applied) bool { return a.Change.Reason == reason })
}

func retain(g *stage) func(*corev1.PersistentVolumeClaim) {
	keep, mode := corev1.PersistentVolumeReclaimRetain, storagev1.VolumeBindingWaitForFirstConsumer
	g.put(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "keeps"}, Provisioner: state.LocalProvisioner,
		ReclaimPolicy: &keep, VolumeBindingMode: &mode})
	return class("keeps")
}

func class(name string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = &name }
}

func TestVolumes(t *testing.T) {
	for name, story := range map[string]func(g *stage){
		"a claim waits for its first pod and gets its volume on that pod's node": func(g *stage) {
			g.claim("data")
			if c := g.of("data"); c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != state.LocalClass ||
				!g.told("WaitForFirstConsumer") {
				g.t.Errorf("the claim has no class, or no event says that it waits: %+v", c)
			}
			g.pod("a", "", "data")
			g.want("data Pending")
			g.pod("a", "pi-1", "data")
			g.want("data Bound, volume Bound pi-1")
			v := g.only()
			if !g.told("ProvisioningSucceeded") || v.UID != state.VolumeUID(g.of("data")) ||
				v.Spec.Local.Path != "persistent/"+string(v.UID) {
				g.t.Errorf("the volume is %+v", v)
			}
			g.pod("b", "pi-2", "data") // with a node name set by a user
			g.want("data Bound, volume Bound pi-1")
		},
		"the volume remains after its pods": func(g *stage) {
			g.claim("data")
			g.pod("a", "pi-1", "data")
			g.delete(g.s.Pod("default", "a"))
			g.want("data Bound, volume Bound pi-1")
		},
		"a claim created after its pod is bound at once": func(g *stage) {
			g.pod("a", "pi-2", "data")
			g.claim("data")
			g.want("data Bound, volume Bound pi-2")
		},
		"a claim in use is removed with its last pod, and its data after the device's report": func(g *stage) {
			g.claim("data")
			g.pod("a", "pi-1", "data")
			g.delete(g.of("data"))
			g.want("data Bound terminating, volume Bound pi-1")
			g.delete(g.s.Pod("default", "a"))
			g.want("volume Released pi-1 terminating remove")
		},
		"a pod without a node does not block a claim's removal": func(g *stage) {
			g.claim("data")
			g.pod("a", "", "data")
			g.delete(g.of("data"))
			g.want("")
		},
		"a user makes a retained volume available": func(g *stage) {
			g.claim("data", retain(g))
			g.pod("a", "pi-1", "data")
			g.delete(g.s.Pod("default", "a"))
			g.delete(g.of("data"))
			g.want("volume Released pi-1")
			g.claim("data", class("keeps"))
			g.want("data Pending, volume Released pi-1")
			v := g.only().DeepCopy()
			v.Spec.ClaimRef = nil
			g.put(v)
			g.want("data Pending, volume Available pi-1")
			g.claim("again", class("keeps"), func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = v.Name })
			g.want("again Bound, data Pending, volume Bound pi-1")
		},
		"a retained volume is bound to the claim that names it, in any order": func(g *stage) {
			g.claim("data", retain(g))
			g.pod("a", "pi-1", "data")
			g.delete(g.s.Pod("default", "a"))
			g.delete(g.of("data"))
			v := g.only().DeepCopy()
			g.claim("again", class("keeps"), func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = v.Name })
			g.pod("b", "", "again")
			g.want("again Pending, volume Released pi-1")
			v.Spec.ClaimRef = nil
			g.put(v)
			g.want("again Bound, volume Bound pi-1")
		},
		"a retained volume is removed without its data": func(g *stage) {
			g.claim("data", retain(g))
			g.pod("a", "pi-1", "data")
			g.delete(g.s.Pod("default", "a"))
			g.delete(g.of("data"))
			g.delete(g.only())
			g.want("")
		},
		"a bound volume is not removed before its claim": func(g *stage) {
			g.claim("data")
			g.pod("a", "pi-1", "data")
			g.delete(g.only())
			g.want("data Bound, volume Bound pi-1 terminating")
		},
		"changing the policy to Retain in time keeps the data": func(g *stage) {
			g.claim("data")
			g.pod("a", "pi-1", "data")
			g.delete(g.s.Pod("default", "a"))
			g.delete(g.of("data"))
			g.want("volume Released pi-1 terminating remove")
			v := g.only().DeepCopy()
			v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
			g.put(v)
			g.want("")
		},
		"a claim whose volume a user deletes is lost and gets no other volume": func(g *stage) {
			g.claim("data")
			g.pod("a", "pi-1", "data")
			g.apply(state.Remove(g.only(), ""))
			g.want("data Lost")
			if !g.told("ClaimLost") {
				g.t.Error("there is no event")
			}
			g.pod("b", "pi-2", "data")
			g.want("data Lost")
		},
		"a volume remains after its node": func(g *stage) {
			g.claim("data")
			g.pod("a", "pi-1", "data")
			g.delete(g.s.Pod("default", "a"))
			g.apply(state.Remove(g.s.Node("pi-1"), ""))
			g.want("data Bound, volume Bound pi-1")
		},
		"a pod with a node name gets its volume when that node appears": func(g *stage) {
			g.claim("data")
			g.pod("a", "pi-3", "data")
			g.want("data Pending")
			g.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-3"}})
			g.want("data Bound, volume Bound pi-3")
		},
		"a claim with a missing class waits for it": func(g *stage) {
			g.claim("data", class("keeps"))
			g.pod("a", "pi-1", "data")
			g.want("data Pending")
			retain(g)
			g.want("data Bound, volume Bound pi-1")
		},
		"a claim with the empty class is never bound": func(g *stage) {
			g.claim("data", class(""))
			g.pod("a", "pi-1", "data")
			g.want("data Pending")
		},
		"the built-in class is restored": func(g *stage) {
			g.delete(g.s.StorageClass(state.LocalClass))
			if g.s.StorageClass(state.LocalClass) == nil {
				g.t.Error("the class is not restored")
			}
		},
		"a removed finalizer is added again": func(g *stage) {
			g.claim("data")
			g.pod("a", "pi-1", "data")
			c, v := g.of("data").DeepCopy(), g.only().DeepCopy()
			c.Finalizers, v.Finalizers = nil, nil
			g.put(c)
			g.put(v)
			if len(g.of("data").Finalizers) != 1 || len(g.only().Finalizers) != 2 {
				g.t.Errorf("the finalizers of the claim are %v, of the volume %v", g.of("data").Finalizers, g.only().Finalizers)
			}
		},
		"a new claim with the same name gets a new volume": func(g *stage) {
			g.claim("data")
			g.pod("a", "pi-1", "data")
			was := g.only().UID
			g.delete(g.s.Pod("default", "a"))
			g.delete(g.of("data"))
			g.claim("data")
			g.pod("b", "pi-1", "data")
			if now := state.VolumeOf(g.s, g.of("data")); now == nil || now.UID == was {
				g.t.Errorf("the new claim has the volume %v, the former one had %v", now, was)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); story(newStage(t)) })
	}
}
