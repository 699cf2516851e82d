package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// noise returns text that cannot be compressed or shared.
func noise(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(r.IntN(26))
	}
	return string(b)
}

func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// budgetSeconds is how long a test tries to exceed a limit.
func budgetSeconds() int {
	if !nodetest.Long {
		return 15
	}
	return 5 * 60
}

// Five minutes of any messages of one device cost the hub a limited number of bytes, on disk and in
// memory.
func TestOneDeviceHasABudget(t *testing.T) {
	const perSecond = 10
	seconds := budgetSeconds()
	for _, attack := range []struct {
		name string
		say  func(r *rand.Rand, st *wire.Status)
	}{
		{"new hardware in each report", func(r *rand.Rand, st *wire.Status) {
			st.Hardware = json.RawMessage(`{"board":"` + noise(r, 31<<10) + `"}`)
		}},
		{"new images in each report", func(r *rand.Rand, st *wire.Status) {
			for range 256 {
				st.Status.Images = append(st.Status.Images, corev1.ContainerImage{Names: []string{noise(r, 400)}})
			}
		}},
		{"new conditions in each report", func(r *rand.Rand, st *wire.Status) {
			for i := range 60 {
				st.Status.Conditions = append(st.Status.Conditions,
					corev1.NodeCondition{Type: corev1.NodeConditionType(fmt.Sprint("C", i)), Status: "True", Message: noise(r, 1000)})
			}
		}},
		{"a new boot and new conditions in each report", func(r *rand.Rand, st *wire.Status) {
			st.Boot, st.Seq = noise(r, 20), 1
			st.Status.Conditions[0].Message = noise(r, 1000)
			st.Hardware = json.RawMessage(`{"board":"` + noise(r, 31<<10) + `"}`)
		}},
		{"alternating values of Ready, and new boot ids", func(r *rand.Rand, st *wire.Status) {
			st.Status.Conditions[0].Status = []corev1.ConditionStatus{"True", "False"}[st.Seq%2]
			st.Status.Conditions[0].Message = noise(r, 1000)
			st.Status.NodeInfo.BootID = noise(r, 500)
			st.Hardware = json.RawMessage(`{"board":"` + noise(r, 31<<10) + `"}`)
		}},
		{"new implausible values in each report", func(r *rand.Rand, st *wire.Status) {
			for range 32 {
				st.Status.Addresses = append(st.Status.Addresses,
					corev1.NodeAddress{Type: "Hostname", Address: "-" + noise(r, 300)})
			}
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, book, stop := nodetest.Start(t, nil)
				defer stop()
				nodetest.Greet(t, l, "pi-1")
				nodetest.Greet(t, l, "pi-2")
				r := rand.New(rand.NewPCG(1, 2))
				bytes, before := book.Written(), heap()
				for seq := range uint64(seconds * perSecond) {
					st := nodetest.Report("b", seq+2, "True")
					attack.say(r, &st)
					_ = l.Status(t.Context(), node.Caller{Node: "pi-1"}, st) // it does not matter here whether the status is accepted
					if seq%100 == 0 {
						l.Lease(node.Caller{Node: "pi-2"}, wire.Lease{Boot: "b", Seq: seq + 2, Status: 1})
					}
					time.Sleep(time.Second / perSecond)
				}
				synctest.Wait()
				if got := book.Written() - bytes; got > 32<<20 {
					t.Errorf("%d MiB were written", got>>20)
				}
				if got := heap() - before; got > 96<<20 {
					t.Errorf("the heap grew by %d MiB", got>>20)
				} else {
					t.Logf("%d KiB written, heap %d KiB more", (book.Written()-bytes)>>10, got>>10)
				}
				if got := state.ReadyOf(l.Snapshot().Node("pi-2")); got != corev1.ConditionTrue {
					t.Errorf("another node is Ready=%s", got)
				}
			})
		})
	}
}

// The statuses of pods are stored as objects, so they are limited too.
func TestPodsOfOneDeviceHaveABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		var changes []state.Change
		for i := range 40 {
			changes = append(changes, state.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
				Name: fmt.Sprint("p", i)}, Spec: corev1.PodSpec{NodeName: "pi-1"}}, ""))
		}
		done, err := l.Do(t.Context(), func(state.Snapshot, time.Time) ([]state.Change, error) { return changes, nil })
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 2))
		bytes, before := book.Written(), heap()
		for seq := range uint64(budgetSeconds() * 10) {
			list := wire.Pods{Boot: "b", Seq: seq + 1, Generation: 1}
			for _, a := range done {
				list.Pods = append(list.Pods, wire.PodStatus{UID: a.New.GetUID(), Namespace: "default", Name: a.New.GetName(),
					Status: corev1.PodStatus{Phase: corev1.PodRunning, Message: noise(r, 4000)}})
			}
			_ = l.Pods(t.Context(), node.Caller{Node: "pi-1"}, list)
			time.Sleep(100 * time.Millisecond)
		}
		if got, grown := book.Written()-bytes, heap()-before; got > 32<<20 || grown > 96<<20 || got < 1<<20 {
			t.Errorf("%d KiB were written, and the heap grew by %d KiB", got>>10, grown>>10)
		}
	})
}

