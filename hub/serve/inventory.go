package serve

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/inventory"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
)

// machines returns the reader of the inventory, nil if none is configured. Its events are about the
// namespace kube-system, because there is no object for the hub itself.
func machines(cfg config.Config, loop *node.Devices, log *slog.Logger) *inventory.Reader {
	if cfg.Inventory == "" {
		return nil
	}
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: metav1.NamespaceSystem}
	return inventory.NewReader(inventory.Options{
		Source: cfg.Inventory, Loop: loop, Startup: cfg.NodeStartupGracePeriod, Log: log,
		Tell: func(s state.Snapshot, now time.Time, warn bool, message string) state.Change {
			said := control.EventText{Type: corev1.EventTypeNormal, Reason: "InventoryRead", Message: message}
			if warn {
				said.Type, said.Reason = corev1.EventTypeWarning, "InventoryUnreadable"
			}
			return state.Put(control.NewEvent(s, about, said, now), "")
		},
	})
}
