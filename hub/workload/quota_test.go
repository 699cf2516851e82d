package workload

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// TestWhatIsUsedIsCounted holds the status against what there is, told only what changes.
func TestWhatIsUsedIsCounted(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	s := state.Empty("hub", now)
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "a"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		"pods": resource.MustParse("2"), "count/pods": resource.MustParse("9"), "requests.cpu": resource.MustParse("1"), "resourcequotas": resource.MustParse("5")}},
		Status: corev1.ResourceQuotaStatus{Used: corev1.ResourceList{"pods": resource.MustParse("77")}}} // as a strange database may say
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}}}}}
	}
	done, leaving, elsewhere := pod("done"), pod("leaving"), pod("elsewhere")
	done.Status.Phase, elsewhere.Namespace = corev1.PodSucceeded, "b"
	leaving.DeletionTimestamp, leaving.DeletionGracePeriodSeconds = &metav1.Time{Time: now.Add(10 * time.Second)}, new(int64(10))
	step := func(at time.Time, want string, changes ...state.Change) {
		t.Helper()
		next, log := state.Apply(s, changes)
		plan := Quotas{}.Decide(next, state.Touched(Quotas{}.Touches, log), at)
		s, _ = state.Apply(next, plan.Changes)
		u := s.Get(state.KeyOf(q)).(*corev1.ResourceQuota).Status.Used
		pods, all, cpu, quotas := u["pods"], u["count/pods"], u["requests.cpu"], u["resourcequotas"]
		if got := fmt.Sprint(pods.String(), " ", all.String(), " ", cpu.String(), " ", quotas.String()); got != want {
			t.Errorf("used are %s, want %s", got, want)
		}
	}
	step(now, "0 0 0 1", state.Put(q, ""))
	step(now, "2 3 200m 1", state.Put(done, ""), state.Put(leaving, ""), state.Put(pod("x"), ""), state.Put(elsewhere, ""))
	ended := pod("x")
	ended.Status.Phase = corev1.PodFailed
	step(now, "1 3 100m 1", state.Put(ended, ""))
	step(now.Add(time.Minute), "1 3 100m 1") // nobody has told: the alarm does
	plan := Quotas{}.Decide(s, Quotas{}.Subjects(s), now)
	if len(plan.Changes) > 0 || len(plan.Alarms) != 1 || !plan.Alarms[0].At.Equal(now.Add(20*time.Second+1)) {
		t.Errorf("it wants %v and is woken %v", plan.Changes, plan.Alarms)
	}
	if plan = (Quotas{}).Decide(s, Quotas{}.Subjects(s), plan.Alarms[0].At); len(plan.Changes) != 1 {
		t.Errorf("a pod that should have stopped still counts: %v", plan.Changes)
	}
	step(now, "0 1 0 1", state.Remove(leaving, ""), state.Remove(ended, ""))
}