// The hub later requests the deferred messages from the device.
func TestDeferredMessagesAreRequestedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		r := rand.New(rand.NewPCG(1, 2))
		seq := uint64(2)
		say := func(ready corev1.ConditionStatus) wire.Status {
			st := nodetest.Report("b", seq, ready)
			for range 80 {
				st.Status.Images = append(st.Status.Images, corev1.ContainerImage{Names: []string{noise(r, 400)}})
			}
			if err := l.Status(t.Context(), node.Caller{Node: "pi-1"}, st); err != nil {
				t.Fatal(err)
			}
			seq++
			return st
		}
		for l.DeferredMessages() == 0 {
			if say("True"); seq > 2000 { // 2,000 statuses are 62 MB
				t.Fatal("the device's messages are not limited")
			}
		}
		say("False") // this status is accepted nevertheless
		if got := state.ReadyOf(l.Snapshot().Node("pi-1")); got != corev1.ConditionFalse {
			t.Errorf("Ready=%s: a report of not ready must be accepted in spite of the limit", got)
		}
		_, _, asked := book.Counts()
		time.Sleep(time.Minute)
		l.Lease(node.Caller{Node: "pi-1"}, wire.Lease{Boot: "b", Seq: 9, Status: seq - 1})
		synctest.Wait()
		if _, _, again := book.Counts(); again == asked {
			t.Fatal("the hub does not ask for the deferred status")
		}
		last := say("True")
		n := l.Snapshot().Node("pi-1")
		if len(n.Status.Images) != len(last.Status.Images) || n.Status.Images[0].Names[0] != last.Status.Images[0].Names[0] ||
			state.ReadyOf(n) != corev1.ConditionTrue {
			t.Error("the answer is not accepted")
		}
	})
}

// The events per object and of all objects are limited.
func TestEventsOfOneDeviceRemoveOnlyItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, book, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		nodetest.Greet(t, l, "pi-2")
		event := func(name, message string) {
			if err := l.Event(t.Context(), node.Caller{Node: name},
				wire.Event{Boot: "b", Type: "Warning", Reason: "Told", Message: message}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 20 {
			event("pi-2", fmt.Sprint("event ", i))
		}
		before := book.Written()
		r := rand.New(rand.NewPCG(1, 2))
		for range 5 * 60 * 20 {
			event("pi-1", noise(r, 4000))
			time.Sleep(50 * time.Millisecond)
		}
		of := map[string]int{}
		for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
			if e.Reason == "Told" {
				of[e.Source.Host]++
			}
		}
		if of["pi-2"] != 20 || of["pi-1"] == 0 || of["pi-1"] > 100 {
			t.Errorf("the stored events are of the devices %v", of)
		}
		if got := book.Written() - before; got > 8<<20 {
			t.Errorf("%d MiB were written", got>>20)
		}
		n := 0
		for range l.Snapshot().EventsFrom("pi-1") {
			n++
		}
		if n != of["pi-1"] {
			t.Errorf("the index has %d of %d events", n, of["pi-1"])
		}
	})
}

// Only the sender of slow news waits.
func TestSlowNewsDelaysOnlyItsSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, stop := nodetest.Start(t, nil)
		defer stop()
		nodetest.Greet(t, l, "pi-1")
		system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
		news := func(took time.Duration, changes ...state.Change) control.News {
			return func(state.Snapshot, time.Time) ([]state.Change, error) {
				time.Sleep(took)
				return changes, nil
			}
		}
		tell := func(ctx context.Context, n control.News) time.Duration {
			began := time.Now()
			if _, err := l.Do(ctx, n); err != nil {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		do := func(sender string, n control.News) time.Duration { return tell(control.From(t.Context(), sender), n) }
		do("user kari", news(0, state.Put(system, "")))
		do("user kari", news(700*time.Millisecond))
		if took := do("user kari", news(0)); took != 0 {
			t.Errorf("after a fast pass, news of the same sender waited for %s", took)
		}
		do("user kari", news(3*time.Second))
		synctest.Wait()
		if took := do("user ola", news(0)); took != 0 {
			t.Errorf("after kari's slow pass, ola waits for %s, want 0", took)
		}
		if took := do("user kari", news(0)); took < 9*time.Second || took > 10*time.Second {
			t.Errorf("after kari's slow pass, kari waits for %s, want 9 s to 10 s", took)
		}
		if took := do("user kari", news(0)); took != 0 {
			t.Errorf("kari's second news waits for %s, want 0", took)
		}
		tell(control.FromNode(t.Context(), "pi-1"), news(2*time.Second))
		synctest.Wait()
		if got := l.SlowPasses(); got["user kari"] != 1 || got["node pi-1"] != 1 || len(got) != 2 {
			t.Errorf("counted %v", got)
		}
		about := map[string]string{}
		for e := range state.Each[*corev1.Event](l.Snapshot(), state.Events, "") {
			if e.Reason == "SlowPass" {
				about[e.InvolvedObject.Name] = e.Message
			}
		}
		if !strings.Contains(about["pi-1"], "3s") &&
			!strings.Contains(about["pi-1"], "2s: most of it for news of node pi-1") ||
			!strings.Contains(about["kube-system"], "user kari") {
			t.Errorf("the events are %v", about)
		}
	})
}
