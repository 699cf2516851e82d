package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"flotilla.dev/hub/state"
)

// A storeOutage is a time in which the store accepts no commit. The loop tries once a second and
// logs once a minute; news waits for the next try.
type storeOutage struct {
	since      time.Time // zero: the store works
	until      time.Time // no try before this moment
	lastLogged time.Time // time of the last log line
	tries      int
	commits    uint64 // value of Loop.commits at the newest failure
}

const (
	// retry is how long the loop waits after a failed commit.
	retry = time.Second
	// logInterval is the time between two log lines of one outage.
	logInterval = time.Minute
	// maxUnseenNews is how many changes of news are stored for the deciders. The oldest changes are
	// dropped; the deciders are asked about everything anyway, and then lack only previous
	// versions.
	maxUnseenNews = 10_000
)

// noteResult counts a pass and logs the begin and end of an outage. A pass without a commit does
// not show whether the store works.
func (l *Loop) noteResult(err error, now time.Time) {
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
			l.Log.Info("the store accepts changes again", "after", now.Sub(h.since).Round(time.Second), "tries", h.tries)
		}
		h.since, h.tries = time.Time{}, 0
	}
}

// commitNewsOnly commits news without the deciders' plans, after a commit of both has failed: a
// plan without space must not prevent users from deleting objects. If this commit fails too, it
// commits only the news without additions.
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

// commitNews commits the news and shows it.
func (l *Loop) commitNews(ctx context.Context, s state.Snapshot, jobs []*job, now time.Time) error {
	s, log := l.evaluateAll(s, jobs, now, false)
	if len(log) == 0 {
		return nil
	}
	s, recorded := state.Apply(s, events(s, log, now))
	log = append(log, recorded...)
	sizes, err := l.remember(ctx, log, s.Revision)
	if err != nil {
		return err
	}
	l.unseen = append(l.unseen, log...) // deciders see the news in the next pass that commits
	l.unseen = slices.Clone(l.unseen[max(0, len(l.unseen)-maxUnseenNews):])
	measureDisk(log, jobs, sizes)
	l.carryOut(s, log, now)
	return nil
}

// needsSpace tells whether a change adds an object. Events and incidents do not count, because the
// store drops them when the disk is full.
func needsSpace(a state.Applied) bool {
	row := a.Key.Kind.Row()
	return a.Old == nil && a.New != nil && (row == nil || !row.Expendable)
}

// A storeSpace tells whether the store accepts new objects. While it does not, passes leave
// additions out, and a pass tries them from time to time.
type storeSpace struct {
	full       bool
	err        error         // the last refusal
	lastLogged time.Time     // time of the last log line
	next       time.Time     // when to try additions again
	wait       time.Duration // pause between the last try and next
}

const minSpaceWait, maxSpaceWait = time.Second, 10 * time.Second

// skipsAdditions tells whether a pass leaves additions out.
func (r *storeSpace) skipsAdditions(now time.Time) bool { return r.full && now.Before(r.next) }

// out tells whether a full disk is the cause. Another cause is one object, such as a row that is
// too large.
func (r *storeSpace) out() bool { return r.full && errors.Is(r.err, ErrFull) }

// failed stores that the store has refused additions.
func (r *storeSpace) failed(err error, now time.Time) {
	r.full, r.err, r.wait = true, err, min(max(2*r.wait, minSpaceWait), maxSpaceWait)
	r.next = now.Add(r.wait)
}

// noteNoSpace notes the result of a pass without additions. The store itself logs a full disk.
func (l *Loop) noteNoSpace(err error, now time.Time) {
	r := &l.space
	switch {
	case r.out():
	case err != nil: // the commit failed without additions too
		l.space = storeSpace{}
	case r.lastLogged.IsZero() || now.Sub(r.lastLogged) >= logInterval:
		l.Log.Error("new objects cannot be stored and are tried again; changes and deletions go on", "err", r.err, "every",
			maxSpaceWait)
		r.lastLogged = now
	}
}

// A SpaceProber is a Store that can test whether it has space again.
type SpaceProber interface {
	Room(ctx context.Context) bool
}

// hasSpace tells whether the store accepts new objects again. A successful pass does not show that,
// because it may have added nothing.
func (l *Loop) hasSpace(ctx context.Context) bool {
	r, ok := l.Store.(SpaceProber)
	return !ok || !l.space.out() || r.Room(ctx)
}
