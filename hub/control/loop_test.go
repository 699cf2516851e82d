package control_test

import (
	"context"
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

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/serve"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

func TestLeasesKeepANodeAliveAndCostNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		for _, n := range []string{"pi-1", "pi-2"} {
			nodetest.Greet(t, l, n)
		}
		time.Sleep(time.Second)
		gen := book.LastDesired(t).Generation
		commits, _, _ := book.Counts()
		for seq := range uint64(360) { // an hour
			for _, n := range []string{"pi-1", "pi-2"} {
				l.Lease(node.Caller{Node: n}, wire.Lease{Boot: "b", Seq: seq + 2, Status: 1, Desired: gen})
			}
			time.Sleep(10 * time.Second)
		}
		if got := state.ReadyOf(l.Snapshot().Node("pi-1")); got != corev1.ConditionTrue {
			t.Errorf("Ready = %s", got)
		}
		if after, _, requests := book.Counts(); after != commits || requests != 0 {
			t.Errorf("an hour of leases: %d commits, %d requests", after-commits, requests)
		}
		// pi-1 falls silent. Its last lease was 10 s ago.
		last := time.Now().Add(-10 * time.Second)
		for seq := uint64(362); state.ReadyOf(l.Snapshot().Node("pi-1")) == corev1.ConditionTrue; seq++ {
			l.Lease(node.Caller{Node: "pi-2"}, wire.Lease{Boot: "b", Seq: seq, Status: 1, Desired: gen})
			time.Sleep(10 * time.Millisecond)
			if time.Since(last) > time.Minute {
				t.Fatal("pi-1 is still Ready after a minute of silence")
			}
		}
		if late := time.Since(last) - 40*time.Second; late < 0 || late > 50*time.Millisecond {
			t.Errorf("Unknown was decided %s after the deadline", late)
		}
		if tt := state.NoExecuteOf(l.Snapshot().Node("pi-1")); tt != nil {
			t.Errorf("%s at once: the minimum delay has not passed", tt.ToString())
		}
		for seq := uint64(9000); time.Since(last) < 40*time.Second+lifecycle.Defaults.JudgeDelay+time.Second; seq++ {
			l.Lease(node.Caller{Node: "pi-2"}, wire.Lease{Boot: "b", Seq: seq, Status: 1, Desired: gen})
			time.Sleep(10 * time.Millisecond)
		}
		if tt := state.NoExecuteOf(l.Snapshot().Node("pi-1")); tt == nil {
			t.Error("no NoExecute taint after the minimum delay")
		}
	})
}

func TestALeaseTriggersWhatIsOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 1})
		if _, _, requests := book.Counts(); requests != 1 {
			t.Errorf("a lease of an unknown boot: %d requests, want a refresh", requests)
		}
		if l.Snapshot().Node("pi-1") != nil {
			t.Error("a lease alone created a node")
		}
		nodetest.Greet(t, l, "pi-1")
		gen := book.LastDesired(t).Generation
		time.Sleep(10 * time.Second)
		l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 2, Status: 2, Desired: gen})
		if _, _, requests := book.Counts(); requests != 2 {
			t.Errorf("a lease newer than the newest status: %d requests, want another refresh", requests)
		}
		_, sent, _ := book.Counts()
		l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 3, Status: 1, Desired: gen - 1})
		synctest.Wait()
		if _, again, _ := book.Counts(); again != sent+1 {
			t.Errorf("a lease with an older desired generation: sent %d desired states, want 1", again-sent)
		}
	})
}

func TestADeviceWithAnotherHubsDesiredStateIsPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		if err := l.Status(t.Context(), node.Caller{Node: "pi-1"}, nodetest.Report("b", 1, "True")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, sent, _ := book.Counts(); sent != 0 {
			t.Error("a desired state was published before the device reported its state")
		}
		l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 1, Status: 1, Desired: 6})
		time.Sleep(time.Minute)
		if _, sent, _ := book.Counts(); sent != 0 || !l.Snapshot().Record("pi-1").Paused {
			t.Errorf("%d desired states were sent, record %+v", sent, l.Snapshot().Record("pi-1"))
		}
		if n, err := l.Resume(t.Context()); n != 1 || err != nil {
			t.Errorf("%d nodes were resumed, error %v", n, err)
		}
		if gen := book.LastDesired(t).Generation; gen <= 6 {
			t.Errorf("resumed with generation %d", gen)
		}
	})
}

