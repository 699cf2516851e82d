// Package snapshot reads the fleet from the store: it decodes rows into a state.Snapshot.
//
// It repairs quantities that no machine can have, and refuses rows that it cannot decode. It never
// writes: the caller commits the repairs. Package serve calls it at a start, and package cluster
// for the rows that a standby follows.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/bound"
)

// Limits of a row: those of a request, plus its managed fields.
const (
	maxRowObjects = 8 * bound.MaxObjects
	longRow       = 128 << 10 // bytes; the objects of shorter rows are not counted
)

// A Decoder decodes rows, and shares equal values between objects. It is not safe for concurrent
// use.
type Decoder struct {
	repairer bound.Repairer
	interner state.Interner
}

// Decode returns the object of a row. repaired is not nil if the row had impossible quantities,
// which an older hub or a manual change of the database has stored.
func (d *Decoder) Decode(r store.Row) (o state.Object, repaired *state.Change, err error) {
	if o, err = state.New(state.Kind(r.Kind)); err != nil {
		return nil, nil, fmt.Errorf("%s %s/%s: %w; restore a backup, or delete the row", r.Kind, r.Namespace, r.Name, err)
	}
	if len(r.Object) > longRow && countRow(r.Object, o) > maxRowObjects {
		return nil, nil, fmt.Errorf("%s %s/%s has more than %d objects and lists; restore a "+
			"backup, or delete the row",
			r.Kind, r.Namespace, r.Name, maxRowObjects)
	}
	text, places := r.Object, []string(nil)
	if state.InProto(text) {
		err = bound.Proto(text, o)
	} else {
		text, places = d.repairer.Repair(text, o)
	}
	if err == nil {
		err = state.Decode(text, o)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("decode %s %s/%s: %w; restore a backup, or delete the row", r.Kind, r.Namespace, r.Name,
			err)
	}
	// Otherwise the deletion of the object would leave the row, which would return at every start.
	if o.GetName() != r.Name || o.GetNamespace() != r.Namespace {
		return nil, nil, fmt.Errorf("the row of %s %s/%s holds %s/%s; restore a backup, or delete the row",
			r.Kind, r.Namespace, r.Name, o.GetNamespace(), bound.Text(o.GetName(), 300))
	}
	d.interner.Share(o)
	if n := len(places); n > 0 {
		c := state.Put(o, fmt.Sprintf("%s was stored with %d impossible quantities, which are now 0: %s",
			state.KeyOf(o), n, bound.Text(strings.Join(places[:min(n, 5)], ", "), 500))).Warning("OutOfBounds")
		repaired = &c
	}
	return o, repaired, nil
}

// countRow counts the objects and lists in a row.
func countRow(data []byte, into state.Object) int {
	if state.InProto(data) {
		c, err := bound.CountProto(data, into)
		if err != nil {
			return maxRowObjects + 1
		}
		return c.Objects
	}
	return bound.CountJSON(data).Objects
}

// Load reads the stored fleet, and returns the changes of the objects that it had to repair.
func Load(
	ctx context.Context, st *store.Store, started time.Time,
) (fleet state.Snapshot, repaired []state.Change, err error) {
	id, err := st.HubID(ctx)
	if err != nil {
		return state.Snapshot{}, nil, fmt.Errorf("read the hub's identity: %w", err)
	}
	rev, err := st.Revision(ctx)
	if err != nil {
		return state.Snapshot{}, nil, fmt.Errorf("read the revision: %w", err)
	}
	loading := state.Loading(state.Empty(id, started))
	if repaired, err = decodeAll(ctx, st.Load, loading.Add); err != nil {
		return state.Snapshot{}, nil, fmt.Errorf("read the fleet: %w", err)
	}
	return loading.Loaded(rev), repaired, nil
}

// A Prefetch is the fleet that was read during the check of the database.
type Prefetch struct {
	fleet    state.Snapshot
	repaired []state.Change
	done     bool
}

// Read reads the fleet. It is meant for store.Options.Reads.
func (r *Prefetch) Read(ctx context.Context, st *store.Store) {
	var err error
	r.fleet, r.repaired, err = Load(ctx, st, time.Time{})
	r.done = err == nil
}

// Take returns the fleet at the start of a hub, and the repairs. It returns false if the store has
// changed since the read.
func (r *Prefetch) Take(
	ctx context.Context, st *store.Store, started time.Time,
) (s state.Snapshot, repaired []state.Change, ok bool) {
	rev, err := st.Revision(ctx)
	if !r.done || err != nil || rev != r.fleet.Revision {
		return s, nil, false
	}
	s = r.fleet
	s.Started = started
	return s.ResetSeen(started), r.repaired, true
}

// decodeAll decodes the rows of load on all processors while it reads more rows, and adds the
// objects in order. Decoding takes most of the time of a start.
func decodeAll(
	ctx context.Context, load func(context.Context, func(store.Row) error) error, add func([]state.Object),
) (repaired []state.Change, err error) {
	const together = 256
	type batch struct {
		rows     []store.Row
		text     []byte // a copy, because load reuses the memory of its rows
		objects  []state.Object
		repaired []state.Change
		decoded  chan struct{}
	}
	work, ctx := errgroup.WithContext(ctx)
	processors := runtime.GOMAXPROCS(0)
	todo, ordered := make(chan *batch), make(chan *batch, 4*processors)
	type buffers struct { // the next batch reuses them
		rows []store.Row
		text []byte
	}
	free := make(chan buffers, 2*cap(ordered))
	for range processors {
		work.Go(func() (err error) {
			defer panics.CatchThen("start", func(failed error) { err = failed })
			var d Decoder
			for b := range todo {
				for _, r := range b.rows {
					o, repaired, err := d.Decode(r)
					if err != nil {
						return err
					}
					b.objects = append(b.objects, o)
					if repaired != nil {
						b.repaired = append(b.repaired, *repaired)
					}
				}
				select {
				case free <- buffers{b.rows[:0], b.text[:0]}:
				default:
				}
				b.rows, b.text = nil, nil
				close(b.decoded)
			}
			return nil
		})
	}
	work.Go(func() (err error) {
		defer panics.CatchThen("start", func(failed error) { err = failed })
		for b := range ordered {
			select {
			case <-b.decoded:
				add(b.objects)
				repaired = append(repaired, b.repaired...)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	var now *batch
	hand := func() error {
		for _, to := range []chan *batch{ordered, todo} {
			select {
			case to <- now:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		now = nil
		return nil
	}
	err = load(ctx, func(r store.Row) error {
		if now == nil {
			now = &batch{objects: make([]state.Object, 0, together), decoded: make(chan struct{})}
			select {
			case had := <-free:
				now.rows, now.text = had.rows, had.text
			default:
				now.rows = make([]store.Row, 0, together)
			}
		}
		begin := len(now.text)
		now.text = append(now.text, r.Object...)
		r.Object = slices.Clip(now.text[begin:]) // clipped, so that appending does not overwrite the next row
		if now.rows = append(now.rows, r); len(now.rows) < together {
			return nil
		}
		return hand()
	})
	if err == nil && now != nil {
		err = hand()
	}
	close(todo)
	close(ordered)
	if failed := work.Wait(); failed != nil && (err == nil || !errors.Is(failed, context.Canceled)) {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	return repaired, nil
}
