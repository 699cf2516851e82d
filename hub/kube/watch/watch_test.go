package watch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// A fleet applies changes in memory and keeps every change.
type fleet struct {
	mu      sync.Mutex
	snap    state.Snapshot
	history []state.Applied
	more    chan struct{}
}

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func newFleet() *fleet {
	return &fleet{snap: state.Empty("test", start), more: make(chan struct{})}
}

func (f *fleet) Snapshot() state.Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snap
}

func (f *fleet) Since(rev uint64) ([]state.Applied, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, _ := slices.BinarySearchFunc(f.history, rev+1,
		func(a state.Applied, rev uint64) int { return cmp.Compare(a.Rev, rev) })
	return slices.Clone(f.history[i:]), f.more, nil
}

func (f *fleet) put(nodes ...*corev1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var changes []state.Change
	for _, n := range nodes {
		changes = append(changes, state.Put(n, ""))
	}
	var done []state.Applied
	f.snap, done = state.Apply(f.snap, changes)
	f.history = append(f.history, done...)
	close(f.more)
	f.more = make(chan struct{})
}

// Seen returns zero: no node has renewed a lease.
func (f *fleet) Seen(string) time.Time       { return time.Time{} }
func (f *fleet) Lease(string) *coordv1.Lease { return nil }
func (f *fleet) Leases() []*coordv1.Lease    { return nil }

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

var nodes = func() *resource.Resource {
	all := resource.Served(func(state.Feature) bool { return true })
	return all[slices.IndexFunc(all, func(r *resource.Resource) bool { return r.State == state.Nodes })]
}()

// ofNodes returns a watch of all nodes from a revision, as objects or as a table.
func (f *fleet) ofNodes(t testing.TB, rev uint64, as string, e *Encodings, out sink) *Watch {
	t.Helper()
	sel, err := resource.NewSelection(state.Nodes, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Watch{
		Fleet: f, View: &resource.View{Leases: f, Now: func() time.Time { return start }},
		Resource: nodes, Selection: sel, Form: resource.Form{Media: resource.MediaJSON, As: as}, Rev: rev, Encodings: e,
		Hold: func(int) (func(), error) { return func() {}, nil }, Log: slog.New(slog.DiscardHandler), out: out,
	}
}

// A slowReader needs time for each write.
type slowReader struct{ took time.Duration }

func (s slowReader) write([]byte) error {
	time.Sleep(s.took)
	return nil
}

func TestASlowWatcherKeepsNoSnapshotForLong(t *testing.T) {
	for took, all := range map[time.Duration]bool{writeTimeout - time.Second: false, time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFleet()
			for i := range 200 {
				n := node(fmt.Sprintf("pi-%d", i))
				n.Annotations = map[string]string{"long": strings.Repeat("a", 32<<10)}
				f.put(n)
			}
			w := f.ofNodes(t, 0, "", NewEncodings(), slowReader{took})
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			began := time.Now()
			w.run(ctx, &internalversion.ListOptions{})
			if held := time.Since(began); all != (held == time.Hour) || !all && held > batchTimeout+writeTimeout {
				t.Errorf("a client that needs %s for 64 KiB watched for %s, want the whole hour: %t", took, held, all)
			}
		})
	}
}

// lines counts events.
type lines struct{ n int }

func (l *lines) write(b []byte) error {
	l.n += strings.Count(string(b), "\n")
	return nil
}

// watchers opens n watches of nodes in each form.
func (f *fleet) watchers(t *testing.T, n int, e *Encodings, forms ...string) (watches []*lines) {
	rev := f.Snapshot().Revision
	for _, as := range forms {
		for range n {
			l := new(lines)
			w := f.ofNodes(t, rev, as, e, l)
			go w.run(t.Context(), &internalversion.ListOptions{})
			watches = append(watches, l)
		}
	}
	synctest.Wait()
	return watches
}

// counts returns the numbers of encodings made, bytes cached and encodings cached.
func (f *Encodings) counts() (encodings, bytes, cached int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.encodings, int(f.bytes), len(f.made)
}

func TestAChangeIsEncodedOnceForAllItsWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(), NewEncodings()
		f.put(node("pi-1"))
		watches := f.watchers(t, 20, e, "")
		for _, value := range []string{"b", "c"} {
			n := node("pi-1")
			n.Annotations = map[string]string{"a": value}
			f.put(n)
			synctest.Wait()
		}
		for _, l := range watches {
			if l.n != 2 {
				t.Errorf("a watch received %d changes, want 2", l.n)
			}
		}
		if n, _, _ := e.counts(); n != 2 {
			t.Errorf("two changes were encoded %d times, want 2", n)
		}
	})
}

// A site of a thousand nodes reconnects at once while a hundred clients watch, some of them with
// tables. Each change is encoded once per form.
func TestAThousandChangesAreEncodedOnceForAHundredWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := newFleet(), NewEncodings()
		f.put(node("pi-0"))
		watches := f.watchers(t, 50, e, "", "Table")
		var all []*corev1.Node
		for i := range 1000 {
			all = append(all, node(fmt.Sprintf("pi-%04d", i)))
		}
		f.put(all...)
		synctest.Wait()
		for _, l := range watches {
			if l.n != 1000 {
				t.Fatalf("a watch received %d changes, want 1000", l.n)
			}
		}
		encodings, bytes, _ := e.counts()
		if encodings > 2001 { // the first row of a table has the columns
			t.Errorf("1000 changes in two forms were encoded %d times, want 2001", encodings)
		}
		if bytes == 0 {
			t.Error("the cache must keep encodings for a while")
		}
		time.Sleep(2 * cacheFor)
		synctest.Wait()
		if _, bytes, cached := e.counts(); bytes != 0 || cached != 0 {
			t.Errorf("%d bytes of %d encodings are still cached", bytes, cached)
		}
	})
}

type discard struct{}

func (discard) write([]byte) error { return nil }

// One node changes while a hundred watches select all nodes.
func BenchmarkChangeFor100Watchers(b *testing.B) {
	f, e := newFleet(), NewEncodings()
	f.put(node("pi-1"))
	n := f.Snapshot().Node("pi-1")
	change := state.Applied{Rev: 10, Key: state.KeyOf(n), Old: n, New: n}
	var watchers []*Watch
	for range 100 {
		watchers = append(watchers, f.ofNodes(b, 0, "", e, discard{}))
	}
	for b.Loop() {
		change.Rev++
		for _, w := range watchers {
			w.send(change)
			w.flush()
		}
	}
}
