package sim

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

// annotate requests drains of nodes, like kubectl annotate.
func (w *world) annotate(order string, nodes ...string) {
	w.t.Helper()
	w.do(func(s state.Snapshot, _ time.Time) (changes []state.Change, err error) {
		for _, name := range nodes {
			n := s.Node(name).DeepCopy()
			if n.Annotations == nil {
				n.Annotations = map[string]string{}
			}
			n.Annotations[state.DrainAnnotation] = order
			changes = append(changes, state.Put(n, ""))
		}
		return changes, nil
	})
}

// A drain continues after a crash of the hub at any moment, keeps to the budget, and ends.
func TestFleetADrainSurvivesACrashInEveryState(t *testing.T) {
	t.Parallel()
	for _, away := range []time.Duration{0, time.Second, 30 * time.Second, 10 * time.Minute} {
		t.Run(away.String(), func(t *testing.T) {
			t.Parallel()
			simulate(t, func(t *testing.T, w *world) {
				w.lightUp(w.newLights("oslo", 6), 12)
				least := intstr.FromInt32(11)
				w.put(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
					Spec: policyv1.PodDisruptionBudgetSpec{
						MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}}})
				w.annotate(`{"timeout":"2h"}`, "oslo-01", "oslo-02", "oslo-03")
				ready := func() (n int) {
					for _, p := range w.pods("kiosk") {
						if p.DeletionTimestamp == nil && readyOf(&p.Status) == corev1.ConditionTrue {
							n++
						}
					}
					return n
				}
				over := func() bool {
					for _, name := range []string{"oslo-01", "oslo-02", "oslo-03"} {
						if state.DrainStatusOf(w.node(name)).Going() {
							return false
						}
					}
					return true
				}
				crashes := 0
				for end := time.Now().Add(2 * time.Hour); !over(); {
					if time.Now().After(end) {
						t.Fatal("the drain does not end")
					}
					if n := ready(); n < 11 {
						t.Errorf("%d pods are ready, and the budget needs 11", n)
					}
					time.Sleep(time.Duration(w.rand.Int64N(int64(time.Second))))
					if crashes++; crashes < 8 {
						w.crashHub()
						time.Sleep(away)
						w.startHub()
						time.Sleep(time.Duration(w.rand.Int64N(int64(3 * time.Second))))
					}
				}
				for _, name := range []string{"oslo-01", "oslo-02", "oslo-03"} {
					n := w.node(name)
					if st := state.DrainStatusOf(n); st.State != state.Drained || !n.Spec.Unschedulable ||
						n.Annotations[state.DrainAnnotation] != "" {
						t.Errorf("%s: %+v, cordoned %v", name, st, n.Spec.Unschedulable)
					}
					for p := range w.snapshot().PodsOn(name) {
						t.Errorf("%s is still on %s", p.Name, name)
					}
				}
				if crashes < 2 {
					t.Error("the drain ended before the hub crashed twice")
				}
			})
		})
	}
}
