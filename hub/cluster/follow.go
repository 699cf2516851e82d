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

// A follower keeps the fleet as the hub that leads has written it, so that a standby can
// take over, and answer, without reading all of it.
type follower struct {
	from interface {
		// Follow returns what has changed since a revision, or all that there is.
		Follow(ctx context.Context, rev uint64) (store.Delta, error)
	}
	current atomic.Pointer[state.Snapshot]
	mended  map[state.Key]state.Change
	began   time.Time
	read    atomic.Int64 // when it was last up to date, since began
	turn    sync.Mutex   // one catches up at a time
}

// newFollower begins with nothing.
func newFollower(id string, from interface {
	Follow(ctx context.Context, rev uint64) (store.Delta, error)
}) *follower {
	f := &follower{from: from, began: time.Now(), mended: map[state.Key]state.Change{}}
	s := state.Empty(id, time.Now())
	f.current.Store(&s)
	return f
}

// Snapshot is the fleet as of the revision that was followed last.
func (f *follower) Snapshot() state.Snapshot { return *f.current.Load() }

// Age is for how long it may not have been up to date.
func (f *follower) Age() time.Duration {
	return time.Since(f.began) - time.Duration(f.read.Load())
}

// catchUp returns when the follower has all that was committed when it was called.
func (f *follower) catchUp(ctx context.Context) error {
	asked := time.Since(f.began)
	f.turn.Lock()
	defer f.turn.Unlock()
	if f.read.Load() > int64(asked) { // for somebody else
		return nil
	}
	return f.followOne(ctx)
}

// follow catches up.
func (f *follower) follow(ctx context.Context) error {
	f.turn.Lock()
	defer f.turn.Unlock()
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
		clear(f.mended)
	}
	var decoder snapshot.Decoder
	var objects []state.Object
	for _, r := range d.Rows {
		if err := ctx.Err(); err != nil { // of a whole fleet, this is most of the work
			return err
		}
		key := state.Key{Kind: state.Kind(r.Kind), Namespace: r.Namespace, Name: r.Name}
		delete(f.mended, key)
		if r.Object == nil {
			continue
		}
		o, mended, err := decoder.Decode(r)
		if err != nil {
			return fmt.Errorf("follow the hub that leads: %w", err)
		}
		if mended != nil {
			f.mended[key] = *mended
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

// take is what is followed, as a hub begins with that leads from now on.
func (f *follower) take(now time.Time) (s state.Snapshot, mended []state.Change) {
	was := f.Snapshot()
	var objects []state.Object
	for _, k := range state.Kinds() {
		for o := range was.All(k, "") {
			objects = append(objects, o)
		}
	}
	for _, c := range f.mended {
		mended = append(mended, c)
	}
	return state.Load(state.Empty(was.Salt, now), objects, was.Revision), mended
}
