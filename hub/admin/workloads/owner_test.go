package workloads

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

func TestOwnersAreLinkedUpToTheWorkload(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	below := func(o, up state.Object) state.Object {
		o.SetNamespace("default")
		if up != nil {
			o.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(up,
				state.KindOf(up).GroupVersionKind())})
		}
		m.Put(t, o)
		return m.Snapshot().Get(state.KeyOf(o))
	}
	d := below(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, nil)
	rs := below(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "shop-1"}}, d)
	cron := below(&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "night"}}, nil)
	job := below(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "night-1"}}, cron)
	for _, c := range []struct {
		up   state.Object
		want string
	}{
		{rs, "ReplicaSet shop-1 /yaml/apis/apps/v1/namespaces/default/replicasets/shop-1, Deployment shop /workloads/deployments/default/shop"},
		{job, "Job night-1 /pods?namespace=default&owner=job%2Fnight-1, CronJob night /yaml/apis/batch/v1/namespaces/default/cronjobs/night"},
		{nil, ""},
	} {
		p := below(admintest.Pod("p", "pi-1", nil), c.up)
		var got []string
		for _, l := range frame.OwnerLinks(m.Snapshot(), p) {
			got = append(got, l.Kind+" "+l.Name+" "+l.Href)
		}
		if text := strings.Join(got, ", "); text != c.want {
			t.Errorf("%q, want %q", text, c.want)
		}
	}
}
