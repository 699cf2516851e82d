package control

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/state"
)

// A narrow store has no room for Pods, as long as it is narrow.
type narrow struct{ is atomic.Bool }

func (n *narrow) Commit(_ context.Context, rows []Row, _ uint64) error {
	for _, r := range rows {
		if n.is.Load() && r.Key.Kind == state.Pods {
			return fmt.Errorf("write a pod: %w", ErrFull)
		}
	}
	return nil
}

// TestWhatNewsHandsOverIsNotLost where only the news could be remembered: a deadline that ran when a
// node was deleted goes on.
func TestWhatNewsHandsOverIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		at := metav1.NewTime(began)
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", CreationTimestamp: metav1.NewTime(began.Add(-time.Hour))}}
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &at}}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kiosk", Namespace: "default", CreationTimestamp: n.CreationTimestamp}}
		p.Spec = corev1.PodSpec{NodeName: "pi-1", Tolerations: []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(300))}}}
		s, _ := state.Apply(state.Empty("salt", began), []state.Change{state.Put(n, ""), state.Put(p, "")})
		store := &narrow{}
		store.is.Store(true)
		l := New(Config{Start: s, Store: store, Deciders: []Decider{eviction.Decider{Silence: state.Silence{Grace: 40 * time.Second, Lease: 10 * time.Second}}}})
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- l.Run(ctx) }()
		time.Sleep(time.Minute)
		if _, err := l.Do(ctx, func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			return []state.Change{state.Remove(s.Node("pi-1"), "delete node pi-1")}, nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		store.is.Store(false)
		time.Sleep(5 * time.Minute)
		if l.Snapshot().Pod("default", "kiosk").DeletionTimestamp == nil {
			t.Error("the deadline that ran when the node was deleted is forgotten")
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}
