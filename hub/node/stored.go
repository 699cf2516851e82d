package node

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
)

// learnStored handles a new device's report of the desired state that it has stored. If this hub
// never made that state, for example after the loss of its database, the device keeps the state and
// is paused. A device of the development listener whose Node was deleted gets the next generation.
func (d *Devices) learnStored(node string, p *liveness, stored int64) {
	d.updateRecord(node, func() {
		p.storedUnknown.Store(true)
	}, func(_ state.Snapshot, rec *state.Record, n *corev1.Node) []state.Change {
		if !rec.StoredUnknown {
			return nil
		}
		rec.StoredUnknown = false
		if stored <= d.formerGenerations[node] {
			rec.Generation = max(rec.Generation, stored)
		}
		delete(d.formerGenerations, node)
		if stored > rec.Generation {
			return []state.Change{pause(rec, n, stored)}
		}
		return []state.Change{{Object: rec}}
	})
}

// leaseIntervalStored handles the report that a device has stored its current desired state. From
// now on only the lease interval of that state holds.
func (d *Devices) leaseIntervalStored(node string, p *liveness, stored int64) {
	d.updateRecord(node, func() {
		p.leaseIntervalPending.Store(true)
	}, func(s state.Snapshot, rec *state.Record, _ *corev1.Node) []state.Change {
		if rec.Generation != stored {
			return nil // a newer generation exists, and the device will report that
		}
		rec.LeaseSeconds = seconds(state.WantedLease(s, node, d.LeaseInterval))
		return []state.Change{{Object: rec}}
	})
}

// storedIsNewer handles the report of a desired state that is newer than any of this hub's, for
// example after a restore from a backup. The hub publishes nothing until an administrator resumes.
// If the hub had a record of the device's stored state, the hub's whole machine was reset to a
// snapshot. Then the same holds for every device.
func (d *Devices) storedIsNewer(node string, stored int64) {
	p := d.nodes.get(node)
	p.mu.Lock()
	ask := p.resendBackoff.due(d.Age())
	p.mu.Unlock()
	if !ask {
		return
	}
	d.updateRecord(node, func() {}, func(s state.Snapshot, rec *state.Record, n *corev1.Node) (changes []state.Change) {
		if rec.Paused || stored <= rec.Generation {
			return nil
		}
		if !rec.StoredUnknown {
			changes = ForgetStored(s, node)
		}
		return append(changes, pause(rec, n, stored))
	})
}

// ForgetStored returns the changes that mark the stored state of all devices but one ("": of all)
// as unknown until they report it. After a database was reset, a generation could otherwise get
// other content.
func ForgetStored(s state.Snapshot, but string) (changes []state.Change) {
	for rec := range state.Each[*state.Record](s, state.Records, "") {
		if !rec.StoredUnknown && rec.Name != but {
			rec = rec.DeepCopy()
			rec.StoredUnknown = true
			changes = append(changes, state.Put(rec, ""))
		}
	}
	return changes
}

// pause returns the change that pauses publishing to a device.
func pause(rec *state.Record, n *corev1.Node, stored int64) state.Change {
	rec.Paused, rec.Stored = true, stored
	return state.Change{
		Object: rec, About: n, Warn: true, Reason: "DesiredStatePaused",
		Why: fmt.Sprintf("node %s has stored desired state %d, newer than this hub's %d, as after a restore: nothing is "+
			"sent to it until `flotilla-hub resume`", rec.Name, stored, rec.Generation),
	}
}

// updateRecord changes a node's record because of a lease. It runs on a goroutine, because leases
// do not wait.
func (d *Devices) updateRecord(node string, failed func(),
	change func(s state.Snapshot, rec *state.Record, n *corev1.Node) []state.Change) {
	go func() {
		defer panics.CatchThen("lease", func(error) { failed() })
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := d.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			rec, n := s.Record(node), s.Node(node)
			if rec == nil || n == nil {
				return nil, nil
			}
			return change(s, rec.DeepCopy(), n), nil
		})
		if err != nil {
			d.Log.Debug("note what a device has stored", "node", node, "err", err)
			failed()
		}
	}()
}

// Resume allows publishing to paused devices, and returns their number.
func (d *Devices) Resume(ctx context.Context) (int, error) {
	count := 0
	_, err := d.Do(ctx, func(s state.Snapshot, now time.Time) (changes []state.Change, err error) {
		count = 0
		for rec := range state.Each[*state.Record](s, state.Records, "") {
			if rec.Paused {
				count++
				rec = rec.DeepCopy()
				rec.Generation, rec.Digest, rec.Paused, rec.Stored = rec.Stored+1, "", false, 0
				firmwareResumed(rec, now)
				changes = append(changes, state.Put(rec, "resume "+rec.Name))
			}
		}
		return changes, nil
	})
	return count, err
}
