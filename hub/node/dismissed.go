package node

import (
	"context"
	"fmt"
	"sort"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// dismissalAge is how long a dismissal is kept after the expiry of the device's certificate. The
// device can renew the expired certificate for as long, and then receives its dismissal.
const dismissalAge = 90 * 24 * time.Hour

// withTimeout returns a context for work on the goroutine of a connection.
func withTimeout() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 5*time.Second)
}

// Ended returns what follows from the deletion of Nodes: the end of their devices' enrolments and
// reports. It runs in the same transaction, after each piece of news and each plan, so that no
// message of such a device is accepted in between. A record that is newer than the deletion belongs
// to a device that has joined since.
func Ended(s state.Snapshot, log []state.Applied, now time.Time) (changes []state.Change) {
	var ended []*state.Dismissal
	for _, a := range log {
		if a.Key.Kind != state.Nodes || a.New != nil {
			continue
		}
		if r := s.Report(a.Key.Name); r != nil && revision(r) <= a.Rev {
			changes = append(changes, state.Remove(r, ""))
		}
		rec := s.Record(a.Key.Name)
		if rec == nil || revision(rec) > a.Rev {
			continue
		}
		changes = append(changes, state.Remove(rec, ""))
		reason := "Node " + rec.Name + " was deleted"
		if why := a.Change.Why; a.Change.By == "" && why != "" {
			reason += ": " + why
		}
		ended = append(ended, dismissal(rec, a.Change.By, reason, now)...)
	}
	return append(changes, dismiss(s, ended, now)...)
}

// maxDismissals is the number of devices that can still receive a dismissal.
const maxDismissals = 10_000

// dismiss returns the changes that create dismissals, and that remove expired ones and the oldest
// ones above the limit.
func dismiss(s state.Snapshot, ended []*state.Dismissal, now time.Time) (changes []state.Change) {
	if len(ended) == 0 {
		return nil
	}
	var live []*state.Dismissal
	for d := range state.Each[*state.Dismissal](s, state.Dismissals, "") {
		if now.After(d.Until.Time) {
			changes = append(changes, state.Remove(d, ""))
		} else {
			live = append(live, d)
		}
	}
	sort.SliceStable(live, func(i, j int) bool { return live[i].Time.Before(&live[j].Time) })
	for _, d := range live[:min(len(live), max(0, len(live)+len(ended)-maxDismissals))] {
		changes = append(changes, state.Remove(d, ""))
	}
	for _, d := range ended {
		changes = append(changes, state.Put(d, ""))
	}
	return changes
}

func revision(o state.Object) (rev uint64) {
	_, _ = fmt.Sscan(o.GetResourceVersion(), &rev) // 0 if it was never stored
	return rev
}

// Dismiss returns the changes that end a device's right to act for a node and create its dismissal.
// It returns nothing if no device has joined.
func Dismiss(s state.Snapshot, rec *state.Record, by, reason string, now time.Time) []state.Change {
	return dismiss(s, dismissal(rec, by, reason, now), now)
}

// dismissal returns the dismissal of a record's device. It returns nothing if no device has joined.
func dismissal(rec *state.Record, by, reason string, now time.Time) []*state.Dismissal {
	if rec.Key == "" {
		return nil
	}
	until := rec.Expires.Add(dismissalAge)
	if until.Before(now.Add(dismissalAge)) {
		until = now.Add(dismissalAge)
	}
	return []*state.Dismissal{{
		ObjectMeta: metav1.ObjectMeta{Name: rec.Key, CreationTimestamp: metav1.NewTime(now)},
		Node:       rec.Name, Time: metav1.NewTime(now), By: by, Reason: reason, Until: metav1.NewTime(until),
	}}
}

// Retire makes the boot of a record's device a past one, because another device takes its place.
func Retire(rec *state.Record) {
	if rec.Boot == "" {
		return
	}
	rec.PastBoots = append(rec.PastBoots, rec.Boot)
	if extra := len(rec.PastBoots) - keptBoots; extra > 0 {
		rec.PastBoots = rec.PastBoots[extra:]
	}
	rec.Boot = ""
}

// Dismissed returns the dismissal for a key; nil: the key was not dismissed.
func (d *Devices) Dismissed(key string) *wire.Dismissed {
	if d := d.Snapshot().Dismissal(key); d != nil {
		return &wire.Dismissed{Time: d.Time.UTC(), By: d.By, Reason: d.Reason}
	}
	return nil
}

// RemainingPods handles a dismissed device's list of the pods that it still runs. Its other pods
// have stopped. If a Node of that name exists again, RemainingPods does nothing.
func (d *Devices) RemainingPods(ctx context.Context, c Caller, pods wire.Pods) error {
	_, err := d.Do(ctx, func(s state.Snapshot, now time.Time) (changes []state.Change, err error) {
		if d := s.Dismissal(c.Key); d == nil || d.Node != c.Node || s.Node(c.Node) != nil || s.Record(c.Node) != nil {
			return nil, nil
		}
		holds := make(map[string]bool, len(pods.Pods))
		if pods.Parts > 1 {
			return nil, nil // the device reports again when it has fewer pods
		}
		for _, p := range pods.Pods {
			holds[string(p.UID)] = true
		}
		for p := range s.PodsOn(c.Node) {
			if !holds[string(p.UID)] && len(p.Finalizers) == 0 {
				changes = append(changes, state.Remove(p, fmt.Sprintf("pod %s on %s has stopped", state.Display(p), c.Node)))
			}
		}
		return changes, nil
	})
	return err
}
