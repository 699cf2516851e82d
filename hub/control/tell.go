package control

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// show brings the pulses in line with what is remembered now, and returns the
// nodes that have a new desired state.
func (l *Loop) show(log []state.Applied) (nodes []string) {
	for _, a := range log {
		switch a.Key.Kind {
		case state.Nodes:
			if n, ok := a.New.(*corev1.Node); ok && n != nil {
				l.pulses.get(n.Name).silent.Store(state.ReadyOf(n) == corev1.ConditionUnknown)
			}
		case state.Records:
			rec, _ := a.New.(*state.Record)
			if rec == nil {
				l.pulses.m.Delete(a.Key.Name)
				continue
			}
			l.adopt(rec)
			if old, _ := a.Old.(*state.Record); (old == nil || old.Generation != rec.Generation || old.Paused) && !rec.Paused {
				nodes = append(nodes, rec.Name)
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// adopt makes a node's pulse follow its record.
func (l *Loop) adopt(rec *state.Record) {
	p := l.pulses.get(rec.Name)
	if boot := p.boot.Load(); rec.Boot != "" && (boot == nil || *boot != rec.Boot) {
		p.seq.Store(0)
		p.status.Store(0)
		p.pods.Store(0)
		p.boot.Store(&rec.Boot)
		p.mu.Lock()
		p.asked, p.resent = backoff{}, backoff{} // what an earlier boot did not hear says nothing of this one
		p.mu.Unlock()
	}
	p.unmet.Store(rec.Unmet)
	if p.wanted.Swap(rec.Generation) != rec.Generation {
		p.mu.Lock()
		p.resent = backoff{last: l.age(), gap: firstGap}
		p.mu.Unlock()
	}
}

// resend asks the loop to send a node its desired state again.
func (l *Loop) resend(node string) {
	select {
	case l.again <- node:
	default: // the next lease asks again
	}
}

// tell publishes a node's desired state. That the device has it is known from its
// leases alone.
func (l *Loop) tell(s state.Snapshot, node string) {
	rec := s.Record(node)
	if rec == nil || rec.Paused || rec.Generation == 0 || l.Broker == nil {
		return
	}
	d := Desired(s, node)
	d.Generation, d.Hub, d.Time = rec.Generation, s.Salt, l.Now().UTC()
	d.LeaseIntervalSeconds = int32(l.LeaseInterval / time.Second)
	payload, err := json.Marshal(d)
	if err == nil && len(payload) > wire.MaxToDevice {
		err = fmt.Errorf("it is %d bytes, and the limit is %d: use fewer or smaller config maps", len(payload), wire.MaxToDevice)
	}
	if err == nil {
		err = l.Broker.Publish(node, wire.ChannelDesired, payload)
	}
	if err != nil {
		l.Log.Debug("publish desired state", "node", node, "generation", rec.Generation, "err", err)
	}
}

func (l *Loop) requestID() string { return "hub-" + strconv.FormatUint(l.ids.Add(1), 36) }
