package node_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

const machine = "0123456789abcdef"

// A caller that is not the node's device can change nothing, and receives nothing.
func TestAForeignCallerIsRefusedEverywhere(t *testing.T) {
	for _, tt := range []struct {
		name, enrolled string
		caller         node.Caller
		may            bool
	}{
		{"the key that joined", "k1", node.Caller{Key: "k1"}, true},
		{"another key", "k1", node.Caller{Key: "k2"}, false},
		{"the development listener, for a node that has joined with a certificate", "k1", node.Caller{}, false},
		{"the development listener, for a node without an enrolment", "", node.Caller{}, true},
		{"a key, for a node without an enrolment", "", node.Caller{Key: "k2"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, book, stop := nodetest.Start(t, nil)
				defer stop()
				var said bytes.Buffer
				l.Log = slog.New(slog.NewTextHandler(&said, nil))
				own := node.Caller{Node: "pi-1", Key: tt.enrolled, Machine: machine, Boot: "b"}
				if tt.enrolled != "" {
					apply(t, l, &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Key: tt.enrolled, Enrolled: metav1.Now(),
						Expires: metav1.NewTime(time.Now().Add(time.Hour)), Site: "oslo"})
				}
				if err := l.Status(t.Context(), own, nodetest.Report("b", 1, "True")); err != nil {
					t.Fatal(err)
				}
				l.Lease(own, wire.Lease{Boot: "b", Seq: 1, Status: 1})
				synctest.Wait()
				apply(t, l, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u"},
					Spec: corev1.PodSpec{NodeName: "pi-1"}})
				synctest.Wait()
				l.Lease(own, wire.Lease{Boot: "b", Seq: 2, Status: 1, Desired: 1})
				time.Sleep(5 * time.Second)
				synctest.Wait()

				who := tt.caller
				who.Node, who.Machine, who.Boot = "pi-1", machine, "b"
				_, desired, asked := book.Counts()
				before := l.Snapshot().Revision
				uid := l.Snapshot().Pod("default", "p").UID
				for what, err := range map[string]error{
					"connect": l.Connect(who),
					"status":  l.Status(t.Context(), who, nodetest.Report("b", 2, "False")),
					"pods": l.Pods(t.Context(), who, wire.Pods{Boot: "b", Seq: 1, Generation: 1,
						Pods: []wire.PodStatus{{UID: uid, Namespace: "default", Name: "p",
							Status: corev1.PodStatus{Phase: corev1.PodFailed}}}}),
					"event": l.Event(t.Context(), who, wire.Event{Boot: "b", Type: "Warning", Reason: "Lied", Message: "x"}),
				} {
					if tt.may != (err == nil) || !tt.may && !errors.Is(err, node.ErrStranger) {
						t.Errorf("%s: %v", what, err)
					}
				}
				if l.Speaks(who) != tt.may {
					t.Errorf("speaks: %t", !tt.may)
				}
				if now := l.Snapshot().Revision; (now != before) != tt.may {
					t.Errorf("the revision was %d and is %d", before, now)
				}
				seen := l.Liveness("pi-1").Seen
				time.Sleep(time.Minute)
				l.Lease(who, wire.Lease{Boot: "b", Seq: 9, Status: 99})       // this lease shows that the hub is behind
				l.Lease(who, wire.Lease{Boot: "another", Seq: 9, Status: 99}) // this lease has another boot
				synctest.Wait()
				if now := l.Liveness("pi-1"); (now.Seen != seen) != tt.may || (now.Lease == 9) != tt.may {
					t.Errorf("the node's liveness is %+v, before %s", now, seen)
				}
				if _, d, a := book.Counts(); !tt.may && (d != desired || a != asked) {
					t.Errorf("the hub has sent the caller %d desired states and %d requests", d-desired, a-asked)
				}
				said.Reset()
				l.Presence(who, wire.Presence{Boot: "b", State: wire.PresenceShutdown, Reason: "lie"})
				l.Presence(own, wire.Presence{Boot: "earlier", State: wire.PresenceLost})
				if got := strings.Contains(said.String(), "lie"); got != tt.may || strings.Contains(said.String(), "link lost") {
					t.Errorf("the log says %q", said.String())
				}
			})
		})
	}
}

