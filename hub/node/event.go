package node

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// Event stores an event of a device. While a device exceeds its rate, its events are dropped. A new
// event replaces only older events of the same device or about the same object.
//
// If the acknowledgement of a stored event is lost, the device sends the event again, and a broker
// may deliver it twice. Event stores such a repetition only once.
func (d *Devices) Event(ctx context.Context, c Caller, e wire.Event) error {
	p, hash := d.nodes.get(c.Node), hashOf(e)
	if hash != 0 && p.lastEventHash.Load() == hash && d.Speaks(c) {
		return nil
	}
	err := d.event(ctx, c.Node, func(s state.Snapshot) error { return speaks(s, c) }, e)
	if err == nil {
		p.lastEventHash.Store(hash)
	}
	return err
}

var eventSeed = maphash.MakeSeed()

// hashOf returns a hash that identifies an event of a node; 0: the event has no time, so equal
// events cannot be distinguished.
func hashOf(e wire.Event) uint64 {
	if e.Time.IsZero() {
		return 0
	}
	var h maphash.Hash
	h.SetSeed(eventSeed)
	for _, part := range []string{e.Boot, e.Time.UTC().Format(time.RFC3339Nano), e.Type, e.Reason, e.Message,
		string(e.PodUID), e.Namespace, e.Pod, e.Container} {
		_, _ = h.WriteString(part)
		_ = h.WriteByte(0)
	}
	return max(h.Sum64(), 1)
}

func (d *Devices) event(ctx context.Context, node string, may func(state.Snapshot) error, e wire.Event) error {
	p := d.nodes.get(node)
	if !p.allows(d.Age()) || !p.eventAllowed(d.Age()) {
		p.deferredMessages.Add(1)
		return nil
	}
	done, err := d.Do(control.FromNode(ctx, node), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		if err := may(s); err != nil {
			return nil, err
		}
		if e.Type != corev1.EventTypeWarning {
			e.Type = corev1.EventTypeNormal
		}
		text := control.EventText{Type: e.Type, Reason: e.Reason, Message: e.Message, Component: "kubelet", Host: node}
		var ref corev1.ObjectReference
		switch p := s.Pod(e.Namespace, e.Pod); {
		case e.Pod == "":
			n := s.Node(node)
			if n == nil {
				return nil, nil
			}
			ref = control.About(n)
		case p == nil || p.UID != e.PodUID || p.Spec.NodeName != node:
			return nil, nil // the event is about a deleted pod, or about another node's pod
		default:
			ref = control.About(p)
			if e.Container != "" {
				ref.FieldPath = fmt.Sprintf("spec.containers{%s}", e.Container)
			}
		}
		return control.AddEvent(s, ref, text, now), nil
	})
	p.charge(done)
	return err
}

// Offence handles a forbidden action of a device. Not all repetitions are logged.
func (d *Devices) Offence(node, what string) {
	if !d.LogDevice(slog.LevelWarn, node, "refused: "+what) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	anyone := func(state.Snapshot) error { return nil } // the broker reports it, so there is no sender to check
	err := d.event(ctx, node, anyone, wire.Event{Type: corev1.EventTypeWarning, Reason: "Refused", Message: what})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		d.Log.Debug("note an offence", "node", node, "err", err)
	}
}

// Presence handles a lost link or an orderly stop. It only logs them. The MQTT will of an earlier
// boot is late, and is ignored.
func (d *Devices) Presence(c Caller, p wire.Presence) {
	node, live := c.Node, d.nodes.find(c.Node)
	if live == nil || !live.speaks(c.Key) {
		return
	}
	if boot := live.boot.Load(); boot == nil || *boot != p.Boot {
		return
	}
	switch p.State {
	case wire.PresenceShutdown:
		d.LogDevice(slog.LevelInfo, node, "device shuts down", "reason", p.Reason)
	default:
		d.LogDevice(slog.LevelInfo, node, "link lost")
	}
}