func TestBoots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		must := func(want error, st wire.Status) {
			t.Helper()
			if err := l.Status(t.Context(), node.Caller{Node: "pi-1"}, st); !errors.Is(err, want) {
				t.Errorf("status of boot %s seq %d: %v, want %v", st.Boot, st.Seq, err, want)
			}
		}
		must(nil, nodetest.Report("b1", 1, "True"))
		must(node.ErrStale, nodetest.Report("b1", 1, "True"))
		must(nil, nodetest.Report("b2", 1, "True")) // the same machine has restarted
		must(node.ErrStale, nodetest.Report("b1", 9, "True"))
		clone := nodetest.Report("b3", 1, "True")
		clone.MachineID = "fedcba9876543210"
		must(node.ErrConflict, clone)
		if c := state.NodeCondition(l.Snapshot().Node("pi-1"), "IdentityConflict"); c == nil ||
			c.Status != corev1.ConditionTrue {
			t.Errorf("IdentityConflict = %+v", c)
		}
		if err := l.Connect(node.Caller{Node: "pi-1", Machine: "fedcba9876543210"}); !errors.Is(err, node.ErrConflict) {
			t.Errorf("Connect of the second machine: %v", err)
		}
		time.Sleep(41 * time.Second) // the lease of the first machine has expired
		must(nil, clone)
		if c := state.NodeCondition(l.Snapshot().Node("pi-1"), "IdentityConflict"); c != nil {
			t.Errorf("IdentityConflict stays: %+v", c)
		}
		_ = book
	})
}

func TestWhatCannotBeStoredHasNotHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		book.FailWith(errors.New("disk full"))
		put := func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			return []state.Change{state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}},
				"")}, nil
		}
		if _, err := l.Do(t.Context(), put); err == nil {
			t.Error("Do returned no error")
		}
		if l.Snapshot().Len(state.ConfigMaps) != 0 {
			t.Error("readers see a change that was not stored")
		}
		book.FailWith(nil)
		if _, err := l.Do(t.Context(), put); err != nil {
			t.Error(err)
		}
		if l.Snapshot().Len(state.ConfigMaps) != 1 {
			t.Error("the second try failed")
		}
	})
}

func TestAFailedWriteDelaysADecisionAndLosesNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		if err := l.Status(t.Context(), node.Caller{Node: "pi-1"}, nodetest.Report("b", 1, "True")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(39 * time.Second)
		book.FailWith(errors.New("disk full"))
		time.Sleep(5 * time.Second)
		if got := state.ReadyOf(l.Snapshot().Node("pi-1")); got != corev1.ConditionTrue {
			t.Errorf("Ready = %s was shown before it was stored", got)
		}
		book.FailWith(nil)
		time.Sleep(2 * time.Second)
		if got := state.ReadyOf(l.Snapshot().Node("pi-1")); got != corev1.ConditionUnknown {
			t.Errorf("Ready = %s, want Unknown once the disk is back", got)
		}
	})
}

func TestAPodIsRemovedOnlyAfterItsDevicesReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
			Spec: corev1.PodSpec{NodeName: "pi-1"}}
		if _, err := l.Do(t.Context(), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			return []state.Change{state.Put(pod, "")}, nil
		}); err != nil {
			t.Fatal(err)
		}
		bound := book.LastDesired(t)
		if len(bound.Pods) != 1 || bound.Generation < 2 {
			t.Fatalf("desired %+v", bound)
		}
		uid := bound.Pods[0].UID
		list := func(seq uint64, gen int64, pods ...wire.PodStatus) {
			t.Helper()
			if err := l.Pods(t.Context(), node.Caller{Node: "pi-1"},
				wire.Pods{Boot: "b", Seq: seq, Generation: gen, Pods: pods}); err != nil {
				t.Fatal(err)
			}
		}
		running := wire.PodStatus{UID: uid, Namespace: "default", Name: "kiosk",
			Status: corev1.PodStatus{Phase: corev1.PodRunning}}
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
		desired := book.LastDesired(t)
		if desired.Pods[0].DeletionTimestamp == nil || desired.Generation <= bound.Generation {
			t.Errorf("the desired state still has the pod: %+v", desired)
		}
		list(2, bound.Generation) // the pod is absent, but the list is older than the deletion
		if l.Snapshot().Pod("default", "kiosk") == nil {
			t.Error("the pod is removed by a list that is older than the deletion")
		}
		list(3, desired.Generation, running)
		if l.Snapshot().Pod("default", "kiosk") == nil {
			t.Error("the pod is removed although the device still has it")
		}
		list(4, desired.Generation)
		if l.Snapshot().Pod("default", "kiosk") != nil {
			t.Error("the pod is not removed after the confirmation")
		}
	})
}

func TestTheFeedDropsChangesAfterFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		if err := l.Status(t.Context(), node.Caller{Node: "pi-1"}, nodetest.Report("b", 1, "True")); err != nil {
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

func TestTheFeedIsBoundedAndReportsExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := nodetest.NewNotebook()
		l := node.New(node.Config{Broker: book}, control.Config{Store: book, Start: state.Empty("x", time.Now()),
			History: 10})
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go l.Run(ctx)
		_, more, err := l.Since(0)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if _, err := l.Do(t.Context(), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
				return []state.Change{state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}},
					"")}, nil
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

// An endlessDecider always wants to be asked again at once, and changes nothing.
type endlessDecider struct{ concerned }

func (endlessDecider) Decide(s state.Snapshot, _ []state.Subject, now time.Time) (plan state.Plan) {
	plan.Wake(state.Key{Kind: state.Nodes, Name: "x"}, now)
	return plan
}

func TestADeciderThatNeverSettlesDoesNotEndTheHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		book := nodetest.NewNotebook()
		l := node.New(node.Config{Broker: book}, control.Config{Store: book, Start: state.Empty("x", time.Now()),
			Deciders: []control.Decider{endlessDecider{}}})
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		if _, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
			return []state.Change{state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}},
				"")}, nil
		}); err != nil {
			t.Error(err)
		}
		// The decider is asked again after growing pauses, not as fast as the machine can.
		time.Sleep(10 * time.Minute)
		if n, passes := l.Unsettled(), l.Passes(); n < 5 || n > 20 || passes > 100 {
			t.Errorf("in 10 min %d of %d passes did not settle", n, passes)
		}
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// concerned is asked about every changed object.
type concerned struct{}

func (concerned) Touches(c state.Applied) []state.Subject { return []state.Subject{{Key: c.Key}} }
func (concerned) Subjects(state.Snapshot) []state.Subject { return []state.Subject{{}} }

// An endlessBinder binds every pod to pi-1, and does not settle for a number of asks.
type endlessBinder struct {
	concerned
	asks *int
}

func (b endlessBinder) Decide(s state.Snapshot, _ []state.Subject, _ time.Time) (plan state.Plan) {
	for p := range s.PodsOn("") {
		p = p.DeepCopy()
		p.Spec.NodeName = "pi-1"
		plan.Do(state.Put(p, "bind "+p.Name))
	}
	if *b.asks--; *b.asks > 0 && s.Len(state.Pods) > 0 {
		plan.Do(state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}, "turn"))
	}
	return plan
}

// A recorder counts the pods that it is asked about. It is asked after a decider that does not
// settle.
type recorder struct {
	seen map[string]bool
	gone map[string]bool
}

func (h recorder) Touches(c state.Applied) []state.Subject {
	return []state.Subject{{Key: c.Key, Was: c}}
}
func (h recorder) Subjects(state.Snapshot) []state.Subject { return nil }

func (h recorder) Decide(_ state.Snapshot, subjects []state.Subject, _ time.Time) (plan state.Plan) {
	for _, q := range subjects {
		if p, ok := q.Was.(state.Applied).New.(*corev1.Pod); ok {
			h.seen[p.Name+" on "+p.Spec.NodeName] = true
		} else if q.Was.(state.Applied).New == nil {
			h.gone[q.Name] = true
		}
	}
	return plan
}

func TestChangesOfAnUnsettledPassReachAllDeciders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		nodetest.Greet(t, l, "pi-1")
		from := l.Snapshot()
		stop()
		h := recorder{map[string]bool{}, map[string]bool{}}
		book := nodetest.NewNotebook()
		asks := 60
		l = node.New(node.Config{Broker: book}, control.Config{Store: book, Start: from,
			Deciders: []control.Decider{recorder{h.seen, h.gone}, endlessBinder{asks: &asks}}})
		ctx, stop2 := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "x"}}}}
		if _, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
			return []state.Change{state.Put(pod, "")}, nil
		}); err != nil {
			t.Fatal(err)
		}
		if l.Unsettled() != 1 {
			t.Fatalf("%d passes did not settle", l.Unsettled())
		}
		time.Sleep(1500 * time.Millisecond)
		if l.Unsettled() != 1 || l.Snapshot().Record("pi-1").Generation < 2 {
			t.Errorf("after %d passes that did not settle: the node's desired state is %d, and has the pod", l.Unsettled(),
				l.Snapshot().Record("pi-1").Generation)
		}
		if !h.seen["kiosk on pi-1"] {
			t.Errorf("the second decider has seen %v", h.seen)
		}
		found := false
		for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
			found = found || e.Reason == "Unsettled"
		}
		if !found {
			t.Error("no event reports that the deciders do not settle")
		}
		stop2()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