// These cases are devices that claim a node whose device is alive.
func TestWhichDeviceMayTakeANodeOver(t *testing.T) {
	const other = "fedcba9876543210"
	for _, tt := range []struct {
		name    string
		unknown bool // the incumbent's machine is unknown
		linked  bool // the incumbent is connected
		wait    time.Duration
		caller  node.Caller
		refused bool
		shown   bool // a conflict is shown at once
	}{
		{name: "the same agent, over a new link", linked: true, caller: node.Caller{Machine: machine, Boot: "b"}},
		{name: "the same agent's boot, from another machine", linked: true, caller: node.Caller{Machine: other, Boot: "b"}, refused: true, shown: true},
		{name: "another agent of the machine, while the first is connected and sends", linked: true, caller: node.Caller{Machine: machine, Boot: "c"}, refused: true},
		{name: "another agent of the machine, while the first is disconnected", caller: node.Caller{Machine: machine, Boot: "c"}},
		{name: "another agent of the machine, after the first fell silent", linked: true, wait: 16 * time.Second, caller: node.Caller{Machine: machine, Boot: "c"}},
		{name: "the same machine, without a boot", linked: true, caller: node.Caller{Machine: machine}},
		{name: "another machine, while the first is disconnected", caller: node.Caller{Machine: other, Boot: "c"}, refused: true, shown: true},
		{name: "another machine, after the first's grace period", wait: time.Hour, caller: node.Caller{Machine: other, Boot: "c"}},
		{name: "a known machine after an unknown one", unknown: true, caller: node.Caller{Machine: other, Boot: "c"}},
		{name: "an unknown machine after a known one", caller: node.Caller{Boot: "b"}, refused: true, shown: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _, stop := nodetest.Start(t, nil)
				defer stop()
				st := nodetest.Report("b", 1, "True")
				if tt.unknown {
					st.MachineID = ""
				}
				hear(t, l, "pi-1", st)
				l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 1, Status: 1})
				if tt.linked {
					l.Connected("pi-1")
				}
				time.Sleep(tt.wait)
				tt.caller.Node = "pi-1"
				err := l.Connect(tt.caller)
				if tt.refused != (err != nil) || tt.refused && !errors.Is(err, node.ErrConflict) {
					t.Errorf("connect: %v", err)
				}
				if c := state.NodeCondition(l.Snapshot().Node("pi-1"), fleet.ConditionIdentityConflict); (c != nil) != tt.shown {
					t.Errorf("the conflict shown is %+v", c)
				}
			})
		})
	}
}

