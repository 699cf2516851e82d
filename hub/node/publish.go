package node

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// Shown updates the nodes' livenesses from the new snapshot, and publishes new desired states.
func (d *Devices) Shown(s state.Snapshot, log []state.Applied) {
	for _, node := range d.nodesToPublish(s, log) {
		d.publish(s, node)
	}
	d.desired.forget()
}

// nodesToPublish returns the nodes that have a new desired state.
func (d *Devices) nodesToPublish(s state.Snapshot, log []state.Applied) (nodes []string) {
	for _, a := range log {
		switch a.Key.Kind {
		case state.Nodes:
			if n, ok := a.New.(*corev1.Node); ok && n != nil {
				p, silent := d.nodes.get(n.Name), state.ReadyOf(n) == corev1.ConditionUnknown
				if p.silent.Swap(silent) && !silent {
					p.podsStale.Store(true)
				}
				if old, _ := a.Old.(*corev1.Node); a.Change.By != "" && old != nil && !fleet.SameStatus(old.Status, n.Status) {
					p.statusOverwritten.Store(true) // another writer has overwritten the device's status
				}
			}
		case state.Pods:
			old, _ := a.Old.(*corev1.Pod)
			p, _ := a.New.(*corev1.Pod)
			if a.Change.By != "" && old != nil && p != nil && overwritten(old, p) {
				if l := d.nodes.find(p.Spec.NodeName); l != nil {
					l.podsStale.Store(true)
				}
			}
		case state.Records:
			rec, _ := a.New.(*state.Record)
			old, _ := a.Old.(*state.Record)
			if rec == nil {
				d.nodes.m.Delete(a.Key.Name)
				if old != nil && old.Key == "" {
					d.formerGenerations[a.Key.Name] = old.Generation
				}
			} else {
				d.adoptRecord(rec)
				d.nodes.get(rec.Name).leaseIntervalPending.Store(
					seconds(state.WantedLease(s, rec.Name, d.LeaseInterval)) < rec.LeaseSeconds)
			}
			if d.Broker != nil && (rec == nil || old != nil && old.Key != rec.Key) {
				d.Broker.Disconnect(a.Key.Name)
			}
			if rec == nil {
				continue
			}
			if (old == nil || old.Generation != rec.Generation || old.Paused) && !rec.Paused {
				nodes = append(nodes, rec.Name)
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// adoptRecord updates a node's liveness from its record. It copies the values, because records are
// replaced often.
func (d *Devices) adoptRecord(rec *state.Record) {
	p := d.nodes.get(rec.Name)
	if key := p.key.Load(); rec.Key != "" && (key == nil || *key != rec.Key) {
		mine := rec.Key
		p.key.Store(&mine)
	}
	if boot := p.boot.Load(); rec.Boot != "" && (boot == nil || *boot != rec.Boot) {
		p.seq.Store(0)
		p.status.Store(0)
		p.pods.Store(0)
		now := rec.Boot
		p.boot.Store(&now)
		p.mu.Lock()
		p.refreshBackoff, p.resendBackoff = backoff{}, backoff{} // the back-off of the earlier boot does not apply
		p.mu.Unlock()
	}
	p.storedUnknown.Store(rec.StoredUnknown)
	if p.wantedGeneration.Swap(rec.Generation) != rec.Generation {
		p.mu.Lock()
		p.resendBackoff = backoff{last: d.Age(), gap: firstGap}
		p.mu.Unlock()
	}
}

// resend publishes a node's desired state again. If too much is waiting, the next lease triggers it
// again.
func (d *Devices) resend(node string) {
	d.Soon(func(s state.Snapshot) { d.publish(s, node) })
}

// publish publishes a node's desired state. A later lease confirms that the device has stored it.
func (d *Devices) publish(s state.Snapshot, node string) {
	rec := s.Record(node)
	if rec == nil || rec.Paused || rec.Generation == 0 || d.Broker == nil {
		return
	}
	p := d.nodes.get(node)
	if p.oversizedGeneration.Load() == rec.Generation {
		return
	}
	content, err := d.desired.content(s, node, rec.Digest)
	metadata := wire.Desired{Generation: rec.Generation, Hub: s.Salt, Time: d.Now().UTC(),
		LeaseIntervalSeconds: seconds(state.WantedLease(s, node, d.LeaseInterval))}
	parts := make([][]byte, 1)
	if err == nil {
		parts[0], err = frame(content, metadata)
	}
	if err == nil && len(parts[0]) > wire.MaxFromDevice {
		if parts, err = wire.PackDesired(withMetadata(d.desired.wantedOf(s, node, profiles{}), metadata)); err != nil {
			p.oversizedGeneration.Store(rec.Generation)
			d.updateRecord(node, func() {
				p.oversizedGeneration.Store(0)
			}, func(_ state.Snapshot, rec *state.Record, n *corev1.Node) []state.Change {
				return []state.Change{{
					Object: rec, About: n, Warn: true, Reason: "DesiredStateTooLarge",
					Why: fmt.Sprintf("the desired state of node %s is too large, and its device keeps the last one: %v: use fewer or "+
						"smaller config maps and secrets there", node, err),
				}}
			})
			return
		}
	}
	if err == nil {
		err = d.Broker.Publish(node, wire.ChannelDesired, parts...)
	}
	if err != nil {
		d.Log.Debug("publish desired state", "node", node, "generation", rec.Generation, "err", err)
	}
}

// withMetadata returns a desired state with the given metadata.
func withMetadata(d, metadata wire.Desired) wire.Desired {
	d.Generation, d.Hub, d.Time, d.LeaseIntervalSeconds = metadata.Generation, metadata.Hub, metadata.Time,
		metadata.LeaseIntervalSeconds
	return d
}

func seconds(d time.Duration) int32 { return int32(d / time.Second) }

func (d *Devices) requestID() string { return "hub-" + strconv.FormatUint(d.ids.Add(1), 36) }
