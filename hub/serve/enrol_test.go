package serve

import (
	"context"
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

func TestEnrolmentsOfAnEarlierVersionAreTakenOverOnce(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "test", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	now := time.Now()
	if err := st.AddJoinToken(t.Context(), store.JoinToken{ID: "tok", Hash: []byte{1}, Site: "oslo", Uses: 9, Created: now, Expires: now.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"pi-1", "left-behind"} { // the Node of the second was deleted, and the hub died
		if err := st.TakeUse(t.Context(), store.Use{Node: node, Key: "key of " + node, Token: "tok", At: now, Expires: now.AddDate(1, 0, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	start := state.Load(state.Empty("test", now), []state.Object{
		&state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", ResourceVersion: "1"}, Enrolled: metav1.NewTime(now), Site: "oslo", Boot: "b"},
	}, 1)
	loop := newLoop(config.Default(), start, memory{st}, nil, log)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() { over <- loop.Run(ctx) }()
	defer func() { cancel(); <-over }()
	speaks := func(name string) bool { return loop.Speaks(node.Caller{Node: name, Key: "key of " + name}) }
	if speaks("pi-1") {
		t.Fatal("before it was taken over")
	}
	for range 2 {
		if err := moveEnrolments(t.Context(), loop, st, log); err != nil {
			t.Fatal(err)
		}
		if rec := loop.Snapshot().Record("pi-1"); !speaks("pi-1") || rec.Token != "tok" || rec.Boot != "b" || rec.Expires.IsZero() {
			t.Errorf("%+v", rec)
		}
		if d := loop.Dismissed("key of left-behind"); speaks("left-behind") || d == nil || d.Reason != "Node left-behind was deleted" {
			t.Errorf("the one left behind is told %+v", d)
		}
	}
	// What is used later is no enrolment of an earlier version.
	if err := st.TakeUse(t.Context(), store.Use{Node: "pi-9", Key: "k9", Token: "tok", At: now, Expires: now}); err != nil {
		t.Fatal(err)
	}
	if err := moveEnrolments(t.Context(), loop, st, log); err != nil || loop.Dismissed("k9") != nil {
		t.Errorf("%v, %+v", err, loop.Dismissed("k9"))
	}
}