// Two agents of one machine look like one agent that returned, until the first one sends again. The
// conflict is written once, and removed after no other agent has tried for a while.
func TestTwoAgentsWithOneIdentityAreAConflictForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		l.Connected("pi-1")
		first, second := node.Caller{Node: "pi-1", Machine: machine, Boot: "b"},
			node.Caller{Node: "pi-1", Machine: machine, Boot: "c"}
		shown := func() bool {
			return state.NodeCondition(l.Snapshot().Node("pi-1"), fleet.ConditionIdentityConflict) != nil
		}
		seq := uint64(1)
		status := uint64(1)
		live := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				time.Sleep(5 * time.Second)
				seq++
				l.Lease(node.Caller{Node: "pi-1", Machine: machine, Boot: "b"}, wire.Lease{Boot: "b", Seq: seq, Status: status})
			}
		}
		try := func() {
			t.Helper()
			if err := l.Connect(second); !errors.Is(err, node.ErrConflict) {
				t.Fatal(err)
			}
		}
		try()
		if shown() {
			t.Error("a dead link that counts as connected is shown as a conflict")
		}
		live(5 * time.Second)
		try()
		if !shown() {
			t.Error("no conflict is shown although the first sent after the second tried")
		}
		before, _, _ := book.Counts()
		for range 10 {
			live(5 * time.Second)
			try()
		}
		if after, _, _ := book.Counts(); after != before {
			t.Errorf("further tries are written %d times", after-before)
		}
		report := func() {
			t.Helper()
			status++
			st := nodetest.Report("b", status, "True")
			st.Status.NodeInfo.OSImage = fmt.Sprint(status)
			if err := l.Status(t.Context(), first, st); err != nil {
				t.Fatal(err)
			}
		}
		live(time.Minute)
		if report(); !shown() {
			t.Error("the conflict is removed a minute after the last try")
		}
		live(2 * time.Minute)
		if report(); shown() {
			t.Error("the conflict is never removed")
		}
		// A try after a minute is a new conflict, because the link may have broken meanwhile.
		l.Connected("pi-1")
		live(time.Minute)
		if try(); shown() {
			t.Error("a try after so long counts as a repeated one")
		}
	})
}

// A card was copied for a whole site. The conflict is shown, and the number of writes does not grow
// with the number of clones and tries.
func TestManyClonesCauseFewWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		l.Connected("pi-1")
		own := node.Caller{Node: "pi-1", Machine: machine, Boot: "b"}
		before, _, _ := book.Counts()
		var last string
		for seq := uint64(2); seq < 362; seq++ { // an hour
			for i := range 39 {
				last = fmt.Sprintf("%016x", i+1)
				if err := l.Connect(node.Caller{Node: "pi-1", Machine: last, Boot: last}); !errors.Is(err, node.ErrConflict) {
					t.Fatal(err)
				}
			}
			time.Sleep(10 * time.Second)
			l.Lease(own, wire.Lease{Boot: "b", Seq: seq, Status: 1})
		}
		after, _, _ := book.Counts()
		if n := after - before; n < 1 || n > 100 {
			t.Errorf("39 clones cause %d writes in an hour", n)
		}
		if c := state.NodeCondition(l.Snapshot().Node("pi-1"), fleet.ConditionIdentityConflict); c == nil ||
			c.Status != corev1.ConditionTrue {
			t.Errorf("the conflict shown is %+v", c)
		}
	})
}

