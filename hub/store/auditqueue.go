package store

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Limits of floods. A change always gets its own record, because it costs a write anyway. Refusals,
// failures, reads, logins and renewals cost the client nothing, so only the first ones of each
// source get their own records. One record counts the following ones. It is written after a minute,
// and in a continuing flood after twice the previous time, up to an hour.
const (
	foldBurst        = 30               // single records of one source before folding
	foldRefill       = 10 * time.Minute // after each interval the source may add one more record
	foldAllBurst     = 300              // single records of all sources together
	foldAllEvery     = time.Minute      // so that 90 days of a flood from all sources stay below maxAuditRows
	foldFirst        = time.Minute
	foldLongest      = time.Hour
	foldSources      = 64              // sources that are folded separately; all others share one fold
	foldSourceRefill = 5 * time.Minute // the shared fold gives one more source its own fold
	foldKnown        = 4096
	auditQueue       = 4096 // records that wait for a write
	auditDelay       = time.Second
)

// folds reports whether the record may be counted in a flood.
func (a *Audit) folds() bool {
	switch a.Verb {
	case "get", "list", "watch", "renew":
		return true
	}
	return a.Code >= 400 || a.Resource == "sessions"
}

// source returns the source of a flood. It includes the user only if the user is authenticated,
// because each made-up name would otherwise get a burst.
func (a *Audit) source() string {
	from := a.from()
	switch a.Via {
	case "password", "join token", "setup link", "":
		return from
	}
	if a.Code == 401 {
		return from
	}
	return from + " " + a.Who
}

func (a *Audit) from() string {
	if a.Origin != "" {
		return a.Origin
	}
	return a.Source
}

// A bucket is a token bucket: burst events at once, then one per interval.
type bucket struct {
	left  float64
	since time.Time
}

