package node

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
)

// learnStored hears which desired state a device has stored that has never reported
// before. One that lives by a state that this hub never made, as after the loss of
// its database, goes on living by it. One of the development listener whose Node was
// deleted is no stranger: it gets the next.
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

// leaseIntervalStored hears that a device has stored the desired state that is wanted: from now on
// it lives by its lease interval, and not by a longer one before.
func (d *Devices) leaseIntervalStored(node string, p *liveness, stored int64) {
	d.updateRecord(node, func() {
		p.leaseIntervalPending.Store(true)
	}, func(s state.Snapshot, rec *state.Record, _ *corev1.Node) []state.Change {
		if rec.Generation != stored {
			return nil // there is a newer one, which it says when it has it
		}
		rec.LeaseSeconds = seconds(state.WantedLease(s, node, d.LeaseInterval))
		return []state.Change{{Object: rec}}
	})
}

// storedIsNewer hears that a device has stored a newer desired state than the hub ever
// made, as after a restore from a backup: nothing is told to it until an
// administrator resumes. A hub that knew what the device had stored has been put back as
// a whole, as its machine is to a snapshot, and nothing else says so: then it does not
// know that of any other either.
func (d *Devices) storedIsNewer(node string, stored int64) {
	p := d.nodes.get(node)
	p.mu.Lock()
	ask := p.resent.due(d.Age())
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

// ForgetStored returns the changes by which it is not known of any device but one ("": of any) what it has
// stored, until it says so. That is so where a database is older than what its hub has told: the
// generations of its desired states go on from an earlier one, and would come to those that devices
// have, with something else in them.
func ForgetStored(s state.Snapshot, but string) (unmet []state.Change) {
	for rec := range state.Each[*state.Record](s, state.Records, "") {
		if !rec.StoredUnknown && rec.Name != but {
			rec = rec.DeepCopy()
			rec.StoredUnknown = true
			unmet = append(unmet, state.Put(rec, ""))
		}
	}
	return unmet
}

// pause is the change by which a device is left alone.
func pause(rec *state.Record, n *corev1.Node, stored int64) state.Change {
	rec.Paused, rec.Stored = true, stored
	return state.Change{
		Object: rec, About: n, Warn: true, Reason: "DesiredStatePaused",
		Why: fmt.Sprintf("node %s has stored desired state %d, newer than this hub's %d, as after a restore: nothing is "+
			"sent to it until `flotilla-hub resume`", rec.Name, stored, rec.Generation),
	}
}

// updateRecord changes a node's record by what its lease shows. A lease waits for nobody.
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

// Resume lets the hub publish to devices whose stored desired state is newer than
// its own, and returns how many there were.
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
