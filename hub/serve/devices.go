package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/node"
	"flotilla.dev/shared/wire"
)

// devices adapts the control loop for the broker: it authorizes devices, and turns errors into
// acknowledgements.
type devices struct {
	*node.Devices
	ask *ask.Client
	log *slog.Logger

	dismissals dismissals
}

// caller converts a peer for the loop.
func caller(p broker.Peer) node.Caller {
	return node.Caller{Node: p.Node, Key: p.Key, Machine: p.Machine, Boot: p.Boot}
}

// Connect accepts a device that is enrolled for its node. If the enrolment has ended, it returns a
// Dismissal.
func (d *devices) Connect(p broker.Peer) error {
	err := d.Devices.Connect(caller(p))
	if !errors.Is(err, node.ErrStranger) || p.Key == "" {
		return err
	}
	notice := d.Devices.Dismissed(p.Key)
	if notice == nil {
		return err
	}
	payload, err := json.Marshal(map[string]any{"dismissed": notice})
	if err != nil {
		return err
	}
	if suppressed, ok := d.dismissals.shouldLog(p.Node, time.Now()); ok {
		d.log.Info("sent a device its dismissal", "node", p.Node, "addr", p.Addr, "by", notice.By, "why",
			notice.Reason, "suppressed", suppressed)
	}
	return &broker.Dismissal{Payload: payload}
}

func (d *devices) Speaks(p broker.Peer) bool { return d.Devices.Speaks(caller(p)) }

func (d *devices) Connected(p broker.Peer) {
	d.Devices.LogDevice(slog.LevelInfo, p.Node, "connected", "addr", p.Addr)
	d.Devices.Connected(p.Node)
}

func (d *devices) Disconnected(p broker.Peer) {
	d.Devices.LogDevice(slog.LevelInfo, p.Node, "disconnected", "addr", p.Addr)
	d.Devices.Disconnected(p.Node)
	d.ask.Disconnected(p.Node)
}

func (d *devices) Lease(p broker.Peer, l wire.Lease) { d.Devices.Lease(caller(p), l) }

func (d *devices) Status(ctx context.Context, p broker.Peer, s wire.Status) error {
	if p.Machine != "" && s.MachineID != p.Machine {
		d.Devices.Offence(p.Node, fmt.Sprintf("status of machine %q over the link of machine %s", s.MachineID, p.Machine))
		return nil
	}
	return d.acknowledge(p.Node, d.Devices.Status(ctx, caller(p), s))
}

func (d *devices) Pods(ctx context.Context, p broker.Peer, pods wire.Pods) error {
	return d.acknowledge(p.Node, d.Devices.Pods(ctx, caller(p), pods))
}

func (d *devices) Left(ctx context.Context, p broker.Peer, pods wire.Pods) error {
	return d.acknowledge(p.Node, d.Devices.RemainingPods(ctx, caller(p), pods))
}

func (d *devices) Event(ctx context.Context, p broker.Peer, e wire.Event) error {
	return d.acknowledge(p.Node, d.Devices.Event(ctx, caller(p), e))
}

func (d *devices) Presence(p broker.Peer, state wire.Presence) { d.Devices.Presence(caller(p), state) }

func (d *devices) Reply(p broker.Peer, id string, r wire.Reply) {
	if d.Devices.Speaks(caller(p)) {
		d.ask.Reply(p.Node, id, r)
	}
}

// acknowledge returns nil for errors that a repeated message would cause again, so that the broker
// acknowledges the message.
func (d *devices) acknowledge(name string, err error) error {
	switch {
	case errors.Is(err, node.ErrStale):
		d.log.Debug("ignored", "node", name, "err", err)
		return nil
	case errors.Is(err, node.ErrConflict), errors.Is(err, node.ErrRefused), errors.Is(err, node.ErrStranger):
		d.Devices.LogDevice(slog.LevelWarn, name, "refused", "err", err)
		return nil
	case errors.Is(err, control.ErrStopped):
		return fmt.Errorf("%w: %w", broker.ErrStopping, err)
	case errors.Is(err, control.ErrUnavailable), errors.Is(err, control.ErrFull):
		return fmt.Errorf("%w: %w", broker.ErrLater, err)
	}
	return err
}

// dismissalLines is the shortest time between two log lines about a dismissed device. An agent that
// ignores its dismissal reconnects every few seconds.
const dismissalLines = time.Minute

// dismissals are the devices whose dismissal was logged recently. Only devices with a certificate
// of this hub have an entry, so there are few.
type dismissals struct {
	mu sync.Mutex
	by map[string]*dismissal // by node
}

type dismissal struct {
	at         time.Time // time of the last line
	suppressed int       // lines suppressed since then
}

// shouldLog tells whether to write a line, and how many were suppressed before it.
func (f *dismissals) shouldLog(node string, now time.Time) (suppressed int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.by[node]
	if last != nil && now.Sub(last.at) < dismissalLines {
		last.suppressed++
		return 0, false
	}
	if last != nil {
		suppressed = last.suppressed
	}
	maps.DeleteFunc(f.by, func(_ string, l *dismissal) bool { return now.Sub(l.at) >= 10*dismissalLines })
	if f.by == nil {
		f.by = map[string]*dismissal{}
	}
	f.by[node] = &dismissal{at: now}
	return suppressed, true
}
