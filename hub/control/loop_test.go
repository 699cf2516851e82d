package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// A notebook is a store and a broker that write down what they are told.
type notebook struct {
	mu       sync.Mutex
	commits  int
	rows     map[state.Key][]byte
	fail     error
	desired  []wire.Desired
	requests []wire.Request
}

func (b *notebook) Commit(_ context.Context, rows []control.Row, _ uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	b.commits++
	for _, r := range rows {
		b.rows[r.Key] = r.Object
	}
	return nil
}

func (b *notebook) Publish(_ string, _ wire.Channel, payload []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var d wire.Desired
	if err := json.Unmarshal(payload, &d); err != nil {
		return err
	}
	b.desired = append(b.desired, d)
	return nil
}

func (b *notebook) Request(_, _ string, r wire.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, r)
	return nil
}

func (b *notebook) set(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

func (b *notebook) counts() (commits, desired, requests int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.commits, len(b.desired), len(b.requests)
}

func start(t *testing.T, from *state.Snapshot) (*control.Loop, *notebook, func()) {
	book := &notebook{rows: map[state.Key][]byte{}}
	s := state.Empty("test", time.Now())
	if from != nil {
		s = *from
	}
	l := control.New(control.Config{
		Store: book, Broker: book, Start: s, LeaseInterval: 10 * time.Second, Grace: 40 * time.Second,
		Deciders: []control.Decider{lifecycle.Decider{Settings: lifecycle.Defaults}, eviction.Decider{Grace: 40 * time.Second}}, Deliver: control.Deliver{},
	})
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	return l, book, func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

func report(boot string, seq uint64, ready corev1.ConditionStatus) wire.Status {
	return wire.Status{Boot: boot, Seq: seq, MachineID: "0123456789abcdef", Registration: wire.Registration{Labels: map[string]string{corev1.LabelTopologyZone: "oslo"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Reason: "KubeletReady", Message: "container engine is ready"}}}}
}

// greet is a device's first words: its status, and a lease that says that it has
// stored nothing yet.
func greet(t *testing.T, l *control.Loop, node string) {
	t.Helper()
	if err := l.Status(t.Context(), node, report("b", 1, "True")); err != nil {
		t.Fatal(err)
	}
	l.Lease(node, wire.Lease{Boot: "b", Seq: 1, Status: 1})
	synctest.Wait()
}

func (b *notebook) lastDesired(t *testing.T) wire.Desired {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.desired) == 0 {
		t.Fatal("nothing was published")
	}
	return b.desired[len(b.desired)-1]
}

func TestLeasesKeepANodeAliveAndCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := start(t, nil)
		defer stop()
		for _, n := range []string{"pi-1", "pi-2"} {
			greet(t, l, n)
		}
		time.Sleep(time.Second)
		gen := book.lastDesired(t).Generation
		commits, _, _ := book.counts()
		for seq := range uint64(360) { // an hour
			for _, n := range []string{"pi-1", "pi-2"} {
				l.Lease(n, wire.Lease{Boot: "b", Seq: seq + 2, Status: 1, Desired: gen})
			}
			time.Sleep(10 * time.Second)
		}
		if got := state.ReadyOf(l.Snapshot().Node("pi-1")); got != corev1.ConditionTrue {
			t.Errorf("Ready = %s", got)
		}
		if after, _, requests := book.counts(); after != commits || requests != 0 {
			t.Errorf("an hour of leases: %d commits, %d requests", after-commits, requests)
		}
		// pi-1 falls silent; its last lease was 10 s ago.
		last := time.Now().Add(-10 * time.Second)
		for seq := uint64(362); state.ReadyOf(l.Snapshot().Node("pi-1")) == corev1.ConditionTrue; seq++ {
			l.Lease("pi-2", wire.Lease{Boot: "b", Seq: seq, Status: 1, Desired: gen})
			time.Sleep(10 * time.Millisecond)
			if time.Since(last) > time.Minute {
				t.Fatal("pi-1 is still Ready after a minute of silence")
			}
		}
		if late := time.Since(last) - 40*time.Second; late < 0 || late > 50*time.Millisecond {
			t.Errorf("Unknown was decided %s after the deadline", late)
		}
		if tt := state.NoExecuteOf(l.Snapshot().Node("pi-1")); tt == nil {
			t.Error("no NoExecute taint in the same pass")
		}
	})
}

func TestWhatALeaseShowsToBeBehindIsAskedForOrSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := start(t, nil)
		defer stop()
		l.Lease("pi-1", wire.Lease{Boot: "b", Seq: 1})
		if _, _, requests := book.counts(); requests != 1 {
			t.Errorf("a lease of an unknown boot: %d requests, want a refresh", requests)
		}
		if l.Snapshot().Node("pi-1") != nil {
			t.Error("a lease alone made a node")
		}
		greet(t, l, "pi-1")
		gen := book.lastDesired(t).Generation
		time.Sleep(10 * time.Second)
		l.Lease("pi-1", wire.Lease{Boot: "b", Seq: 2, Status: 2, Desired: gen})
		if _, _, requests := book.counts(); requests != 2 {
			t.Errorf("a lease ahead of the newest status: %d requests, want another refresh", requests)
		}
		_, sent, _ := book.counts()
		l.Lease("pi-1", wire.Lease{Boot: "b", Seq: 3, Status: 1, Desired: gen - 1})
		synctest.Wait()
		if _, again, _ := book.counts(); again != sent+1 {
			t.Errorf("a lease behind the desired generation: sent %d more, want 1", again-sent)
		}
	})
}