// A message is refused if it is of a past boot, has an old number, or is about another node's
// object.
func TestOldMessagesAndOtherNodesPodsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		nodetest.Greet(t, l, "pi-2")
		one, two := node.Caller{Node: "pi-1"}, node.Caller{Node: "pi-2"}
		pod := func(name, on string) *corev1.Pod {
			apply(t, l, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: corev1.PodSpec{NodeName: on}})
			return l.Snapshot().Pod("default", name)
		}
		mine, theirs := pod("mine", "pi-1"), pod("theirs", "pi-2")
		tell := func(boot string, seq uint64, p *corev1.Pod, phase corev1.PodPhase) error {
			return l.Pods(t.Context(), one, wire.Pods{Boot: boot, Seq: seq, Generation: 1,
				Pods: []wire.PodStatus{{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Status: corev1.PodStatus{Phase: phase}}}})
		}
		phase := func(p *corev1.Pod) corev1.PodPhase { return l.Snapshot().Pod(p.Namespace, p.Name).Status.Phase }
		if err := tell("b", 5, mine, corev1.PodRunning); err != nil || phase(mine) != corev1.PodRunning {
			t.Fatal(err, phase(mine))
		}
		for _, seq := range []uint64{4, 5} {
			if err := tell("b", seq, mine, corev1.PodFailed); !errors.Is(err, node.ErrStale) ||
				phase(mine) != corev1.PodRunning {
				t.Errorf("list %d: %v, %s", seq, err, phase(mine))
			}
		}
		if err := tell("c", 6, mine, corev1.PodFailed); !errors.Is(err, node.ErrStale) || phase(mine) != corev1.PodRunning {
			t.Errorf("a list of an unknown boot: %v", err)
		}
		if err := tell("b", 7, theirs, corev1.PodFailed); err != nil || phase(theirs) == corev1.PodFailed {
			t.Errorf("a list with another node's pod: %v, %s", err, phase(theirs))
		}
		former := mine.DeepCopy()
		former.UID = "of the earlier pod"
		if err := tell("b", 8, former, corev1.PodFailed); err != nil || phase(mine) != corev1.PodRunning {
			t.Errorf("a list with an earlier pod of the name: %v, %s", err, phase(mine))
		}
		for what, e := range map[string]wire.Event{
			"another node's pod":         {Namespace: "default", Pod: "theirs", PodUID: theirs.UID},
			"an earlier pod of the name": {Namespace: "default", Pod: "mine", PodUID: "of the earlier pod"},
			"an unknown pod":             {Namespace: "default", Pod: "nobody's", PodUID: "u"},
		} {
			e.Boot, e.Type, e.Reason, e.Message = "b", "Warning", "Lied", what
			if err := l.Event(t.Context(), one, e); err != nil || len(events(l, "Lied")) != 0 {
				t.Errorf("an event of %s: %v, %q", what, err, events(l, "Lied"))
			}
		}
		if err := l.Event(t.Context(), one, wire.Event{Boot: "b", Type: "Warning", Reason: "Lied", Namespace: "default",
			Pod: "mine", PodUID: mine.UID, Message: "x"}); err != nil || len(events(l, "Lied")) != 1 {
			t.Errorf("an event of its own pod: %v", err)
		}

		hear(t, l, "pi-1", nodetest.Report("b", 7, "True"))
		if err := l.Status(t.Context(), one, nodetest.Report("b", 7, "False")); !errors.Is(err, node.ErrStale) ||
			state.ReadyOf(l.Snapshot().Node("pi-1")) != corev1.ConditionTrue {
			t.Errorf("a repeated status: %v", err)
		}
		for i := range 20 { // more boots than the record stores
			hear(t, l, "pi-1", nodetest.Report(fmt.Sprint("boot-", i), 1, "True"))
		}
		if n := len(l.Snapshot().Record("pi-1").PastBoots); n != 8 {
			t.Errorf("%d past boots are stored", n)
		}
		for _, boot := range []string{"boot-18", "boot-12"} {
			if err := l.Status(t.Context(), one, nodetest.Report(boot, 99, "False")); !errors.Is(err, node.ErrStale) ||
				l.Snapshot().Record("pi-1").Boot != "boot-19" {
				t.Errorf("an earlier boot is accepted: %v, %s", err, l.Snapshot().Record("pi-1").Boot)
			}
		}
		if err := tell("boot-18", 100, mine, corev1.PodFailed); !errors.Is(err, node.ErrStale) {
			t.Errorf("pods of a past boot: %v", err)
		}
		if err := l.Status(t.Context(), two, nodetest.Report("b", 9, "True")); err != nil {
			t.Error(err)
		}
	})
}

