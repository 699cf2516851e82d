package admin

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

func TestWhatAPodAsksForInWords(t *testing.T) {
	want := []frame.Fact{
		{Name: "Priority", Value: "1000, tills"}, {Name: "Node selector", Value: "disk=ssd, room=2"},
		{Name: "Affinity", Value: "needs a node with the label gpu and no label old, or board in (a, b); prefers a node with fast=yes (weight 5); must be near pods with app=cache, by kubernetes.io/hostname; would rather be away from pods with app=till, by kubernetes.io/hostname (weight 7)"},
		{Name: "Spread", Value: "over topology.kubernetes.io/zone, by 1 at most, if it can be"},
		{Name: "Tolerates", Value: "node.kubernetes.io/unreachable:NoExecute for 5m; camera=broken:NoSchedule; every taint; old:NoExecute for 292y"}, {Name: "Service account", Value: "robot"}, {Name: "Network", Value: "that of its node"},
	}
	if got := askFacts(admintest.Pod("p", "pi-1", admintest.Choosy)); !slices.Equal(got, want) {
		t.Errorf("%v, want\n%v", got, want)
	}
	if got := askFacts(admintest.Pod("p", "pi-1", nil)); len(got) > 0 {
		t.Errorf("who asks for nothing asks for %v", got)
	}
	for text, r := range map[string]corev1.ResourceRequirements{
		"Requests nothing, and has no limit.":           {},
		"Requests 250m cpu, 64Mi memory; has no limit.": {Requests: corev1.ResourceList{"memory": resource.MustParse("64Mi"), "cpu": resource.MustParse("250m")}},
		"Requests nothing; limit 1 example.com/tpu.":    {Limits: corev1.ResourceList{"example.com/tpu": resource.MustParse("1")}},
		"Requests 250m cpu; limit 1 cpu.":               {Requests: corev1.ResourceList{"cpu": resource.MustParse("250m")}, Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}},
	} {
		if got := asksText(corev1.Container{Resources: r}); got != text {
			t.Errorf("%q, want %q", got, text)
		}
	}
}

func TestOwnersAreLinkedUpToTheWorkload(t *testing.T) {
	m := admintest.New(admintest.Sample()...)
	below := func(o, up state.Object) state.Object {
		o.SetNamespace("default")
		if up != nil {
			o.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(up, state.KindOf(up).GroupVersionKind())})
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

// TestAPodThatAsksForMuchInABrowser looks at a page with all of it.
func TestAPodThatAsksForMuchInABrowser(t *testing.T) {
	t.Parallel()
	k := newKitOf(t, append(admintest.Sample(), admintest.Pod("choosy", "pi-1", admintest.Choosy), configMap(nil))...)
	k.open("/pods/default/choosy")
	k.says("Requests 250m cpu, 192Mi memory; has no limit.", "Where it may run", "Volumes", "Persistent volume claim: ledger (not there)", "web: /etc/colours (read only)", "at most 64Mi")
	if !k.eval(`document.querySelector(".volumes a").getAttribute("href").startsWith("/yaml/api/v1/namespaces/default/configmaps/colours")`) {
		t.Error("the config map is not linked")
	}
	k.look("choosy")
}
