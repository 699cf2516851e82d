package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/snapshot"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// A hub with a harmful object in its database starts, repairs the object and reports that. The next
// start finds nothing to repair.
func TestADatabaseWithAHarmfulObject(t *testing.T) {
	dir := t.TempDir()
	open := func() *store.Store {
		st, err := store.Open(t.Context(), store.Options{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	st := open()
	row := func(kind, namespace, name string, rev uint64, object string) store.Row {
		return store.Row{Kind: kind, Namespace: namespace, Name: name, UID: "u-" + name, Rev: rev, Object: []byte(object)}
	}
	err := st.Commit(t.Context(), store.Commit{Rev: 3, Rows: []store.Row{
		row("nodes", "", "pi-1", 1, `{"metadata":{"name":"pi-1","uid":"u-pi-1","resourceVersion":"1"},"status":{"capacity":{"cpu":"1e999999999","memory":"1Gi"},"allocatable":{"cpu":"1e-999999999"}}}`),
		row("pods", "default", "p", 2, `{"metadata":{"name":"p","namespace":"default","uid":"u-p","resourceVersion":"2","annotations":{"a":"1e999999999"}},"spec":{"nodeName":"pi-1","containers":[{"name":"c","resources":{"requests":{"cpu":"1e999999999"}}}]}}`),
		row("controllerrevisions", "default", "r", 3,
			`{"metadata":{"name":"r","namespace":"default","uid":"u-r","resourceVersion":"3"},"data":{"spec":{"template":{"spec":{"overhead":{"cpu":"1e-999999999"}}}}},"revision":1}`),
	}})
	if err != nil {
		t.Fatal(err)
	}
	start, mended, err := snapshot.Load(t.Context(), st, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if n := start.Node("pi-1"); n == nil || !n.Status.Capacity.Cpu().IsZero() ||
		n.Status.Capacity.Memory().Value() != 1<<30 {
		t.Errorf("the repaired node is %+v", n)
	}
	if p := start.Pod("default", "p"); p == nil || p.Annotations["a"] != "1e999999999" ||
		!p.Spec.Containers[0].Resources.Requests.Cpu().IsZero() {
		t.Errorf("the repaired pod is %+v", p)
	}
	if len(mended) != 3 {
		t.Fatalf("the repairs are %v", mended)
	}
	loop := newLoop(config.Default(), start, memory{st}, nil, slog.New(slog.DiscardHandler))
	go func() { _ = loop.Run(t.Context()) }()
	if _, err := loop.Do(t.Context(), storeRepairs(mended)); err != nil {
		t.Fatal(err)
	}
	events := 0
	for e := range state.Each[*corev1.Event](loop.Snapshot(), state.Events, metav1.NamespaceDefault) {
		if e.Reason == "OutOfBounds" && strings.Contains(e.Message, "quantities") {
			events++
		}
	}
	if events != 3 {
		t.Errorf("%d events report the repairs", events)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	st = open()
	defer st.Close()
	if _, mended, err = snapshot.Load(t.Context(), st, time.Now()); err != nil || len(mended) != 0 {
		t.Errorf("the next start repairs %v, want nothing: %v", mended, err)
	}
}

// A fullStore has a full disk.
type fullStore struct{}

func (fullStore) Commit(context.Context, store.Commit) error {
	return fmt.Errorf("write: %w", store.ErrFull)
}

// A full disk is reported to the client, not as an internal error.
func TestAFullDiskIsReportedToTheClient(t *testing.T) {
	loop := newLoop(config.Default(), state.Empty("test", time.Now()), memory{fullStore{}}, nil,
		slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- loop.Run(ctx) }()
	defer func() {
		cancel()
		<-over
	}()
	_, err := loop.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
		return []state.Change{state.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, "")}, nil
	})
	if !errors.Is(err, control.ErrFull) || !errors.Is(err, store.ErrFull) {
		t.Errorf("the client gets %v, want ErrFull of control and of store", err)
	}
}
