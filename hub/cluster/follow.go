package cluster

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/snapshot"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// A follower keeps a copy of the leader's fleet, so that a standby can answer reads, and can take
// over without reading the whole database.
type follower struct {
	from interface {
		// Follow returns the changes since a revision, or the whole fleet.
		Follow(ctx context.Context, rev uint64) (store.Delta, error)
	}
	current  atomic.Pointer[state.Snapshot]
	repaired map[state.Key]state.Change
	began    time.Time
	read     atomic.Int64 // when the copy was last up to date, as time since began
	catching sync.Mutex   // serializes catching up
}

// newFollower returns an empty follower.
func newFollower(id string, from interface {
	Follow(ctx context.Context, rev uint64) (store.Delta, error)
}) *follower {
	f := &follower{from: from, began: time.Now(), repaired: map[state.Key]state.Change{}}
	s := state.Empty(id, time.Now())
	f.current.Store(&s)
	return f
}

// Snapshot returns the fleet of the newest followed revision.
func (f *follower) Snapshot() state.Snapshot { return *f.current.Load() }

// Age returns an upper bound of the copy's age.
func (f *follower) Age() time.Duration {
	return time.Since(f.began) - time.Duration(f.read.Load())
}

// catchUp returns once the copy contains everything that was committed before the call.
func (f *follower) catchUp(ctx context.Context) error {
	asked := time.Since(f.began)
	f.catching.Lock()
	defer f.catching.Unlock()
	if f.read.Load() > int64(asked) { // another call has caught up since
		return nil
	}
	return f.followOne(ctx)
}

// follow reads the newest changes.
func (f *follower) follow(ctx context.Context) error {
	f.catching.Lock()
	defer f.catching.Unlock()
	return f.followOne(ctx)
}

func (f *follower) followOne(ctx context.Context) (err error) {
	s := f.Snapshot()
	began := time.Since(f.began)
	d, err := f.from.Follow(ctx, s.Revision)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			f.read.Store(int64(began))
		}
	}()
	if d.Rev == s.Revision && !d.All {
		return nil
	}
	if d.All {
		s = state.Empty(s.Salt, s.Started)
		clear(f.repaired)
	}
	var decoder snapshot.Decoder
	var objects []state.Object
	for _, r := range d.Rows {
		if err := ctx.Err(); err != nil { // decoding a whole fleet takes long
			return err
		}
		key := state.Key{Kind: state.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}
		delete(f.repaired, key)
		if r.Object == nil {
			continue
		}
		o, repair, err := decoder.Decode(r)
		if err != nil {
			return fmt.Errorf("follow the leader: %w", err)
		}
		if repair != nil {
			f.repaired[key] = *repair
		}
		objects = append(objects, o)
	}
	if d.All {
		s = state.Load(s, objects, d.Rev)
	} else {
		s = s.Follow(objects, d.Gone(), d.Rev)
	}
	f.current.Store(&s)
	return nil
}

// fleet returns the fleet with which this hub begins to lead, and the repairs to store.
func (f *follower) fleet(now time.Time) (s state.Snapshot, repairs []state.Change) {
	was := f.Snapshot()
	var objects []state.Object
	for _, k := range state.Kinds() {
		for o := range was.All(k, "") {
			objects = append(objects, o)
		}
	}
	for _, c := range f.repaired {
		repairs = append(repairs, c)
	}
	return state.Load(state.Empty(was.Salt, now), objects, was.Revision), repairs
}
