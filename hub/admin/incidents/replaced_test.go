package incidents

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// The timeline says where the pods are that were made for those that had to leave.
func TestATimelineSaysWhereTheReplacementsAre(t *testing.T) {
	left := func(pods ...string) *state.Record {
		r := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}}
		for _, p := range pods {
			r.Evicted = append(r.Evicted, state.Evicted{Pod: "default/" + p,
				At: metav1.NewMicroTime(admintest.Now.Add(-10 * time.Minute))})
		}
		return r
	}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk-1", UID: "rs"}}
	made := func(name, node string, ago time.Duration) *corev1.Pod {
		return admintest.Pod(name, node, func(p *corev1.Pod) {
			p.UID, p.CreationTimestamp = types.UID(name), admintest.Ago(ago)
			p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set,
				state.ReplicaSets.GroupVersionKind())}
		})
	}
	old := made("kiosk-1-old", "brg-1", time.Hour)
	for _, c := range []struct {
		name string
		left *state.Record
		made []state.Object
		want string
	}{
		{"no pod left", left(), []state.Object{old}, ""},
		{"not replaced yet", left("kiosk-1-a"), []state.Object{old}, ""},
		{"a pod of another workload", left("other-1-a"), []state.Object{made("kiosk-1-b", "brg-1", time.Minute)}, ""},
		{"one, on a node", left("kiosk-1-a"), []state.Object{made("kiosk-1-b", "brg-1", 9*time.Minute)},
			"Pod kiosk-1-b was made for it, on brg-1"},
		{"one, without a node", left("kiosk-1-a"), []state.Object{made("kiosk-1-b", "", 9*time.Minute)},
			"Pod kiosk-1-b was made for it, and has no node"},
		{"as many as left, not those of a later scaling", left("kiosk-1-a", "kiosk-1-b"), []state.Object{old,
			made("kiosk-1-c", "brg-1", 9*time.Minute), made("kiosk-1-d", "", 8*time.Minute),
			made("kiosk-1-e", "brg-1", 7*time.Minute)},
			"2 pods were made for those that had to leave: 1 on bergen, 1 without a node"},
		{"fewer than left", left("kiosk-1-a", "kiosk-1-b"), []state.Object{made("kiosk-1-c", "brg-1", 9*time.Minute)},
			"1 pod was made for the 2 that had to leave: 1 on bergen"},
	} {
		dark := opened("dark", "Site", "oslo", diagnose.SiteDark, fleet.SeverityCritical, time.Hour)
		dark.Moved = new(admintest.Ago(10 * time.Minute))
		m := admintest.New(append(c.made, &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}}, set, c.left,
			admintest.Node("pi-1", "oslo", nil), admintest.Node("brg-1", "bergen", nil))...)
		r := replacedBy(m.Snapshot(), dark, admintest.Now)
		got := ""
		if r.made > 0 {
			got = r.text()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	r := replacement{left: 9, made: 9, on: map[string]int{}}
	for i := range 5 {
		r.on[fmt.Sprint("site-", i)] = 3 - i/2
	}
	const want = "9 pods were made for those that had to leave: 3 on site-0, 3 on site-1, 2 on site-2, 3 on 2 other sites"
	if got := r.text(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
