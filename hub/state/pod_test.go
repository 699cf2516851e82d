package state_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// A second deletion never extends the grace period. A forced deletion ends it.
func TestASecondDeletionOnlyShortensTheGrace(t *testing.T) {
	at := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name  string
		after time.Duration
		grace *int64
		until time.Duration
		left  int64
		ok    bool
	}{
		{"without a grace period", 5 * time.Second, nil, 0, 0, false},
		{"with a longer grace period", 5 * time.Second, new(int64(60)), 0, 0, false},
		{"with a shorter grace period", 5 * time.Second, new(int64(10)), 15 * time.Second, 10, true},
		{"with a shorter grace period that ends later", 25 * time.Second, new(int64(10)), 0, 0, false},
		{"by force", 5 * time.Second, new(int64(0)), 5 * time.Second, 0, true},
		{"by force after the deadline", time.Hour, new(int64(0)), 30 * time.Second, 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p",
				Finalizers: []string{"example.org/held"}}, Spec: corev1.PodSpec{NodeName: "pi-1"}}
			first, _ := state.Delete(p, at, new(int64(30)), "")
			again, ok := state.Delete(first.Object.(*corev1.Pod), at.Add(c.after), c.grace, "")
			if ok != c.ok {
				t.Fatalf("the second deletion changes the pod: %t, want %t", ok, c.ok)
			}
			if !ok {
				return
			}
			if p = again.Object.(*corev1.Pod); *p.DeletionGracePeriodSeconds != c.left ||
				!p.DeletionTimestamp.Time.Equal(at.Add(c.until)) {
				t.Errorf("the grace period is %d s until %s, want %d s until %s", *p.DeletionGracePeriodSeconds,
					p.DeletionTimestamp, c.left, at.Add(c.until))
			}
			if _, ok := state.Delete(p, at.Add(c.after+time.Minute), c.grace, ""); ok {
				t.Error("a third deletion changes the pod")
			}
		})
	}
}
