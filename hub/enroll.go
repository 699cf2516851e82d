package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
)

// enroller tells the fleet of devices that are about to become nodes.
type enroller struct{ loop *control.Loop }

func (e enroller) Enroll(ctx context.Context, en access.Enrolment) error {
	_, err := e.loop.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: en.Node, CreationTimestamp: metav1.NewTime(now)}}
		if have := s.Record(en.Node); have != nil {
			rec = have.DeepCopy()
		}
		rec.Enrolled, rec.Site, rec.Labels = metav1.NewTime(now), en.Site, en.Labels
		if en.Replaces { // new hardware: the old boot has no say any more
			if rec.Boot != "" && !slices.Contains(rec.PastBoots, rec.Boot) {
				rec.PastBoots = append(rec.PastBoots, rec.Boot)
			}
			rec.Boot, rec.MachineID, rec.Conflict = "", en.MachineID, ""
		}
		why := fmt.Sprintf("enrol %s on site %s", en.Node, en.Site)
		if n := s.Node(en.Node); n != nil && state.SiteOf(n) != en.Site && en.Site != "" {
			why = fmt.Sprintf("enrol %s on site %s (it was on %s)", en.Node, en.Site, state.SiteOf(n))
		}
		return []state.Change{state.Put(rec, why)}, nil
	})
	return err
}

// expelDeleted takes the rights of devices whose Node was deleted: the enrolment,
// so that the certificate is not let in again, and the link.
func expelDeleted(ctx context.Context, loop *control.Loop, guard *access.Guard, b *broker.Broker, log *slog.Logger) error {
	at := loop.Snapshot().Revision
	for {
		changes, more, err := loop.Since(at)
		if err != nil { // fell behind: whoever has an enrolment and no record is expelled at the next deletion
			at = loop.Snapshot().Revision
			continue
		}
		for _, a := range changes {
			at = a.Rev
			if a.Key.Kind != state.Nodes || a.New != nil {
				continue
			}
			if err := guard.Expel(ctx, a.Key.Name); err != nil {
				log.Error("take away the enrolment of a deleted node", "node", a.Key.Name, "err", err)
			}
			b.Disconnect(a.Key.Name)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		}
	}
}
