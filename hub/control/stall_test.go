package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/state"
)

func TestAStallIsATimeWithoutChecks(t *testing.T) {
	var s stalls
	s.begin(3 * time.Second)
	for _, c := range []struct {
		says  string
		at    time.Duration
		ended time.Duration
		found bool
	}{
		{"the time before the start counts as a stall", 3 * time.Second, 3 * time.Second, false},
		{"a check a second later finds no stall", 4 * time.Second, 3 * time.Second, false},
		{"a late check is not a stall", 9 * time.Second, 3 * time.Second, false},
		{"a very late check is a stall", 9*time.Second + maxBeatGap + 1, 9*time.Second + maxBeatGap + 1, true},
		{"a stall is found once", 9*time.Second + maxBeatGap + 2, 9*time.Second + maxBeatGap + 1, false},
		{"the next stall is found separately", 300 * time.Second, 300 * time.Second, true},
		{"the order of two checks at one moment does not matter", 299 * time.Second, 300 * time.Second, false},
	} {
		if ended, _, found := s.check(c.at); ended != c.ended || found != c.found {
			t.Errorf("%s: ended %s, found %v", c.says, ended, found)
		}
	}
}

func TestAfterAStallEveryNodeHasItsFullGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := New(Config{Start: state.Empty("salt", began)})
		time.Sleep(20 * time.Second) // a slow start without connections
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- l.Run(ctx) }()
		look := func() time.Duration {
			if _, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
			return l.Snapshot().SeenReset().Sub(began)
		}
		if got := look(); got != 20*time.Second {
			t.Errorf("the grace period begins %s after the process, want it from when devices could connect", got)
		}
		time.Sleep(10 * time.Minute)
		if got := look(); got != 20*time.Second {
			t.Errorf("ten minutes without messages count as a stall: %s", got)
		}
		time.Sleep(stallBeat / 2)
		l.stalls.mu.Lock()
		l.stalls.beat -= 200 * time.Second // as after SIGSTOP and SIGCONT: no check for so long
		l.stalls.mu.Unlock()
		at := time.Since(began)
		if got := look(); got != at {
			t.Errorf("every node counts as seen at %s, want %s", got, at)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// A device that came back during a stall gets time to report, as after a restart of the hub. Its
// pods are not evicted at once, although their deadline has passed.
func TestAfterAStallNoPodIsEvictedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := withAKiosk(began, forgetful{})
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- l.Run(ctx) }()
		time.Sleep(290*time.Second + stallBeat/2)
		l.stalls.mu.Lock()
		l.stalls.beat -= 200 * time.Second
		l.stalls.mu.Unlock()
		for _, c := range []struct {
			at      time.Duration
			evicted bool
		}{{291 * time.Second, false}, {301 * time.Second, false}, {330 * time.Second, false}, {332 * time.Second, true}} {
			time.Sleep(c.at - time.Since(began))
			if evicted := l.Snapshot().Pod("default", "kiosk").DeletionTimestamp != nil; evicted != c.evicted {
				t.Errorf("at %s: pod is evicted: %v, want %v", c.at, evicted, c.evicted)
			}
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// withAKiosk returns a hub with a node that has just fallen silent. A pod on the node tolerates
// that for five minutes.
func withAKiosk(now time.Time, store Store) *Loop {
	at := metav1.NewTime(now)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))}}
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &at}}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kiosk", Namespace: "default",
		CreationTimestamp: n.CreationTimestamp}}
	p.Spec = corev1.PodSpec{NodeName: "pi-1",
		Tolerations: []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
			TolerationSeconds: new(int64(300))}}}
	s, _ := state.Apply(state.Empty("salt", now), []state.Change{state.Put(n, ""), state.Put(p, "")})
	return New(Config{Start: s, Store: store,
		Deciders: []Decider{eviction.Decider{Timeouts: state.Timeouts{Grace: 40 * time.Second, Lease: 10 * time.Second}}}})
}

type forgetful struct{}

func (forgetful) Commit(context.Context, []Row, uint64) error { return nil }
