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

// A slowStore takes a fixed time for a commit.
type slowStore struct{ long time.Duration }

func (c slowStore) Commit(context.Context, []Row, uint64) error {
	time.Sleep(c.long)
	return nil
}

// A client that waits while the hub stops learns whether its change was made, even if the client's
// context ends with the hub.
func TestClientsOfAStoppingHubLearnTheResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		l := New(Config{Store: slowStore{time.Second}, Start: state.Empty("x", time.Now())})
		put := func(ctx context.Context, name string) <-chan error {
			result := make(chan error, 1)
			go func() {
				_, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
					return []state.Change{state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}},
						"")}, nil
				})
				result <- err
			}()
			synctest.Wait()
			return result
		}
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		synctest.Wait()
		request, cancel := context.WithCancel(ctx)
		underWay, waiting, left := put(ctx, "under-way"), put(ctx, "waiting"), put(request, "left")
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("a client whose context ended gets %v", err)
		}
		stop()
		synctest.Wait()
		late := put(ctx, "late")
		if err := <-underWay; err != nil {
			t.Errorf("a running request gets: %v", err)
		}
		results := map[string]error{"waiting": <-waiting, "late": <-late}
		if err := <-over; err != nil {
			t.Error(err)
		}
		for name, err := range results {
			stored := l.Snapshot().Get(state.Key{Kind: state.ConfigMaps, Namespace: "default", Name: name}) != nil
			if stored != (err == nil) || err != nil && !errors.Is(err, ErrStopped) {
				t.Errorf("the %s client gets %v, and its change is stored: %v", name, err, stored)
			}
		}
	})
}

// Clients of a stopping hub whose store hangs wait at most stopGrace.
func TestClientsOfAHangingHubAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		l := New(Config{Store: slowStore{time.Hour}, Start: state.Empty("x", time.Now())})
		over := make(chan error, 1)
		go func() { over <- l.Run(ctx) }()
		time.AfterFunc(time.Second, stop)
		began := time.Now()
		_, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
			return []state.Change{state.Put(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}},
				"")}, nil
		})
		if took := time.Since(began); !errors.Is(err, context.Canceled) || took > 10*time.Second {
			t.Errorf("the client gets after %s: %v", took, err)
		}
		<-over
	})
}
