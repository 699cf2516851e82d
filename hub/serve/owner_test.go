package serve

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Behind an external broker the hub receives no pings. A device that reports every five minutes
// still counts as connected in between.
func TestADeviceBehindABrokerIsConnectedWhileItsNodeIsAlive(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	hub, err := New(t.Context(), Options{Config: cfg, Version: "test", Log: slog.New(slog.DiscardHandler),
		Listeners: Listeners{Dev: pipe.New()}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- hub.Run(ctx) }()
	<-hub.Up()
	defer func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}()
	for site, every := range map[string]time.Duration{"oslo": 5 * time.Minute, "bergen": 0} {
		s, name := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: site}}, "pi-"+site
		if every > 0 {
			s.Spec.LeaseInterval = &metav1.Duration{Duration: every}
		}
		ready := []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		if _, err := hub.Loop.Do(ctx, func(state.Snapshot, time.Time) ([]state.Change, error) {
			return []state.Change{
				state.Put(s, ""),
				state.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
					Labels: map[string]string{corev1.LabelTopologyZone: site}}, Status: corev1.NodeStatus{Conditions: ready}}, ""),
				state.Put(&state.Record{ObjectMeta: metav1.ObjectMeta{Name: name}, Key: "k-" + site, Boot: "b"}, ""),
			}, nil
		}); err != nil {
			t.Fatal(err)
		}
		o, ok := hub.owner(name)
		if least := max(cfg.NodeMonitorGracePeriod, state.LeasesPerGrace*every); !ok || o.Silence < least {
			t.Errorf("on site %s the device counts as disconnected after %s, but its node is ready for %s", site, o.Silence,
				least)
		}
	}
}
