package incident_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// big returns a fleet of 50 nodes per site and ten pods per node. The dark nodes are all on the
// last site.
func big(nodes, dark int) state.Snapshot {
	var changes []state.Change
	put := func(o state.Object) { changes = append(changes, state.Put(o, "")) }
	next := metav1.NewMicroTime(noon.Add(time.Minute))
	put(&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "dark"}, Status: fleet.SiteStatus{State: fleet.SiteFullDisruption,
		EvictionRate: "0.1", NextEviction: &next, Waiting: int32(dark)}})
	for d := range 100 {
		put(deployment(fmt.Sprint("kiosk", d), int32(nodes/10), int32(nodes/20)))
		put(replicaSet(fmt.Sprintf("kiosk%d-1", d), fmt.Sprint("kiosk", d)))
	}
	for i := range nodes {
		name, site, status := fmt.Sprintf("n-%05d", i), fmt.Sprint("site-", i/50), corev1.ConditionTrue
		if i < dark {
			site, status = "dark", corev1.ConditionUnknown
		}
		n := node(name, site, nil)
		n.Status.Conditions[0].Status = status
		n.Status.Conditions[0].LastTransitionTime = metav1.NewTime(noon.Add(time.Duration(i) * time.Millisecond))
		if i < dark/2 {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: noon.Add(time.Duration(i-dark) * 10 * time.Second)}}} // one after the other at the eviction rate of the site
		}
		put(n)
		put(&state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, Boot: "b"})
		for j := range 10 {
			put(pod(fmt.Sprintf("p-%05d-%d", i, j), name, owned(fmt.Sprintf("kiosk%d-1", (i+j)%100))))
		}
	}
	s, _ := state.Apply(state.Empty("x", noon.Add(-time.Hour)), changes)
	return s
}

// BenchmarkPass counts a dark site when one more of its nodes becomes silent.
func BenchmarkPass(b *testing.B) {
	for _, size := range []struct{ nodes, dark int }{{500, 300}, {5000, 3000}} {
		b.Run(fmt.Sprintf("nodes=%d/dark=%d", size.nodes, size.dark), func(b *testing.B) {
			s := big(size.nodes, size.dark)
			subjects := []state.Subject{state.About(state.Key{Kind: state.Sites, Name: "dark"})}
			now := noon.Add(30 * time.Second)
			plan := decider.Decide(s, subjects, now)
			s, _ = state.Apply(s, plan.Changes)
			now = now.Add(2 * time.Second)
			before := cpu(b)
			for b.Loop() {
				decider.Decide(s, subjects, now)
			}
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
	b.Run("nodes=5000/everything", func(b *testing.B) {
		s := big(5000, 3000)
		for b.Loop() {
			decider.Decide(s, decider.Subjects(s), noon.Add(30*time.Second))
		}
	})
}

// cpu is the processor time of this process. Other programs on the machine do not change it.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
