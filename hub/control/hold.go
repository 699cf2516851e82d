package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"flotilla.dev/hub/state"
)

// A storeOutage is a time in which the store remembers nothing: one try a second, whatever
// comes, and one line of log a minute. News waits for the next try.
type storeOutage struct {
	since      time.Time // zero: it remembers
	until      time.Time // no try before
	lastLogged time.Time // when the log last said so
	tries      int
	commits    uint64 // that had been carried out by the newest failure
}

const (
	// retry is how long to wait after a plan could not be remembered.
	retry = time.Second
	// logInterval is how often the log says that it still cannot be.
	logInterval = time.Minute
	// maxUnseenNews is how many changes of news are kept for the deciders, which are asked about everything
	// then: these only tell what was before.
	maxUnseenNews = 10_000
)

// note counts a pass and says what an operator must know. A pass that had nothing to
// remember tells nothing of the store.
func (l *Loop) note(err error, now time.Time) {
	h := &l.outage
	switch {
	case err != nil:
		if h.since.IsZero() {
			h.since = now
		}
		h.tries++
		h.until, h.commits = now.Add(retry), l.commits.Load()
		if h.lastLogged.IsZero() || now.Sub(h.lastLogged) >= logInterval {
			l.Log.Error("pass failed, will try again", "err", err, "every", retry, "for", now.Sub(h.since).Round(time.Second),
				"tries", h.tries)
			h.lastLogged = now
		}
	case !h.since.IsZero() && l.commits.Load() > h.commits:
		if !h.lastLogged.Before(h.since) {
			l.Log.Info("what is decided is remembered again", "after", now.Sub(h.since).Round(time.Second), "tries", h.tries)
		}
		h.since, h.tries = time.Time{}, 0
	}
}

// commitNewsOnly remembers what people and devices said, without what the deciders would
// make of it, after all of it together could not be remembered: a plan for which
// there is no room must not keep anybody from making room. If that cannot be
// remembered either, what adds nothing is tried without what does.
func (l *Loop) commitNewsOnly(ctx context.Context, s state.Snapshot, jobs []*job, now time.Time, cause error) {
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(j *job) bool { return j.err != nil })
	if err := l.commitNews(ctx, s, jobs, now); err == nil {
		return
	}
	adding := func(j *job) bool { return slices.ContainsFunc(j.done, needsSpace) }
	for _, j := range jobs {
		if adding(j) {
			j.err = cause
		}
	}
	rest := slices.DeleteFunc(slices.Clone(jobs), adding)
	if len(rest) == len(jobs) || l.commitNews(ctx, s, rest, now) != nil {
		for _, j := range rest {
			if len(j.done) > 0 {
				j.err = cause
			}
		}
	}
}

// commitNews carries out what news says of its own.
func (l *Loop) commitNews(ctx context.Context, s state.Snapshot, jobs []*job, now time.Time) error {
	s, log := l.evaluateAll(s, jobs, now, false)
	if len(log) == 0 {
		return nil
	}
	s, told := state.Apply(s, events(s, log, now))
	log = append(log, told...)
	sizes, err := l.remember(ctx, log, s.Revision)
	if err != nil {
		return err
	}
	l.unseen = append(l.unseen, log...) // the deciders hear of it in the first pass that can be remembered
	l.unseen = slices.Clone(l.unseen[max(0, len(l.unseen)-maxUnseenNews):])
	measureDisk(log, jobs, sizes)
	l.carryOut(s, log, now)
	return nil
}

// needsSpace tells whether a change needs room that was not taken before. Events and incidents do not
// count: the store leaves them out on a full disk.
func needsSpace(a state.Applied) bool {
	row := a.Key.Kind.Row()
	return a.Old == nil && a.New != nil && (row == nil || !row.Expendable)
}

// A storeSpace is what the loop knows of whether the store takes new objects. While it does not,
// passes are made without what would add any; from time to time one is tried with it.
type storeSpace struct {
	full       bool
	err        error         // why
	lastLogged time.Time     // when the log was told last
	next       time.Time     // when to try again
	wait       time.Duration // until then, from the last try
}

const leastRoomWait, mostRoomWait = time.Second, 10 * time.Second

// skipsAdditions tells whether a pass is to be made without what adds an object.
func (r *storeSpace) skipsAdditions(now time.Time) bool { return r.full && now.Before(r.next) }

// out tells whether it is for the disk that new objects are not taken: else it may be one of them,
// such as a row that is too large.
func (r *storeSpace) out() bool { return r.full && errors.Is(r.err, ErrFull) }

// failed notes that the store has not taken what was to be added.
func (r *storeSpace) failed(err error, now time.Time) {
	r.full, r.err, r.wait = true, err, min(max(2*r.wait, leastRoomWait), mostRoomWait)
	r.next = now.Add(r.wait)
}

// noteNoSpace notes how the same pass went without what was to be added. Of a full disk the store
// tells.
func (l *Loop) noteNoSpace(err error, now time.Time) {
	r := &l.space
	switch {
	case r.out():
	case err != nil: // it was not for that
		l.space = storeSpace{}
	case r.lastLogged.IsZero() || now.Sub(r.lastLogged) >= logInterval:
		l.Log.Error("what the hub would add is not remembered, and tried again; all else goes on", "err", r.err, "every",
			mostRoomWait)
		r.lastLogged = now
	}
}

// A SpaceProber is a Store that tells by itself whether it has room again, by trying.
type SpaceProber interface {
	Room(ctx context.Context) bool
}

// hasSpace tells whether the store takes new objects again, after a pass that was remembered whole:
// it may have had nothing to add.
func (l *Loop) hasSpace(ctx context.Context) bool {
	r, ok := l.Store.(SpaceProber)
	return !ok || !l.space.out() || r.Room(ctx)
}
