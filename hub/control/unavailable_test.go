package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// hangingStore is a store whose database does not confirm commits.
type hangingStore struct{ back chan struct{} }

func (a hangingStore) Commit(context.Context, []Row, uint64) error {
	<-a.back
	return nil
}

func TestRequestsDuringAHangingCommitFailAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hangingStore{make(chan struct{})}
		l := New(Config{Store: store, Start: state.Empty("hub", time.Now())})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = l.Run(ctx) }()
		create := func(name string) News {
			return func(state.Snapshot, time.Time) ([]state.Change, error) {
				return []state.Change{state.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, "")}, nil
			}
		}
		first := make(chan error, 1)
		go func() { _, err := l.Do(t.Context(), create("a")); first <- err }()
		time.Sleep(slowCommit + time.Second)
		if _, err := l.Do(t.Context(), create("b")); !errors.Is(err, ErrUnavailable) {
			t.Fatal(err)
		}
		close(store.back)
		if err := <-first; err != nil {
			t.Fatal("the hanging commit was stored after all:", err)
		}
		if _, err := l.Do(t.Context(), create("c")); err != nil {
			t.Fatal(err)
		}
		for name, want := range map[string]bool{"a": true, "b": false, "c": true} {
			if has := l.Snapshot().Get(state.Key{Kind: state.Namespaces, Name: name}) != nil; has != want {
				t.Errorf("%s: %v", name, has)
			}
		}
		stop()
		<-ended
	})
}
