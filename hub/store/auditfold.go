package store

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Bounds of floods. What has changed something is always a record of its own: it
// has cost a write already. Refusals, failures, readings, logins and renewals
// cost whoever asks nothing, so of one source so many are kept each by itself,
// and then one record says how many more there were, and from when to when: after
// a minute, and of a flood that goes on after twice as long each time, up to an
// hour.
const (
	foldBurst    = 30               // records of one source before its others are folded
	foldRefill   = 10 * time.Minute // one more after so long
	foldAllBurst = 300              // of all sources together
	foldAllEvery = time.Minute      // ninety days of a flood from everywhere are fewer than maxAuditRows
	foldFirst    = time.Minute
	foldLongest  = time.Hour
	foldSources  = 64              // sources whose floods are told apart; all others are one
	foldApart    = 5 * time.Minute // one more of them after so long: ever new addresses are one flood
	foldKnown    = 4096
	auditQueue   = 4096 // records that wait for the disk
	auditDelay   = time.Second
)

// folds tells whether a record may be left out in a flood.
func (a *Audit) folds() bool {
	switch a.Verb {
	case "get", "list", "watch", "renew":
		return true
	}
	return a.Code >= 400 || a.Resource == "sessions"
}

// source is whom a flood is counted for. Who somebody is counts where it was
// proved: names that are typed would each have a flood of their own.
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

// A bucket lets so many through at once, and one more after every so long.
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

// A fold is what was left out of one source since its last record.
type fold struct {
	bucket
	like  Audit // what all of them have in common
	n     int
	until time.Time
	began time.Time     // when the first was left out
	last  time.Time     // as the records have it
	wait  time.Duration // how long it collects
	lost  bool          // not because of a flood
}

func (f *fold) add(a Audit, now time.Time) {
	if f.n == 0 {
		f.like, f.began = a, now
		switch quiet := now.Sub(f.until); {
		case f.wait == 0 || quiet > f.wait:
			f.wait = foldFirst
		default:
			f.wait = min(2*f.wait, foldLongest)
		}
	}
	for _, p := range [][2]*string{{&f.like.Who, &a.Who}, {&f.like.Via, &a.Via}, {&f.like.Source, &a.Source},
		{&f.like.Verb, &a.Verb}, {&f.like.Resource, &a.Resource}, {&f.like.Namespace, &a.Namespace}, {&f.like.Name, &a.Name},
		{&f.like.Message, &a.Message}} {
		if *p[0] != *p[1] {
			*p[0] = ""
		}
	}
	f.like.Code = max(f.like.Code, a.Code)
	f.n, f.until, f.last = f.n+1, now, a.At
}

func (f *fold) due() time.Time { return f.began.Add(f.wait) }

// record is what stands for what was left out.
func (f *fold) record() Audit {
	a := f.like
	a.Count, a.Until = f.n, f.last
	how := "more like this were not kept one by one"
	if f.lost {
		how = "could not be kept, as the disk was full or too slow"
	}
	a.Message = strings.TrimSuffix(fmt.Sprintf("%d %s: %s", f.n, how, f.like.Message), ": ")
	f.n = 0
	return a
}

// A queued record waits for the disk.
type queued struct {
	Audit
	kept bool
}

// An auditor is the queue of records before the disk. Whoever writes the database
// next takes them along, see txLocked; nobody waits longer than auditDelay.
type auditor struct {
	mu      sync.Mutex
	waiting []*queued
	all     bucket
	apart   bucket
	folds   map[string]*fold
	swept   time.Time // when room for others was looked for
	others  fold
	lost    fold // what could not be kept at all
	timer   *time.Timer
}

// put queues a record; nil: it is folded.
func (q *auditor) put(a Audit) *queued {
	origin := a.source()
	a = a.bounded()
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now() // records may have another time, the hub's
	if a.folds() {
		f := q.foldOf(origin, now)
		if f == &q.others || !f.bucket.take(now, foldBurst, foldRefill) || !q.all.take(now, foldAllBurst, foldAllEvery) {
			if f.n == 0 && (q.folding() >= foldSources || !q.apart.take(now, foldSources, foldApart)) {
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

// foldOf is the fold of a source. What was quiet for long is forgotten to make room.
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

// folding is how many sources have something left out.
func (q *auditor) folding() (n int) {
	q.each(func(f *fold) {
		if f.n > 0 {
			n++
		}
	})
	return n
}

// lose counts what cannot be kept.
func (q *auditor) lose(a Audit, now time.Time) {
	q.lost.lost = true
	q.lost.add(a, now)
}

// gather returns what is to be written now; with all also what is still being folded.
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

// kept takes written records off the queue; those that could not be written are counted.
func (q *auditor) kept(rows []*queued, ok bool, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range rows {
		if r.kept = ok; !ok {
			q.lose(r.Audit, now)
		}
	}
	q.waiting = append([]*queued(nil), q.waiting[len(rows):]...)
}

// waits tells whether something is to be written now.
func (q *auditor) waits() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	at := q.next(now)
	return len(q.waiting) > 0 || !at.IsZero() && !at.After(now)
}

// stop stops the timer, and tells whether something waits.
func (q *auditor) stop() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.timer != nil {
		q.timer.Stop()
	}
	return len(q.waiting) > 0 || q.folding() > 0
}

// next is when something has to be written; zero: nothing waits.
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
