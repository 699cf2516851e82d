package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/node"
)

// A message that cannot be stored now is repeated later. ErrLater also keeps the broker from
// logging each such message.
func TestMessagesThatCannotBeStored(t *testing.T) {
	d := &devices{log: slog.New(slog.DiscardHandler)}
	other := errors.New("encode nodes/pi-1")
	for err, want := range map[error]error{
		control.ErrUnavailable: broker.ErrLater,
		control.ErrFull:        broker.ErrLater,
		control.ErrStopped:     broker.ErrStopping,
		node.ErrStale:          nil,
		other:                  other,
	} {
		if got := d.acknowledge("pi-1", fmt.Errorf("store 1 change: %w", err)); !errors.Is(got, want) || want == nil &&
			got != nil {
			t.Errorf("acknowledge(%v) = %v, want %v", err, got, want)
		}
	}
}