func TestASettlerLosesNothingOfAnUnsettledPass(t *testing.T) {
	s := state.Empty("x", time.Unix(0, 0))
	now := time.Unix(100, 0)
	h := recorder{map[string]bool{}, map[string]bool{}}
	asks := 100
	settler := control.NewSettler(node.Ended, endlessBinder{asks: &asks}, h)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"}}
	s, log := state.Apply(s, []state.Change{state.Put(pod, "")})
	s, _, settled := settler.Settle(s, log, now)
	if settled {
		t.Fatal("it settled")
	}
	// News during the wait is decided at once, and does not shorten the wait.
	s, log = state.Apply(s, []state.Change{state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
		Name: "other"}}, "")})
	asks = 0
	if s, _, settled = settler.Settle(s, log, now.Add(time.Millisecond)); !settled || !h.seen["other on pi-1"] {
		t.Errorf("news in between: settled %v, seen %v", settled, h.seen)
	}
	if at := settler.Wake(); !at.Equal(now.Add(time.Second)) {
		t.Errorf("the settler wakes at %s, want a second after the pass", at)
	}
	if settler.AsksAll(now.Add(999*time.Millisecond)) || !settler.AsksAll(now.Add(time.Second)) {
		t.Error("the settler does not ask about everything at that moment")
	}
	clear(h.seen)
	if _, _, settled = settler.Settle(s, nil, now.Add(time.Second)); !settled || !settler.Wake().IsZero() {
		t.Errorf("second pass: settled %v, wakes at %s", settled, settler.Wake())
	}
}

func TestNewsToAStoppingHubIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		nodetest.Greet(t, l, "pi-1")
		begin := time.Now()
		var wg sync.WaitGroup
		var kept atomic.Int32
		for i := range 200 {
			wg.Go(func() {
				switch err := l.Status(t.Context(), node.Caller{Node: fmt.Sprintf("new-%d", i)}, nodetest.Report("b", 1, "True")); {
				case err == nil:
					kept.Add(1)
				case !errors.Is(err, control.ErrStopped):
					t.Error(err)
				}
			})
		}
		stop()
		if err := l.Status(t.Context(), node.Caller{Node: "late"},
			nodetest.Report("b", 1, "True")); !errors.Is(err, control.ErrStopped) {
			t.Errorf("after the stop: %v", err)
		}
		wg.Wait()
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("news waited %s for a hub that had stopped", waited)
		}
		stored := int32(0)
		for k := range book.Rows() {
			if k.Kind == state.Nodes && strings.HasPrefix(k.Name, "new-") {
				stored++
			}
		}
		if stored != kept.Load() {
			t.Errorf("%d nodes were acknowledged, %d stored", kept.Load(), stored)
		}
	})
}

// An endlessRemover does not settle in one pass, and deletes a pod in its last ask.
type endlessRemover struct {
	concerned
	asks *int
}

func (r endlessRemover) Decide(s state.Snapshot, _ []state.Subject, _ time.Time) (plan state.Plan) {
	*r.asks++
	if p := s.Pod("default", "kiosk"); *r.asks == 50 && p != nil {
		plan.Do(state.Remove(p, "remove kiosk"))
	} else if *r.asks < 50 {
		plan.Do(state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}}, "turn"))
	}
	return plan
}

