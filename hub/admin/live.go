package admin

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

const (
	// together is the least time between two notices to the open pages.
	together = 500 * time.Millisecond
	// beat is how often a stream says that it is alive; the page gives up after 2.5 of them.
	beat = 10 * time.Second
	// patience is how long a browser may take to read what it is sent.
	patience   = 10 * time.Second
	maxStreams = 1000
	maxTopics  = 8
)

// everything is the topic that concerns every page.
const everything = "*"

// live tells the open pages what has changed. One goroutine reads the loop's feed
// for all of them.
type live struct {
	fleet   Fleet
	mu      sync.Mutex
	subs    map[*sub]struct{}
	told    uint64          // the newest revision that was told
	touched atomic.Uint64   // counts what was told beside the fleet
	due     map[string]bool // topics beside the fleet that are told soon
	over    chan struct{}   // closed when Run has ended
}

// A sub is one open page.
type sub struct {
	topics []string
	wake   chan struct{}
	// Of live.mu:
	hit map[string]bool // its topics that changed since it was last told
	rev uint64
}

func newLive(f Fleet) *live {
	return &live{fleet: f, subs: map[*sub]struct{}{}, over: make(chan struct{})}
}

// Run reads the feed until ctx is done.
func (l *live) Run(ctx context.Context) error {
	defer close(l.over)
	rev := l.fleet.Snapshot().Revision
	for {
		changes, more, err := l.fleet.Since(rev)
		switch {
		case err != nil: // fell behind: whatever they show may be old
			rev = l.fleet.Snapshot().Revision
			l.tell(map[string]bool{everything: true}, rev)
		case len(changes) == 0:
			select {
			case <-more:
			case <-ctx.Done():
				return nil
			}
			continue
		default:
			rev = changes[len(changes)-1].Rev
			if l.busy() {
				l.tell(topics(changes), rev)
			}
		}
		select {
		case <-time.After(together):
		case <-ctx.Done():
			return nil
		}
	}
}

func (l *live) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.subs) > 0
}

func (l *live) tell(changed map[string]bool, rev uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = max(l.told, rev)
	for s := range l.subs {
		s.rev = max(s.rev, rev)
		if s.note(changed) {
			select {
			case s.wake <- struct{}{}:
			default: // has not read the last one yet: both become one
			}
		}
	}
}

// touch tells of what has changed beside the fleet, soon. It says nothing about
// the fleet's revisions: what has changed there is told in its own time.
func (l *live) touch(topics ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.due == nil {
		l.due = map[string]bool{}
		time.AfterFunc(together, func() {
			l.mu.Lock()
			due, told := l.due, l.told
			l.due = nil
			l.touched.Add(1)
			l.mu.Unlock()
			l.tell(due, told)
		})
	}
	for _, t := range topics {
		l.due[t] = true
	}
}

// note adds what concerns the page, and tells whether anything does.
func (s *sub) note(changed map[string]bool) (any bool) {
	for _, t := range s.topics {
		if changed[t] || changed[everything] {
			s.hit[t] = true
			any = true
		}
	}
	return any
}

// take returns what the page is to be told, sorted, and forgets it.
func (l *live) take(s *sub) (hit []string, rev uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for t := range s.hit {
		hit = append(hit, t)
	}
	slices.Sort(hit)
	clear(s.hit)
	return hit, s.rev
}

var errCrowded = errors.New("too many pages are open")

func (l *live) open(topics []string) (*sub, error) {
	s := &sub{topics: topics, wake: make(chan struct{}, 1), hit: map[string]bool{}}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.subs) >= maxStreams {
		return nil, errCrowded
	}
	l.subs[s] = struct{}{}
	return s, nil
}

func (l *live) close(s *sub) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subs, s)
}

