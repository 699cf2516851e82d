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
	// maxItems is how many things one action is done to at most.
	maxItems = 10_000
	// keptItems is how many things the actions that are kept were done to, together.
	keptItems = 2 * maxItems
	// remembered is how many actions are kept to look at, and how many can be going on.
	remembered = 50
	// atOnce is how many of its things an action does at a time.
	atOnce = 8
)

// Progress is how far an action is with one thing.
type Progress struct {
	Item
	State string // waiting, doing, done, failed
	Text  string
	Why   failure // of one that has failed
	Parts []Part  // what it waits for
	Share float64 // of it that is done, from 0 to 1, while it is being done
	Undo  Undo    // takes back what was done; nil: nothing does, or it is being taken back
	back  Undo    // what an action that takes another one back does to it
	of    int     // where it stands in that other one
}

// A failure is why something was not done, in a word.
type failure string

const (
	wasGone    failure = "Gone"    // it had gone before, or another of its name has come
	wasRefused failure = "Refused" // by the API: its text says why
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

// A Part is something that has to happen until a thing is done.
type Part struct {
	Name string
	Pill Pill
	Text string
}

// A Job is an action that is being done, or was. It is kept in memory only: what it
// has changed is in the fleet, and what it has not can be asked for again. A drain is
// in the fleet as a whole: its job only looks on.
type Job struct {
	Worker
	ID, By  string
	Began   time.Time
	Undoes  *Job // the one that it takes back
	act     *Action
	notify  func()
	cancel  context.CancelFunc
	over    chan struct{} // closed at the end
	mu      sync.Mutex
	Items   []Progress
	Ended   time.Time
	Stopped bool // by somebody
}

// Set changes the progress of the i-th thing.
func (j *Job) Set(i int, change func(*Progress)) {
	j.Update(i, func(p *Progress) bool { change(p); return true })
}

// Update changes the progress of the i-th thing, and shows it where it has changed.
func (j *Job) Update(i int, change func(*Progress) (changed bool)) {
	j.mu.Lock()
	changed := change(&j.Items[i])
	j.mu.Unlock()
	if changed {
		j.notify()
	}
}

// IsStopped tells whether somebody has stopped it.
func (j *Job) IsStopped() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.Stopped
}

// Finish says how the i-th thing went; undo takes it back, if anything does.
func (j *Job) Finish(i int, undo Undo, err error) {
	j.Set(i, func(p *Progress) {
		p.State, p.Text, p.Undo = "done", "", undo
		if err != nil {
			p.State, p.Text, p.Why = "failed", ErrorText(err), failureOf(err)
		}
	})
}

// run does the action to every thing, a few at a time.
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
			undo = nil // there is nothing to take back
		}
		j.Finish(i, undo, err)
	})
}

// Each does something n times, a few at a time, until ctx is done.
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

// WithGrace returns a context in which what has been begun is brought to its end, when ctx
// ends before: what was asked of the API and not waited for would be neither done nor not.
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

// A sum counts the things of a job by their state.
type sum struct {
	All, Done, Failed int
	share             float64 // that is over, of all
}

// Percent is how much is over, and never all of it too soon.
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

// takeBack returns what can be taken back, each thing once.
func (j *Job) takeBack() []Progress {
	j.mu.Lock()
	defer j.mu.Unlock()
	items := j.undoable()
	for _, p := range items {
		j.Items[p.of].Undo = nil
	}
	return items
}

// undoable is what can be taken back of what has been done. The caller holds mu.
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

// giveBack lets be taken back again what this action was to take back and has not: the
// database may not have answered, or somebody has stopped it. What has gone is not.
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

// jobs are the actions of this life of the hub.
type jobs struct {
	ctx  context.Context
	stop context.CancelFunc
	live *live
	wg   sync.WaitGroup

	now   func() time.Time
	began time.Time // this life

	mu   sync.Mutex
	list []*Job // the newest last
}

func newJobs(l *live, now func() time.Time) *jobs {
	ctx, stop := context.WithCancel(context.Background())
	return &jobs{ctx: ctx, stop: stop, live: l, now: now, began: now()}
}

// Since is when this life of the hub began.
func (js *jobs) Since(now time.Time) *format.Moment { return format.Time(js.began, now) }

// end stops everything that is being done, and waits for it.
func (js *jobs) end() {
	js.stop()
	js.wg.Wait()
}

// begin starts a job, unless too many are being done.
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

// forget drops the oldest jobs that have ended, where there are too many, or they were
// done to too many things; ok tells whether there is room then.
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

// all returns the jobs, the newest first.
func (js *jobs) all() []*Job {
	js.mu.Lock()
	defer js.mu.Unlock()
	list := slices.Clone(js.list)
	slices.SortStableFunc(list, func(a, b *Job) int { return cmp.Compare(b.Began.UnixNano(), a.Began.UnixNano()) })
	return list
}

// JobsTopic is what changes with every action.
const JobsTopic = "actions"
