// Package enrolment records which device key may act for which node. Enrolments are part of the
// fleet's records, so a Node and its device's rights change in one transaction.
//
// It also stores the requests of devices that wait for approval, and asks devices to renew
// certificates of a former authority. It checks no token and signs nothing: package access does,
// and calls this package when a device joins.
package enrolment

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// Enrolments gives package access the enrolments in the fleet's records.
type Enrolments struct{ Loop *node.Devices }

// Enrolment returns the enrolment of a node.
func (e Enrolments) Enrolment(node string) (access.Enrolment, bool) {
	rec := e.Loop.Snapshot().Record(node)
	if rec == nil || rec.Key == "" {
		return access.Enrolment{}, false
	}
	return access.Enrolment{
		Node: node, Key: rec.Key, MachineID: rec.MachineID, Site: rec.Site, Labels: rec.Labels, Token: rec.Token,
		At: rec.Enrolled.Time, Expires: rec.Expires.Time,
	}, true
}

// Enrol makes a key the only one of a node. When Enrol returns, the enrolment is durable, sessions
// of other keys are closed, and their messages are refused.
func (e Enrolments) Enrol(ctx context.Context, en access.Enrolment) error {
	_, err := e.Loop.Do(ctx, func(s state.Snapshot, now time.Time) (changes []state.Change, err error) {
		rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: en.Node, CreationTimestamp: metav1.NewTime(now)}}
		if have := s.Record(en.Node); have != nil {
			rec = have.DeepCopy()
		}
		if changes, err = markIssued(s, en); err != nil {
			return nil, err
		}
		if d := s.Dismissal(en.Key); d != nil {
			return nil, fmt.Errorf("%w: the enrolment of its key has just ended: %s", access.ErrRefused, d.Reason)
		}
		if rec.Key != en.Key { // the boot id is of the replaced device
			changes = append(changes, node.Dismiss(s, rec, "join token "+en.Token,
				fmt.Sprintf("node %s is another device now, machine %s", en.Node, en.MachineID), now)...)
			node.Retire(rec)
			node.Replaced(rec)
			rec.MachineID, rec.Conflict = en.MachineID, ""
		}
		rec.Enrolled, rec.Key, rec.Token, rec.Expires = metav1.NewTime(now), en.Key, en.Token, metav1.NewTime(en.Expires)
		rec.Site, rec.Labels = en.Site, en.Labels
		why := fmt.Sprintf("enrol %s on site %s", en.Node, en.Site)
		if n := s.Node(en.Node); n != nil && state.SiteOf(n) != en.Site && en.Site != "" {
			why = fmt.Sprintf("enrol %s on site %s (it was on %s)", en.Node, en.Site, state.SiteOf(n))
		}
		return append(changes, state.Put(rec, why)), nil
	})
	return err
}

// Renewed records the newer certificate of a node's key.
func (e Enrolments) Renewed(ctx context.Context, name, key string, expires time.Time) error {
	_, err := e.Loop.Do(ctx, func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
		rec := s.Record(name)
		if rec == nil || rec.Key != key {
			return nil, fmt.Errorf("%w: node %s was just enrolled for another device", node.ErrStranger, name)
		}
		rec = rec.DeepCopy()
		rec.Expires = metav1.NewTime(expires)
		return []state.Change{state.Put(rec, "")}, nil
	})
	return err
}

// Dismissed returns the dismissal notice for a key whose enrolment has ended.
func (e Enrolments) Dismissed(key string) *wire.Dismissed { return e.Loop.Dismissed(key) }

// metaMoved marks a database whose enrolments are in the records.
const metaMoved = "enrolments-moved"

// Move copies the enrolments of a database of an earlier version into the records. It ends
// enrolments whose Node was deleted.
func Move(ctx context.Context, loop *node.Devices, st *store.Store, log *slog.Logger) error {
	if _, err := st.Meta(ctx, metaMoved); err == nil {
		return nil
	}
	old, err := st.Enrolments(ctx)
	if err != nil {
		return fmt.Errorf("read the enrolments of an earlier version: %w", err)
	}
	_, err = loop.Do(ctx, func(s state.Snapshot, now time.Time) (changes []state.Change, err error) {
		for _, e := range old {
			rec := s.Record(e.Node)
			if rec != nil && rec.Key != "" {
				continue
			}
			with := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: e.Node, CreationTimestamp: metav1.NewTime(now)}}
			if rec != nil {
				with = rec.DeepCopy()
			}
			with.Key, with.Token, with.Expires = e.Key, e.Token, metav1.NewTime(e.Expires)
			if rec == nil {
				changes = append(changes, node.Dismiss(s, with, "", "Node "+e.Node+" was deleted", now)...)
				continue
			}
			changes = append(changes, state.Put(with, ""))
		}
		return changes, nil
	})
	if err != nil {
		return fmt.Errorf("take over the enrolments of an earlier version: %w", err)
	}
	if len(old) > 0 {
		log.Info("took over the enrolments of an earlier version", "devices", len(old))
	}
	return st.SetMeta(ctx, metaMoved, "yes")
}