// topics names what changes concern: kinds, and single nodes and pods.
func topics(changes []state.Applied) map[string]bool {
	hit := map[string]bool{}
	for _, a := range changes {
		switch a.Key.Kind {
		case state.Nodes:
			hit["nodes"], hit["node/"+a.Key.Name] = true, true
		case state.Records:
			hit["node/"+a.Key.Name] = true
		case state.Sites:
			hit["sites"] = true
		case state.BoardProfiles:
			hit["boards"] = true
		case state.Pods:
			hit["pods"], hit["pod/"+a.Key.Namespace+"/"+a.Key.Name] = true, true
			for _, o := range []state.Object{a.Old, a.New} {
				if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
					hit["node/"+p.Spec.NodeName] = true
				}
			}
		case state.Deployments, state.DaemonSets, state.ReplicaSets:
			hit["workloads"] = true
		case state.Events:
			hit["events"] = true
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
	return hit
}

// stream tells a page, as long as it is open, which of its topics have changed.
func (c *call) stream() error {
	watch := strings.Fields(c.QueryParam("watch"))
	if len(watch) == 0 || len(watch) > maxTopics {
		return c.message(http.StatusBadRequest, "Watch what?", fmt.Sprintf("The query watch names 1 to %d topics.", maxTopics))
	}
	s, err := c.live.open(watch)
	if err != nil {
		return c.message(http.StatusServiceUnavailable, "Too busy", "Too many pages are open; close some.")
	}
	defer c.live.close(s)

	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	c.Response().WriteHeader(http.StatusOK)
	out := teller{w: c.Response().Writer, rc: http.NewResponseController(c.Response().Writer)}
	from := c.Request().Header.Get("Last-Event-ID")
	if from == "" {
		from = c.QueryParam("rev")
	}
	if out.say("hello", "", c.catchUp(s, from)) != nil {
		return nil
	}
	alive := time.NewTicker(beat)
	defer alive.Stop()
	for {
		select {
		case <-s.wake:
		case <-alive.C:
			if _, err := c.Sessions.Authenticate(c.Request()); err != nil {
				return nil // the page will find out when it comes back
			}
			if out.say("beat", "", 0) != nil {
				return nil
			}
			continue
		case <-c.live.over:
			return nil
		case <-c.Request().Context().Done():
			return nil
		}
		if hit, rev := c.live.take(s); len(hit) > 0 && out.say("change", strings.Join(hit, " "), rev) != nil {
			return nil
		}
	}
}

// catchUp makes the page hear of what happened between the revision that it shows
// and now, and returns that revision.
func (c *call) catchUp(s *sub, from string) uint64 {
	now := c.Fleet.Snapshot().Revision
	rev, err := strconv.ParseUint(from, 10, 64)
	changed := map[string]bool{everything: true} // of a page of an earlier life of the hub
	if err == nil && rev <= now {
		if changes, _, err := c.Fleet.Since(rev); err == nil {
			changed = topics(changes)
		}
	}
	for _, t := range s.topics {
		if t == jobsTopic || strings.HasPrefix(t, jobsTopic+"/") {
			changed[t] = true // actions have no revisions: what was missed is not known
		}
	}
	c.live.mu.Lock()
	defer c.live.mu.Unlock()
	if s.rev = max(s.rev, now); s.note(changed) {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return rev
}

// A teller writes server-sent events.
type teller struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	b    bytes.Buffer
	wait time.Duration // for a browser to read; 0: patience
}

// say writes one event; id 0 is none.
func (t *teller) say(event, data string, id uint64) error {
	if id == 0 {
		return t.tell(event, data, "")
	}
	return t.tell(event, data, strconv.FormatUint(id, 10))
}

// tell writes one event; id and data have no line breaks.
func (t *teller) tell(event, data, id string) error {
	t.b.Reset()
	if id != "" {
		fmt.Fprintf(&t.b, "id: %s\n", id)
	}
	fmt.Fprintf(&t.b, "event: %s\ndata: %s\n\n", event, data)
	// A writer without deadlines, as in tests, blocks nobody but itself.
	_ = t.rc.SetWriteDeadline(time.Now().Add(cmp.Or(t.wait, patience)))
	if _, err := t.w.Write(t.b.Bytes()); err != nil {
		return err
	}
	err := t.rc.Flush()
	_ = t.rc.SetWriteDeadline(time.Time{}) // HTTP/2 ends a stream whose deadline comes, even one that is only quiet
	return err
}
