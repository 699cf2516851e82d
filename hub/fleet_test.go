package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/kube"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// A fullStore has no room.
type fullStore struct{}

func (fullStore) Commit(context.Context, []control.Row, uint64) error {
	return fmt.Errorf("write: %w", store.ErrFull)
}

// A disk that is full reaches the API as that, and not as a failure of the hub.
func TestAFullDiskIsToldToTheAPI(t *testing.T) {
	loop := control.New(control.Config{Store: fullStore{}, Log: slog.New(slog.DiscardHandler), Start: state.Empty("test", time.Now()), Deliver: control.Deliver{}})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- loop.Run(ctx) }()
	defer func() {
		cancel()
		<-over
	}()
	_, err := kubeFleet{loop}.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
		return []state.Change{state.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, "")}, nil
	})
	if !errors.Is(err, kube.ErrFull) || !errors.Is(err, store.ErrFull) {
		t.Errorf("got %v", err)
	}
}
