package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// A refusingStore refuses rows with an error while one is set.
type refusingStore struct {
	with    atomic.Pointer[error]
	refuses func(Row) bool
}

func (c *refusingStore) Commit(_ context.Context, rows []Row, _ uint64) error {
	if err := c.with.Load(); err != nil && slices.ContainsFunc(rows, c.refuses) {
		return *err
	}
	return nil
}

func (c *refusingStore) refuse(err error) { c.with.Store(&err) }

// A probingStore is a refusingStore with a Prober.
type probingStore struct {
	*refusingStore
	room atomic.Bool
}

func (r *probingStore) Room(context.Context) bool { return r.room.Load() }

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
}

// A pass without additions does not show that the disk has space again.
func TestAFullDiskIsReportedUntilThereIsSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &probingStore{refusingStore: &refusingStore{refuses: func(r Row) bool {
			return r.Key.Kind == state.Pods && r.Key.Name != "kiosk"
		}}}
		disk.refuse(fmt.Errorf("write: %w", ErrFull))
		l := withAKiosk(time.Now(), disk)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- l.Run(ctx) }()
		add := func() error {
			_, err := l.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
				return []state.Change{state.Put(podNamed("new"), "")}, nil
			})
			return err
		}
		if err := add(); !errors.Is(err, ErrFull) {
			t.Error(err)
		}
		for range 120 {
			time.Sleep(time.Second)
			if !l.Snapshot().DiskFull() {
				t.Error("the loop reports space although nothing was added")
				break
			}
		}
		disk.with.Store(nil)
		disk.room.Store(true)
		time.Sleep(11 * time.Second)
		if l.Snapshot().DiskFull() {
			t.Error("11 s later the loop still reports a full disk")
		}
		if err := add(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}

// podAdder is a decider that adds a pod.
type podAdder struct{}

func (podAdder) Touches(state.Applied) []state.Subject { return nil }
func (podAdder) Subjects(state.Snapshot) []state.Subject {
	return []state.Subject{{Key: state.Key{Kind: state.Pods, Namespace: "default", Name: "large"}}}
}
func (podAdder) Decide(s state.Snapshot, _ []state.Subject, _ time.Time) (p state.Plan) {
	if s.Pod("default", "large") == nil {
		p.Changes = []state.Change{state.Put(podNamed("large"), "add pod large")}
	}
	return p
}

// A store may refuse one row, for example because it is too large or violates a constraint.
func TestARefusedRowDelaysNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &refusingStore{refuses: func(r Row) bool { return r.Key.Name == "large" && r.State != nil }}
		disk.refuse(errors.New("write pods default/large: row is too big"))
		l := withAKiosk(time.Now(), disk)
		l = New(Config{Start: l.Snapshot(), Store: disk, Deciders: []Decider{l.settler.deciders[0], podAdder{}}})
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- l.Run(ctx) }()
		time.Sleep(6 * time.Minute)
		if p := l.Snapshot().Pod("default", "kiosk"); p != nil && p.DeletionTimestamp == nil {
			t.Error("the pod on the silent node is not evicted")
		}
		if l.Snapshot().DiskFull() {
			t.Error("the loop reports a full disk")
		}
		disk.with.Store(nil)
		time.Sleep(11 * time.Second)
		if l.Snapshot().Pod("default", "large") == nil {
			t.Error("refused additions are not tried again")
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
}
