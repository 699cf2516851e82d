package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/control"
	"flotilla.dev/shared/wire"
)

// A door is the loop as the broker sees it: who may come in, and what becomes of
// what is not worth remembering.
type door struct {
	*control.Loop
	desk *ask.Desk
	log  *slog.Logger
}

func (d *door) Connect(p broker.Peer) error {
	return d.Loop.Connect(p.Node, p.Machine)
}

func (d *door) Connected(p broker.Peer) {
	d.log.Info("connected", "node", p.Node, "addr", p.Addr)
	d.Loop.Connected(p.Node)
}

func (d *door) Disconnected(p broker.Peer) {
	d.log.Info("disconnected", "node", p.Node, "addr", p.Addr)
	d.Loop.Disconnected(p.Node)
	d.desk.Disconnected(p.Node)
}

func (d *door) Status(ctx context.Context, p broker.Peer, s wire.Status) error {
	if p.Machine != "" && s.MachineID != p.Machine {
		d.Loop.Offence(p.Node, fmt.Sprintf("status of machine %q over the link of machine %s", s.MachineID, p.Machine))
		return nil
	}
	return d.worth(p.Node, d.Loop.Status(ctx, p.Node, s))
}

func (d *door) Pods(ctx context.Context, node string, pods wire.Pods) error {
	return d.worth(node, d.Loop.Pods(ctx, node, pods))
}

func (d *door) Event(ctx context.Context, node string, e wire.Event) error {
	return d.worth(node, d.Loop.Event(ctx, node, e))
}

func (d *door) Reply(node, id string, r wire.Reply) { d.desk.Reply(node, id, r) }

// worth turns what will not get better by being sent again into an acknowledgement.
func (d *door) worth(node string, err error) error {
	switch {
	case errors.Is(err, control.ErrStale):
		d.log.Debug("ignored", "node", node, "err", err)
		return nil
	case errors.Is(err, control.ErrConflict), errors.Is(err, control.ErrRefused):
		d.log.Warn("refused", "node", node, "err", err)
		return nil
	case errors.Is(err, control.ErrStopped):
		return fmt.Errorf("%w: %w", broker.ErrStopping, err)
	}
	return err
}
