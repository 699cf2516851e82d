package frame

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/panics"
)

const (
	// maxItems is how many objects one action may change.
	maxItems = 10_000
	// keptItems is how many objects the kept jobs may have together.
	keptItems = 2 * maxItems
	// remembered is how many jobs are kept, and how many may run.
	remembered = 50
	// atOnce is how many objects a job changes at a time.
	atOnce = 8
)

// Progress is how far a job is with one object.
type Progress struct {
	Item
	State string // waiting, doing, done, failed
	Text  string
	Why   failure // why it failed
	Parts []Part  // the steps that it waits for
	Share float64 // the finished share, from 0 to 1, while it runs
	Undo  Undo    // reverts the change; nil: it cannot be reverted, or the undo is running
	back  Undo    // the undo that this job runs for the object
	of    int     // its index in the job that is undone
}

// A failure is why an object was not changed, in one word.
type failure string

const (
	wasGone    failure = "Gone"    // the object was deleted, or another object has its name
	wasRefused failure = "Refused" // the API refused; its text says why
)

func failureOf(err error) failure {
	var away errGone
	var no *APIRefusal
	switch {
	case errors.As(err, &away), RefusedWith(err, http.StatusNotFound):
		return wasGone
	case errors.As(err, &no) && no.Code < 500:
		return wasRefused
	}
	return "Failed"
}

// A Part is a step that an object's change waits for.
type Part struct {
	Name string
	Pill Pill
	Text string
}

// A Job is an action that runs or has ended. It is kept in memory only: its changes are in the
// fleet, and a user can start the rest again. A drain is stored with its node; its job only watches
// it.
type Job struct {
	Worker
	ID, By  string
	Began   time.Time
	Undoes  *Job // the job that this one reverts
	act     *Action
	notify  func()
	cancel  context.CancelFunc
	over    chan struct{} // closed at the end
	mu      sync.Mutex
	Items   []Progress
	Ended   time.Time
	Stopped bool // a user stopped it
}

// Set changes the progress of the i-th object.
func (j *Job) Set(i int, change func(*Progress)) {
	j.Update(i, func(p *Progress) bool { change(p); return true })
}

// Update changes the progress of the i-th object, and updates open pages if it has changed.
func (j *Job) Update(i int, change func(*Progress) (changed bool)) {
	j.mu.Lock()
	changed := change(&j.Items[i])
	j.mu.Unlock()
	if changed {
		j.notify()
	}
}

// IsStopped tells whether a user has stopped the job.
func (j *Job) IsStopped() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.Stopped
}

// Finish ends the i-th object's change; undo reverts it, and may be nil.
func (j *Job) Finish(i int, undo Undo, err error) {
	j.Set(i, func(p *Progress) {
		p.State, p.Text, p.Undo = "done", "", undo
		if err != nil {
			p.State, p.Text, p.Why = "failed", ErrorText(err), failureOf(err)
		}
	})
}

// run changes every object, a few at a time.
func (j *Job) run(ctx context.Context) {
	defer panics.Catch("page job")
	if j.act.All != nil && j.Undoes == nil {
		j.act.All(ctx, j)
		return
	}
	j.Each(ctx, len(j.Items), func(i int) {
		defer panics.CatchThen("page job", func(err error) { j.Finish(i, nil, err) })
		j.Set(i, func(p *Progress) { p.State = "doing" })
		whole, end := WithGrace(ctx)
		defer end()
		undo, err := j.one(whole, i)
		if err != nil {
			undo = nil // nothing has changed
		}
		j.Finish(i, undo, err)
	})
}

// Each calls do n times, a few at a time, until ctx is done.
func (j *Job) Each(ctx context.Context, n int, do func(i int)) {
	places := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		wg.Go(func() {
			defer func() { <-places }()
			defer panics.Catch("page job")
			do(i)
		})
	}
	wg.Wait()
}

func (j *Job) one(ctx context.Context, i int) (Undo, error) {
	if j.Undoes != nil {
		return nil, j.Items[i].back(ctx, &j.Worker)
	}
	o, err := j.Find(j.act.Kind, j.Items[i].Item)
	if err != nil {
		return nil, err
	}
	return j.act.Do(ctx, &j.Worker, o)
}

// WithGrace returns a context that outlives ctx by a while, so that requests already sent to the
// API are answered.
func WithGrace(ctx context.Context) (context.Context, func()) {
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		defer panics.Catch("page job")
		select {
		case <-time.After(Patience):
			cancel()
		case <-whole.Done():
		}
	})
	return whole, func() { stop(); cancel() }
}

// A sum counts a job's objects by state.
type sum struct {
	All, Done, Failed int
	share             float64 // finished objects, with fractions
}