func TestADeviceThatLivesByAnotherHubsDesiredStateIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := start(t, nil)
		defer stop()
		if err := l.Status(t.Context(), "pi-1", report("b", 1, "True")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, sent, _ := book.counts(); sent != 0 {
			t.Error("something was sent before the device said what it has")
		}
		l.Lease("pi-1", wire.Lease{Boot: "b", Seq: 1, Status: 1, Desired: 6})
		time.Sleep(time.Minute)
		if _, sent, _ := book.counts(); sent != 0 || !l.Snapshot().Record("pi-1").Paused {
			t.Errorf("sent %d, record %+v", sent, l.Snapshot().Record("pi-1"))
		}
		if n, err := l.Resume(t.Context()); n != 1 || err != nil {
			t.Errorf("resumed %d, %v", n, err)
		}
		if gen := book.lastDesired(t).Generation; gen <= 6 {
			t.Errorf("resumed with generation %d", gen)
		}
	})
}

func TestBoots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := start(t, nil)
		defer stop()
		must := func(want error, st wire.Status) {
			t.Helper()
			if err := l.Status(t.Context(), "pi-1", st); !errors.Is(err, want) {
				t.Errorf("status of boot %s seq %d: %v, want %v", st.Boot, st.Seq, err, want)
			}
		}
		must(nil, report("b1", 1, "True"))
		must(control.ErrStale, report("b1", 1, "True"))
		must(nil, report("b2", 1, "True")) // the same machine restarted
		must(control.ErrStale, report("b1", 9, "True"))
		clone := report("b3", 1, "True")
		clone.MachineID = "fedcba9876543210"
		must(control.ErrConflict, clone)
		if c := state.NodeCondition(l.Snapshot().Node("pi-1"), "IdentityConflict"); c == nil || c.Status != corev1.ConditionTrue {
			t.Errorf("IdentityConflict = %+v", c)
		}
		if err := l.Connect("pi-1", "fedcba9876543210"); !errors.Is(err, control.ErrConflict) {
			t.Errorf("Connect of the second machine: %v", err)
		}
		time.Sleep(41 * time.Second) // the incumbent's lease has expired
		must(nil, clone)
		if c := state.NodeCondition(l.Snapshot().Node("pi-1"), "IdentityConflict"); c != nil {
			t.Errorf("IdentityConflict stays: %+v", c)
		}
		_ = book
	})
}

func TestWhatCannotBeRememberedHasNotHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := start(t, nil)
		defer stop()
		book.set(errors.New("disk full"))
		put := func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			return []state.Change{state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}, "")}, nil
		}
		if _, err := l.Do(t.Context(), put); err == nil {
			t.Error("Do answered without an error")
		}
		if l.Snapshot().Len(state.ConfigMaps) != 0 {
			t.Error("readers see what was not remembered")
		}
		book.set(nil)
		if _, err := l.Do(t.Context(), put); err != nil {
			t.Error(err)
		}
		if l.Snapshot().Len(state.ConfigMaps) != 1 {
			t.Error("the second try did not work")
		}
	})
}

func TestAFailedWriteDelaysADecisionAndLosesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := start(t, nil)
		defer stop()
		if err := l.Status(t.Context(), "pi-1", report("b", 1, "True")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(39 * time.Second)
		book.set(errors.New("disk full"))
		time.Sleep(5 * time.Second)
		if got := state.ReadyOf(l.Snapshot().Node("pi-1")); got != corev1.ConditionTrue {
			t.Errorf("Ready = %s was shown before it was remembered", got)
		}
		book.set(nil)
		time.Sleep(2 * time.Second)
		if got := state.ReadyOf(l.Snapshot().Node("pi-1")); got != corev1.ConditionUnknown {
			t.Errorf("Ready = %s, want Unknown once the disk is back", got)
		}
	})
}

