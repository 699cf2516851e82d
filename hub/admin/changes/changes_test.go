package changes_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/changes"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

func ago(d time.Duration) metav1.MicroTime { return metav1.NewMicroTime(admintest.Now.Add(-d)) }

// shopFleet is a node whose link flapped, and a Deployment with two versions and a pod that crashed.
func shopFleet(t *testing.T) state.Snapshot {
	m := admintest.Work(t)
	s := m.Snapshot()
	for i, h := range []int{30, 3} {
		rs := s.Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: fmt.Sprintf("shop-hash%d", i+1)}).
			DeepCopyObject().(*appsv1.ReplicaSet)
		rs.CreationTimestamp = admintest.Ago(time.Duration(h) * time.Hour)
		m.Put(t, rs)
	}
	rs := m.Snapshot().Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "shop-hash2"})
	crashed := admintest.Crashed("shop-1", "pi-8", nil)
	crashed.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs,
		appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	turns := []state.HealthChange{{At: ago(30 * time.Hour), Ready: "Unknown"}, {At: ago(20 * time.Hour), Ready: "True"}}
	for i := range 6 {
		ready := []corev1.ConditionStatus{"Unknown", "True"}[i%2]
		turns = append(turns, state.HealthChange{At: ago(2*time.Hour - time.Duration(i)*time.Minute), Ready: ready})
	}
	n := m.Snapshot().Node("pi-8").DeepCopy()
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, TimeAdded: new(admintest.Ago(time.Hour))}}
	m.Put(t, n, crashed, admintest.Node("pi-9", "oslo", nil),
		&state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-8"}, History: turns,
			Evicted: []state.Evicted{{At: ago(90 * time.Minute), Pod: "default/a"},
				{At: ago(90*time.Minute - time.Second), Pod: "press/b"}}},
		&state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-9"},
			History: []state.HealthChange{{At: ago(20*time.Hour - time.Second), Ready: "True"}}},
		admintest.Event("Node", "pi-8", "Rebooted", "node pi-8 has another boot id", 5*time.Hour),
		admintest.Event("Node", "pi-8", "NodeReady", "the history already says this", 20*time.Hour),
		&fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "cgroups"}, Status: fleet.FirmwareRolloutStatus{
			Batches: []fleet.FirmwareBatch{{Number: 2, Site: "oslo", Nodes: []string{"pi-8"},
				Began: admintest.Ago(6 * time.Hour), Ended: new(admintest.Ago(5*time.Hour + time.Minute)), Kept: 1}}}})
	return m.Snapshot()
}

func audit(d time.Duration, verb, resource, namespace, name string, code int) store.Audit {
	return store.Audit{At: admintest.Now.Add(-d), Who: "anna", Verb: verb, Resource: resource, Namespace: namespace,
		Name: name, Code: code}
}

// The lists of a node, a site and a workload have all changes of the last day, and only their own.
func TestEachListHasItsOwnChanges(t *testing.T) {
	s := shopFleet(t)
	audits := []store.Audit{
		audit(10*time.Minute, "patch", "nodes", "", "pi-8", 200), audit(11*time.Minute, "delete", "nodes", "", "pi-8", 403),
		audit(12*time.Minute, "patch", "nodes", "", "pi-1", 200), audit(13*time.Minute, "get", "nodes", "", "pi-8", 200),
		audit(14*time.Minute, "update", "deployments/scale", "default", "shop", 200),
		audit(15*time.Minute, "patch", "sites", "", "oslo", 200), audit(25*time.Hour, "patch", "nodes", "", "pi-8", 200),
	}
	shop := s.Deployment("default", "shop")
	const (
		cordoned = "1h0m0s Cordon or drain: pi-8: cordoned"
		crash    = "4m0s Crash: shop-1: container web failed with exit code 137 (OOMKilled), restarted 6 times"
		evicted  = "1h30m0s Readiness: a, press/b had to leave pi-8"
		flapped  = "1h55m0s Readiness: pi-8: Ready changed 6 times in 5 min, at last to ready"
		version  = "3h0m0s Version: Deployment shop: version 2, image registry.example/shop:2"
		boot     = "5h1m0s Boot configuration: Rollout cgroups: batch 2 on pi-8 ended: 1 kept, 0 went back"
		began    = "6h0m0s Boot configuration: Rollout cgroups: batch 2 on pi-8 started"
		rebooted = "5h0m0s Readiness: Node pi-8 has another boot id"
		scaled   = "14m0s User change: anna changed scale of deployment default/shop"
		site     = "15m0s User change: anna changed site oslo"
		byHand   = "10m0s User change: anna changed node pi-8"
		ready    = "20h0m0s Readiness: pi-8: ready"
		kiosk    = "4m0s Crash: kiosk-7d9f-crash: container web failed with exit code 1, restarted 7 times"
	)
	for _, c := range []struct {
		name string
		of   changes.Subject
		want []string
	}{
		{"a node", changes.NodeSubject(s, s.Node("pi-8")),
			[]string{crash, byHand, scaled, site, cordoned, evicted, flapped, version, rebooted, boot, began, ready}},
		{"its site", changes.SiteSubject(s, s.Site("oslo")), []string{
			"1m30s Readiness: pi-2: silent", kiosk, crash, byHand,
			"12m0s User change: anna changed node pi-1", site, cordoned, evicted, flapped, version, rebooted, boot, began,
			"7h0m0s Readiness: pi-2: ready", "8h0m0s Readiness: kiosk-7d9f-old had to leave pi-2",
			"8h55m0s Readiness: pi-2: given up, pods leave", "9h0m0s Readiness: pi-2: silent",
			"19h0m0s Readiness: pi-2: ready", "20h0m0s Readiness: pi-2: not ready", "20h0m0s Readiness: pi-8, pi-9: ready"}},
		{"a workload", changes.Subject{Object: shop, Workloads: []state.Object{shop},
			Pods: []*corev1.Pod{s.Pod("default", "shop-1")}}, []string{crash, scaled, version}},
		{"a node without changes", changes.NodeSubject(s, admintest.Node("pi-7", "bergen", nil)), nil},
	} {
		var got []string
		all := changes.Of(s, c.of, audits, admintest.Now)
		for _, e := range all {
			if e.Kind != changes.Incident && e.Kind != changes.Scaling {
				got = append(got, fmt.Sprintf("%s %s: %s", admintest.Now.Sub(e.At), e.Kind, e.Text))
			}
		}
		slices.Sort(got) // entries of the same moment have no order
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
		if !slices.IsSortedFunc(all, func(x, y changes.Entry) int { return y.At.Compare(x.At) }) {
			t.Errorf("%s: the newest entry is not first", c.name)
		}
	}
}
