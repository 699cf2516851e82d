package frame

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
)

const (
	// minInterval is the least time between two rounds of updates.
	minInterval = 500 * time.Millisecond
	// restFactor bounds the cost of open pages: after a round of updates, live waits this many times as
	// long as the round took.
	restFactor = 4
	// maxStreams bounds the number of open pages.
	maxStreams = 1000
)

// everything is the topic that concerns every page.
const everything = "*"

// live keeps open pages up to date. One goroutine reads the loop's feed, renders each concerned
// view once for all its pages, and wakes the pages whose content has changed.
type live struct {
	fleet   Fleet
	now     func() time.Time // the hub's time
	touched atomic.Uint64    // counts changes that are not in the snapshot, such as a job's progress
	over    chan struct{}    // closed when Run ends
	again   chan struct{}    // a topic is due, or a view has been opened

	mu            sync.Mutex
	due           map[string]bool // changed topics that are not in the snapshot
	subscriptions map[string]*subscription
	pages         int
}

// A subscription is a view of one role, with the pages that have it open.
type subscription struct {
	look  func() rendered
	pages map[*sub]struct{}
	now   rendered
}

// A sub is one open page.
type sub struct {
	*subscription
	key  string
	wake chan struct{}
}

func newLive(f Fleet, now func() time.Time) *live {
	return &live{fleet: f, now: now, over: make(chan struct{}), again: make(chan struct{}, 1), due: map[string]bool{},
		subscriptions: map[string]*subscription{}}
}

// Run reads the feed until ctx is done.
func (l *live) Run(ctx context.Context) error {
	defer close(l.over)
	return panics.Keep(ctx, "page", l.run)
}

func (l *live) run(ctx context.Context) error {
	l.touch(everything)
	rev := l.fleet.Snapshot().Revision
	for {
		begin, hit := l.now(), l.takeDue()
		changes, more, err := l.fleet.Since(rev)
		switch {
		case err != nil: // fell behind: every page may be out of date
			rev = l.fleet.Snapshot().Revision
			hit[everything] = true
		case len(changes) > 0:
			rev = changes[len(changes)-1].Rev
			topics(changes, hit)
		}
		stale, wait := l.stale(hit, begin)
		if len(hit) > 0 || len(stale) > 0 {
			for _, s := range stale {
				l.refresh(s)
			}
			wait, more = max(minInterval, restFactor*l.now().Sub(begin)), nil
		}
		var enough <-chan time.Time
		if wait > 0 {
			enough = time.After(wait)
		}
		again := l.again
		if more == nil {
			again = nil
		}
		select {
		case <-enough:
		case <-more:
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

// stale returns the views that the topics concern or whose poll time has come, and how long until
// the next poll; 0: never.
func (l *live) stale(hit map[string]bool, now time.Time) (stale []*subscription, next time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.subscriptions {
		left := time.Hour
		if poll := s.now.page.Poll; poll > 0 {
			left = time.Duration(poll)*time.Second - now.Sub(s.now.at)
		}
		if left <= 0 || s.concerned(hit) {
			stale = append(stale, s)
		} else if next == 0 || left < next {
			next = left
		}
	}
	return stale, next
}

// concerned tells whether the view watches one of the topics. A view without topics is not rendered
// yet, or its object is missing.
func (s *subscription) concerned(hit map[string]bool) bool {
	watch := s.now.page.Watch
	return hit[everything] || len(hit) > 0 && len(watch) == 0 ||
		slices.ContainsFunc(watch, func(t string) bool { return hit[t] })
}

// refresh renders a view and wakes its pages if the content has changed.
func (l *live) refresh(s *subscription) {
	defer panics.Catch("page view")
	r := s.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.at.Before(s.now.at) {
		return
	}
	if r.tag != s.now.tag {
		for p := range s.pages {
			select {
			case p.wake <- struct{}{}:
			default: // the page is still sending and will then take the newest
			}
		}
	}
	s.now = r
}

// shows is the newest rendering of a page's view.
func (l *live) shows(p *sub) rendered {
	l.mu.Lock()
	defer l.mu.Unlock()
	return p.now
}

// touch marks topics that changed outside of the snapshot.
func (l *live) touch(topics ...string) {
	l.touched.Add(1)
	l.mu.Lock()
	for _, t := range topics {
		l.due[t] = true
	}
	l.mu.Unlock()
	l.wakeUp()
}

func (l *live) takeDue() (due map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	due, l.due = l.due, map[string]bool{}
	return due
}

func (l *live) wakeUp() {
	select {
	case l.again <- struct{}{}:
	default:
	}
}

var errCrowded = errors.New("too many pages are open")

// open adds a page with the view of a key, and renders the view.
func (l *live) open(key string, look func() rendered) (*sub, error) {
	l.mu.Lock()
	if l.pages >= maxStreams {
		l.mu.Unlock()
		return nil, errCrowded
	}
	l.pages++
	s := l.subscriptions[key]
	if s == nil {
		s = &subscription{look: look, pages: map[*sub]struct{}{}}
		l.subscriptions[key] = s
	}
	p := &sub{subscription: s, key: key, wake: make(chan struct{}, 1)}
	s.pages[p] = struct{}{}
	l.mu.Unlock()
	l.refresh(s)
	l.wakeUp() // the view may have a poll time
	return p, nil
}

func (l *live) close(p *sub) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pages--
	if delete(p.pages, p); len(p.pages) == 0 {
		delete(l.subscriptions, p.key)
	}
}

// topics adds the topics of changes: kinds, single nodes and single pods.
func topics(changes []state.Applied, hit map[string]bool) {
	for _, a := range changes {
		if topic := shownAs(a.Key.Kind).topic; topic != "" {
			hit[topic] = true
		}
		switch a.Key.Kind {
		case state.Nodes:
			hit["node/"+a.Key.Name] = true
		case state.Records:
			hit["records"], hit["node/"+a.Key.Name] = true, true
		case state.Pods:
			hit["pod/"+a.Key.Namespace+"/"+a.Key.Name] = true
			for _, o := range []state.Object{a.Old, a.New} {
				if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
					hit["node/"+p.Spec.NodeName] = true
				}
			}
		case state.Events:
			if e, ok := a.New.(*corev1.Event); ok {
				switch about := e.InvolvedObject; about.Kind {
				case "Node":
					hit["node/"+about.Name] = true
				case "Pod":
					hit["pod/"+about.Namespace+"/"+about.Name] = true
				}
			}
		}
	}
}