// A decision about everything cannot see deleted objects, so the settler passes on their subjects.
func TestDeletionsOfAnUnsettledPassAreStillSeen(t *testing.T) {
	now := time.Unix(100, 0)
	h := recorder{map[string]bool{}, map[string]bool{}}
	asks := 0
	settler := control.NewSettler(node.Ended, h, endlessRemover{asks: &asks})
	s, log := state.Apply(state.Empty("x", now),
		[]state.Change{state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk"}}, "")})
	s, _, settled := settler.Settle(s, log, now)
	if settled || s.Pod("default", "kiosk") != nil || h.gone["kiosk"] {
		t.Fatalf("settled %v after %d asks, seen %v", settled, asks, h.gone)
	}
	if _, _, settled = settler.Settle(s, nil, settler.Wake()); !settled || !h.gone["kiosk"] {
		t.Errorf("second pass: settled %v, seen %v", settled, h.gone)
	}
	clear(h.gone)
	settler.AskAll() // the plan could not be stored
	if _, _, settled = settler.Settle(s, nil, now.Add(time.Minute)); !settled || !h.gone["kiosk"] {
		t.Errorf("after a plan that could not be stored: settled %v, seen %v", settled, h.gone)
	}
	clear(h.gone)
	if _, _, settled = settler.Settle(s, nil, now.Add(2*time.Minute)); !settled || h.gone["kiosk"] {
		t.Errorf("last pass: settled %v, seen again %v", settled, h.gone)
	}
}

// A subjectRecorder changes nothing, and stores its subjects.
type subjectRecorder struct {
	every []state.Subject
	asked *[]string
}

func (n subjectRecorder) Touches(c state.Applied) []state.Subject {
	return []state.Subject{{Key: c.Key}, {Key: c.Key, Was: c}}
}
func (n subjectRecorder) Subjects(state.Snapshot) []state.Subject { return n.every }
func (n subjectRecorder) Decide(_ state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	*n.asked = nil
	for _, q := range subjects {
		what := q.Name
		if q.Was != nil {
			what += " handed over"
		}
		*n.asked = append(*n.asked, what)
	}
	plan.Wake(state.Key{Kind: state.Pods, Name: "c"}, now.Add(time.Second))
	return plan
}

func TestASettlerAsksAboutEachSubjectOnce(t *testing.T) {
	pod := func(name string) state.Subject {
		return state.About(state.Key{Kind: state.Pods, Namespace: "default", Name: name})
	}
	var asked []string
	every := []state.Subject{pod("a"), pod("b")}
	settler := control.NewSettler(node.Ended, subjectRecorder{every[:1:2], &asked})
	now := time.Unix(100, 0)
	put := func(s state.Snapshot, name string) (state.Snapshot, []state.Applied) {
		return state.Apply(s, []state.Change{state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
			Name: name}}, "")})
	}
	s, log := put(state.Empty("x", now), "a")
	_, _, _ = settler.Settle(s, log, now)
	if got := fmt.Sprint(asked); got != "[a a handed over]" {
		t.Errorf("about everything: %s", got)
	}
	if every[1] != pod("b") {
		t.Errorf("the settler wrote to the decider's own list: %v", every)
	}
	s, log = put(s, "c")
	_, _, _ = settler.Settle(s, append(log, log...), now.Add(time.Second))
	if got := fmt.Sprint(asked); got != "[c c handed over c handed over c]" {
		// the subject without a namespace is a different one
		t.Errorf("about what changed and what is due: %s", got)
	}
	asked = nil
	_, _, _ = settler.Settle(s, nil, now.Add(1500*time.Millisecond))
	if len(asked) > 0 {
		t.Errorf("about nothing: %v", asked)
	}
}

// OnBurst is called if many nodes are due at once, and not for a few.
func TestOnBurstIsCalledWhenManyFallSilent(t *testing.T) {
	for _, c := range []struct{ nodes, hurries int }{{1200, 1}, {400, 0}} {
		synctest.Test(t, func(t *testing.T) {
			cfg, began, hurries := config.Default(), time.Now(), atomic.Int64{}
			l := node.New(node.Config{Broker: nodetest.NewNotebook(), LeaseInterval: cfg.LeaseInterval,
				Grace: cfg.NodeMonitorGracePeriod}, control.Config{
				Store: nodetest.NewNotebook(), Start: bigFleet(c.nodes, began), Deciders: serve.Deciders(cfg),
				OnBurst: func() { hurries.Add(1) },
			})
			ctx, stop := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { over <- l.Run(ctx) }()
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := int(hurries.Load()); got != c.hurries {
				t.Errorf("%d nodes fall silent: OnBurst was called %d times, want %d", c.nodes, got, c.hurries)
			}
			if n := l.Snapshot().Node("pi-000000"); state.ReadyOf(n) != corev1.ConditionUnknown {
				t.Errorf("the nodes are %s", state.ReadyOf(n))
			}
			stop()
			if err := <-over; err != nil {
				t.Error(err)
			}
		})
	}
}