// A dismissed device reports the pods that it still runs. The report counts until the node's name
// is used again.
func TestADismissedDeviceReportsOnlyItsOwnPods(t *testing.T) {
	for what, tt := range map[string]struct {
		caller node.Caller
		again  bool // a Node of that name exists again
		gone   bool // the pod that the device no longer has
	}{
		"of its own node":                          {node.Caller{Node: "pi-1", Key: "k1"}, false, true},
		"of another":                               {node.Caller{Node: "pi-2", Key: "k1"}, false, false},
		"with another device's key":                {node.Caller{Node: "pi-1", Key: "k2"}, false, false},
		"after a new Node of the name was created": {node.Caller{Node: "pi-1", Key: "k1"}, true, false},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _, stop := nodetest.Start(t, nil)
				defer stop()
				apply(t, l, &state.Dismissal{ObjectMeta: metav1.ObjectMeta{Name: "k1"}, Node: "pi-1", Time: metav1.Now(),
					Until: metav1.NewTime(time.Now().Add(time.Hour))})
				if tt.again {
					apply(t, l, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}})
				}
				for _, on := range []string{"pi-1", "pi-2"} {
					grace := int64(30)
					at := metav1.Now()
					apply(t, l, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "on-" + on,
						DeletionTimestamp: &at, DeletionGracePeriodSeconds: &grace}, Spec: corev1.PodSpec{NodeName: on}})
				}
				before := l.Snapshot()
				if before.Pod("default", "on-pi-1") == nil || before.Pod("default", "on-pi-2") == nil {
					t.Skip("the hub itself has removed pods of missing nodes")
				}
				if err := l.RemainingPods(t.Context(), tt.caller, wire.Pods{Boot: "b", Seq: 1}); err != nil {
					t.Fatal(err)
				}
				if gone := l.Snapshot().Pod("default", "on-pi-1") == nil; gone != tt.gone ||
					l.Snapshot().Pod("default", "on-pi-2") == nil {
					t.Errorf("pi-1's pod is removed: %t", gone)
				}
			})
		})
	}
}

// The number of dismissals is limited. Each stays exactly as long as the device's certificate can
// be renewed.
func TestDismissalsAreLimited(t *testing.T) {
	now := time.Now()
	s := state.Empty("test", now)
	var changes []state.Change
	for i := range 10_050 {
		at := metav1.NewTime(now.Add(time.Duration(i-20_000) * time.Second))
		changes = append(changes, state.Put(&state.Dismissal{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("k", i)},
			Node: "n", Time: at, Until: metav1.NewTime(now.Add(time.Hour))}, ""))
	}
	rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Key: "mine", Boot: "b",
		Expires: metav1.NewTime(now.Add(-365 * 24 * time.Hour))}
	changes = append(changes, state.Put(rec, ""), state.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}}, ""))
	s, _ = state.Apply(s, changes)
	s, log := state.Apply(s, []state.Change{state.Remove(s.Node("pi-1"), "")})
	var put *state.Dismissal
	gone := map[string]bool{}
	for _, c := range node.Ended(s, log, now) {
		switch o := c.Object.(type) {
		case *state.Dismissal:
			if c.Delete {
				gone[o.Name] = true
			} else {
				put = o
			}
		}
	}
	if put == nil || put.Name != "mine" || put.Until.Sub(now) < 90*24*time.Hour-time.Minute {
		t.Errorf("the device's dismissal is %+v", put)
	}
	if len(gone) != 51 || !gone["k0"] || !gone["k50"] {
		t.Errorf("%d other devices have no dismissal; the oldest: %t", len(gone), gone["k0"])
	}
}

// A device that has joined since the deletion of its Node keeps its enrolment.
func TestADeletionEndsNoLaterEnrolment(t *testing.T) {
	now := time.Now()
	rec := func(key string) *state.Record {
		return &state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Key: key,
			Expires: metav1.NewTime(now.Add(time.Hour))}
	}
	s, _ := state.Apply(state.Empty("test", now),
		[]state.Change{state.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}}, ""), state.Put(rec("k1"), "")})
	s, log := state.Apply(s, []state.Change{state.Remove(s.Node("pi-1"), "")})
	if len(node.Ended(s, log, now)) == 0 {
		t.Error("the enrolment exists without its Node")
	}
	s, _ = state.Apply(s, []state.Change{state.Put(rec("k2"), "")})
	if changes := node.Ended(s, log, now); len(changes) != 0 {
		t.Errorf("the newer enrolment has ended too: %v", changes)
	}
}