func TestAPodIsGoneOnlyWhenItsDeviceSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := start(t, nil)
		defer stop()
		greet(t, l, "pi-1")
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"}, Spec: corev1.PodSpec{NodeName: "pi-1"}}
		if _, err := l.Do(t.Context(), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			return []state.Change{state.Put(pod, "")}, nil
		}); err != nil {
			t.Fatal(err)
		}
		bound := book.lastDesired(t)
		if len(bound.Pods) != 1 || bound.Generation < 2 {
			t.Fatalf("desired %+v", bound)
		}
		uid := bound.Pods[0].UID
		list := func(seq uint64, gen int64, pods ...wire.PodStatus) {
			t.Helper()
			if err := l.Pods(t.Context(), "pi-1", wire.Pods{Boot: "b", Seq: seq, Generation: gen, Pods: pods}); err != nil {
				t.Fatal(err)
			}
		}
		running := wire.PodStatus{UID: uid, Namespace: "default", Name: "kiosk", Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		list(1, bound.Generation, running)
		if got := l.Snapshot().Pod("default", "kiosk").Status.Phase; got != corev1.PodRunning {
			t.Errorf("phase %s", got)
		}
		if _, err := l.Do(t.Context(), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			c, _ := state.Delete(s.Pod("default", "kiosk"), now, nil, "delete kiosk")
			return []state.Change{c}, nil
		}); err != nil {
			t.Fatal(err)
		}
		told := book.lastDesired(t)
		if told.Pods[0].DeletionTimestamp == nil || told.Generation <= bound.Generation {
			t.Errorf("the device was not told to stop it: %+v", told)
		}
		list(2, bound.Generation) // absent, but the list is older than the wish
		if l.Snapshot().Pod("default", "kiosk") == nil {
			t.Error("gone by a list that does not reflect the deletion")
		}
		list(3, told.Generation, running)
		if l.Snapshot().Pod("default", "kiosk") == nil {
			t.Error("gone although the device still holds it")
		}
		list(4, told.Generation)
		if l.Snapshot().Pod("default", "kiosk") != nil {
			t.Error("still there after the confirmation")
		}
	})
}

func TestTheFeedForgetsAfterFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := start(t, nil)
		defer stop()
		if err := l.Status(t.Context(), "pi-1", report("b", 1, "True")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4 * time.Minute)
		if _, _, err := l.Since(0); err != nil {
			t.Errorf("after four minutes: %v", err)
		}
		last := l.Snapshot().Revision
		time.Sleep(12 * time.Minute)
		if _, _, err := l.Since(0); !errors.Is(err, control.ErrExpired) {
			t.Errorf("after a quarter of an hour Since(0) = %v, want expired", err)
		}
		if _, _, err := l.Since(last + 1); err != nil {
			t.Errorf("Since(%d) = %v", last+1, err)
		}
	})
}

func TestTheFeedIsBoundedAndTellsWhoFellBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &notebook{rows: map[state.Key][]byte{}}
		l := control.New(control.Config{Store: book, Broker: book, Start: state.Empty("x", time.Now()), Deliver: control.Deliver{}, History: 10})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go l.Run(ctx)
		_, more, err := l.Since(0)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if _, err := l.Do(t.Context(), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
				return []state.Change{state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}, "")}, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		<-more
		if _, _, err := l.Since(0); !errors.Is(err, control.ErrExpired) {
			t.Errorf("Since(0) = %v, want expired", err)
		}
		got, _, err := l.Since(45)
		if err != nil || len(got) != 5 || got[0].Rev != 46 {
			t.Errorf("Since(45) = %d changes, %v", len(got), err)
		}
		stop()
		synctest.Wait()
	})
}

// A restless decider wants to be asked again at once, for ever, and changes nothing.
type restless struct{}

func (restless) Decide(s state.Snapshot, now time.Time) (plan state.Plan) {
	plan.Wake(state.Key{Kind: state.Nodes, Name: "x"}, now)
	return plan
}

func TestADeciderThatFindsNoEndDoesNotEndTheHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := &notebook{rows: map[state.Key][]byte{}}
		l := control.New(control.Config{Store: book, Broker: book, Start: state.Empty("x", time.Now()), Deciders: []control.Decider{restless{}}, Deliver: control.Deliver{}})
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		if _, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
			return []state.Change{state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}, "")}, nil
		}); err != nil {
			t.Error(err)
		}
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

func TestNewsThatComesWhenTheHubStopsIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := start(t, nil)
		greet(t, l, "pi-1")
		begin := time.Now()
		var wg sync.WaitGroup
		var kept atomic.Int32
		for i := range 200 {
			wg.Go(func() {
				switch err := l.Status(t.Context(), fmt.Sprintf("new-%d", i), report("b", 1, "True")); {
				case err == nil:
					kept.Add(1)
				case !errors.Is(err, control.ErrStopped):
					t.Error(err)
				}
			})
		}
		stop()
		if err := l.Status(t.Context(), "late", report("b", 1, "True")); !errors.Is(err, control.ErrStopped) {
			t.Errorf("after the end: %v", err)
		}
		wg.Wait()
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("news waited %s for a hub that had stopped", waited)
		}
		book.mu.Lock()
		defer book.mu.Unlock()
		stored := int32(0)
		for k := range book.rows {
			if k.Kind == state.Nodes && strings.HasPrefix(k.Name, "new-") {
				stored++
			}
		}
		if stored != kept.Load() {
			t.Errorf("%d nodes were acknowledged, %d stored", kept.Load(), stored)
		}
	})
}