func (b *bucket) take(now time.Time, burst int, every time.Duration) bool {
	if b.since.IsZero() {
		b.left = float64(burst)
	} else if d := now.Sub(b.since); d > 0 {
		b.left = min(float64(burst), b.left+float64(d)/float64(every))
	}
	b.since = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// A fold counts the events of one source since its last record.
type fold struct {
	bucket
	common Audit // the fields that all events share
	n      int
	until  time.Time
	began  time.Time     // when the first event was folded
	last   time.Time     // time of the newest record
	wait   time.Duration // how long the fold collects events before it is written
	lost   bool          // the events were lost on a full or slow disk, and are not a flood
}

func (f *fold) add(a Audit, now time.Time) {
	if f.n == 0 {
		f.common, f.began = a, now
		switch quiet := now.Sub(f.until); {
		case f.wait == 0 || quiet > f.wait:
			f.wait = foldFirst
		default:
			f.wait = min(2*f.wait, foldLongest)
		}
	}
	for _, p := range [][2]*string{{&f.common.Who, &a.Who}, {&f.common.Via, &a.Via}, {&f.common.Source, &a.Source},
		{&f.common.Verb, &a.Verb}, {&f.common.Resource, &a.Resource}, {&f.common.Namespace, &a.Namespace},
		{&f.common.Name, &a.Name},
		{&f.common.Message, &a.Message}} {
		if *p[0] != *p[1] {
			*p[0] = ""
		}
	}
	f.common.Code = max(f.common.Code, a.Code)
	f.n, f.until, f.last = f.n+1, now, a.At
}

func (f *fold) due() time.Time { return f.began.Add(f.wait) }

// record returns the record that stands for the folded events, and resets the fold.
func (f *fold) record() Audit {
	a := f.common
	a.Count, a.Until = f.n, f.last
	how := "more like this are counted in this record"
	if f.lost {
		how = "were lost: the disk was full or too slow"
	}
	a.Message = strings.TrimSuffix(fmt.Sprintf("%d %s: %s", f.n, how, f.common.Message), ": ")
	f.n = 0
	return a
}

// A queued record waits for a write.
type queued struct {
	Audit
	written bool
}

// An auditor is the queue of audit records. The next transaction writes them (see txLocked), after
// at most auditDelay.
type auditor struct {
	mu         sync.Mutex
	waiting    []*queued
	all        bucket
	newSources bucket
	folds      map[string]*fold
	swept      time.Time // when sources without folded events were last removed
	others     fold
	lost       fold // records that could not be written
	timer      *time.Timer
}

// put queues a record. It returns nil if the record was folded.
func (q *auditor) put(a Audit) *queued {
	origin := a.source()
	a = a.bounded()
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now() // the machine's time, because a record's time is the hub's and may differ
	if a.folds() {
		f := q.foldOf(origin, now)
		if f == &q.others || !f.bucket.take(now, foldBurst, foldRefill) || !q.all.take(now, foldAllBurst, foldAllEvery) {
			if f.n == 0 && (q.folding() >= foldSources || !q.newSources.take(now, foldSources, foldSourceRefill)) {
				f = &q.others
			}
			f.add(a, now)
			return nil
		}
	}
	if len(q.waiting) >= auditQueue {
		q.lose(a, now)
		return nil
	}
	e := &queued{Audit: a}
	q.waiting = append(q.waiting, e)
	return e
}

// foldOf returns the fold of a source. If there are too many folds, it removes those without recent
// events.
func (q *auditor) foldOf(origin string, now time.Time) *fold {
	if f := q.folds[origin]; f != nil {
		return f
	}
	if len(q.folds) >= foldKnown {
		if now.Sub(q.swept) < foldFirst {
			return &q.others
		}
		q.swept = now
		for k, f := range q.folds {
			if f.n == 0 && now.Sub(f.since) > foldLongest {
				delete(q.folds, k)
			}
		}
		if len(q.folds) >= foldKnown {
			return &q.others
		}
	}
	if q.folds == nil {
		q.folds = map[string]*fold{}
	}
	f := &fold{}
	q.folds[origin] = f
	return f
}

func (q *auditor) each(yield func(*fold)) {
	for _, f := range q.folds {
		yield(f)
	}
	yield(&q.others)
	yield(&q.lost)
}

// folding returns the number of sources with folded events.
func (q *auditor) folding() (n int) {
	q.each(func(f *fold) {
		if f.n > 0 {
			n++
		}
	})
	return n
}

// lose counts a record that cannot be written.
func (q *auditor) lose(a Audit, now time.Time) {
	q.lost.lost = true
	q.lost.add(a, now)
}

// gather returns the records to write now. If all is set, they include folds that are not yet due.
func (q *auditor) gather(now time.Time, all bool) []*queued {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.each(func(f *fold) {
		if f.n > 0 && (all || !f.due().After(now)) {
			q.waiting = append(q.waiting, &queued{Audit: f.record().bounded()})
		}
	})
	return q.waiting[:len(q.waiting):len(q.waiting)]
}

// written removes rows from the queue. If ok is false, the rows were not written and count as lost.
func (q *auditor) written(rows []*queued, ok bool, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range rows {
		if r.written = ok; !ok {
			q.lose(r.Audit, now)
		}
	}
	q.waiting = append([]*queued(nil), q.waiting[len(rows):]...)
}

// isDue reports whether a record is due.
func (q *auditor) isDue() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	at := q.next(now)
	return len(q.waiting) > 0 || !at.IsZero() && !at.After(now)
}

// stop stops the timer, and reports whether records are left to write.
func (q *auditor) stop() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer != nil {
		q.timer.Stop()
	}
	return len(q.waiting) > 0 || q.folding() > 0
}

// next returns when the next write is due; zero: never.
func (q *auditor) next(now time.Time) time.Time {
	if len(q.waiting) > 0 {
		return now.Add(auditDelay)
	}
	var first time.Time
	q.each(func(f *fold) {
		if f.n > 0 && (first.IsZero() || f.due().Before(first)) {
			first = f.due()
		}
	})
	return first
}