// Percent is the finished share, rounded down.
func (s sum) Percent() int { return int(100 * s.share / float64(max(s.All, 1))) }

func (j *Job) sum() (s sum) {
	for _, p := range j.Items {
		s.All++
		switch p.State {
		case "done":
			s.Done++
			s.share++
		case "failed":
			s.Failed++
			s.share++
		default:
			s.share += p.Share
		}
	}
	return s
}

// takeBack claims everything that can be undone, each object once.
func (j *Job) takeBack() []Progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	items := j.undoable()
	for _, p := range items {
		j.Items[p.of].Undo = nil
	}
	return items
}

// undoable returns the finished changes that can be undone. The caller holds mu.
func (j *Job) undoable() (items []Progress) {
	if j.Ended.IsZero() {
		return nil
	}
	for i, p := range j.Items {
		if p.Undo != nil {
			items = append(items, Progress{Item: p.Item, State: "waiting", back: p.Undo, of: i})
		}
	}
	return items
}

// giveBack makes objects undoable again that this job should have undone but did not, because the
// database did not answer or a user stopped the job.
func (j *Job) giveBack() {
	if j.Undoes == nil {
		return
	}
	j.mu.Lock()
	items := slices.Clone(j.Items)
	j.mu.Unlock()
	j.Undoes.mu.Lock()
	for _, p := range items {
		if p.State != "done" && p.Why != wasGone {
			j.Undoes.Items[p.of].Undo = p.back
		}
	}
	j.Undoes.mu.Unlock()
	j.Undoes.notify()
}

// jobs holds the jobs since the hub started.
type jobs struct {
	ctx  context.Context
	stop context.CancelFunc
	live *live
	wg   sync.WaitGroup

	now   func() time.Time
	began time.Time // when the hub started

	mu   sync.Mutex
	list []*Job // newest last
}

func newJobs(l *live, now func() time.Time) *jobs {
	ctx, stop := context.WithCancel(context.Background())
	return &jobs{ctx: ctx, stop: stop, live: l, now: now, began: now()}
}

// Since is when the hub started.
func (js *jobs) Since(now time.Time) *format.Moment { return format.Time(js.began, now) }

// end stops all running jobs and waits for them.
func (js *jobs) end() {
	js.stop()
	js.wg.Wait()
}

// begin starts a job, unless too many are running.
func (js *jobs) begin(j *Job) (ok bool) {
	j.ID, j.Began, j.over = rand.Text()[:12], js.now(), make(chan struct{})
	j.notify = func() { js.live.touch(JobsTopic, JobsTopic+"/"+j.ID) }
	ctx, cancel := context.WithCancel(js.ctx)
	j.cancel = cancel
	js.mu.Lock()
	js.list = append(js.list, j)
	if ok = js.forget(); !ok {
		js.list = js.list[:len(js.list)-1]
	}
	js.mu.Unlock()
	if !ok {
		cancel()
		j.giveBack()
		return false
	}
	js.wg.Go(func() {
		defer panics.Catch("page job")
		defer cancel()
		j.run(ctx)
		j.giveBack()
		j.mu.Lock()
		j.Ended = js.now()
		for i := range j.Items {
			if p := &j.Items[i]; p.State == "waiting" || p.State == "doing" {
				p.State, p.Text = "failed", "not done: it was stopped before"
			}
		}
		j.mu.Unlock()
		close(j.over)
		j.notify()
	})
	return true
}

// forget drops the oldest ended jobs while there are too many jobs or objects; ok tells whether a
// new job fits.
func (js *jobs) forget() (ok bool) {
	extra, items := len(js.list)-remembered, -keptItems
	for _, j := range js.list {
		items += len(j.Items)
	}
	js.list = slices.DeleteFunc(js.list, func(j *Job) bool {
		if extra <= 0 && items <= 0 {
			return false
		}
		select {
		case <-j.over:
			extra--
			items -= len(j.Items)
			return true
		default:
			return false
		}
	})
	return extra <= 0 && items <= 0
}

func (js *jobs) get(id string) *Job {
	js.mu.Lock()
	defer js.mu.Unlock()
	for _, j := range js.list {
		if j.ID == id {
			return j
		}
	}
	return nil
}

// all returns the jobs, newest first.
func (js *jobs) all() []*Job {
	js.mu.Lock()
	defer js.mu.Unlock()
	list := slices.Clone(js.list)
	slices.SortStableFunc(list, func(a, b *Job) int { return cmp.Compare(b.Began.UnixNano(), a.Began.UnixNano()) })
	return list
}

// JobsTopic changes with every job.
const JobsTopic = "actions"
