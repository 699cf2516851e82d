package control

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
)

type senderKey struct{}

// A sender is who brings news: called so, and if it is a node which one.
type sender struct{ name, node string }

// From names who brings the news that is handed over with the context, such as
// "user kari": in case that it keeps the loop from everybody else's.
func From(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, senderKey{}, sender{name: name})
}

// FromNode is From for the device of a node.
func FromNode(ctx context.Context, node string) context.Context {
	return context.WithValue(ctx, senderKey{}, sender{"node " + node, node})
}

func senderOf(ctx context.Context) sender {
	from, _ := ctx.Value(senderKey{}).(sender)
	return from
}

const (
	slowPass     = time.Second      // a pass that takes longer is told
	longestPause = 10 * time.Second // for its sender's next news; a lease is not news
	maxSenders   = 256              // that are counted apart
	hub          = "hub"            // the sender that the loop itself is
)

// A pace makes those wait whose news took long, so that the others get their turn.
type pace struct {
	mu    sync.Mutex
	until map[string]time.Time
	slow  map[string]uint64
}

// wait returns when the sender's news may be heard.
func (p *pace) wait(ctx context.Context, sender string) error {
	if sender == "" {
		return nil
	}
	p.mu.Lock()
	until, ok := p.until[sender]
	p.mu.Unlock()
	if !ok {
		return nil
	}
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until[sender].Equal(until) {
		delete(p.until, sender)
	}
	return nil
}

// note remembers that a sender's news made a pass slow, and tells how long he waits.
func (p *pace) note(sender string, took time.Duration) (pause time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until == nil {
		p.until, p.slow = map[string]time.Time{}, map[string]uint64{}
	}
	if _, ok := p.slow[sender]; !ok && len(p.slow) >= maxSenders {
		sender = "another"
	}
	p.slow[sender]++
	pause = min(10*took, longestPause)
	for who, until := range p.until { // of those who never came again
		if time.Now().After(until) {
			delete(p.until, who)
		}
	}
	p.until[sender] = time.Now().Add(pause)
	return pause
}

// SlowPasses counts the passes that took more than a second, by who brought the news that
// was most of it; "hub" where nobody's was.
func (l *Loop) SlowPasses() map[string]uint64 {
	l.pace.mu.Lock()
	defer l.pace.mu.Unlock()
	return maps.Clone(l.pace.slow)
}

// written is what a pass remembered: how long that took, and how many bytes each object has.
type written struct {
	took  time.Duration
	sizes map[state.Key]int
}

// minDiskRate is how many bytes a second any disk takes: one that takes fewer is slow by itself.
const minDiskRate = 1 << 20

// watch looks at how long a pass took. Whose news was most of it is named and slowed down: that
// much comes at once, or that the disk is slow, is nobody's.
func (l *Loop) watch(took time.Duration, w written, jobs []*job) {
	if took <= slowPass {
		return
	}
	var all float64
	for _, bytes := range w.sizes {
		all += float64(max(bytes, minChangeBytes))
	}
	from, worst := sender{}, time.Duration(0)
	for _, j := range jobs {
		cost := j.took
		for _, a := range j.done {
			bytes := float64(max(a.Bytes, minChangeBytes))
			cost += time.Duration(min(float64(w.took)*bytes/max(all, bytes), bytes/minDiskRate*float64(time.Second)))
		}
		if cost > worst {
			from, worst = j.from, cost
		}
	}
	if from == (sender{}) || worst < took/2 {
		from = sender{name: hub}
	}
	why := fmt.Sprintf("a pass of the control loop took %s, for everybody: ", took.Round(100*time.Millisecond))
	switch pause := l.pace.note(from.name, took); {
	case from.name == hub && w.took >= took/2:
		why += fmt.Sprintf("most of it until %d objects were remembered; is the disk slow?", len(w.sizes))
	case from.name == hub:
		why += "much had to be decided at once"
	default:
		why += fmt.Sprintf("most of it for news of %s, whose next news waits for %s", from.name,
			pause.Round(100*time.Millisecond))
	}
	l.Log.Warn(why, "took", took, "sender", from.name)
	go l.recordSlowPass(from, why)
}

// recordSlowPass makes an event of a slow pass: about the node, or the system.
func (l *Loop) recordSlowPass(from sender, why string) {
	defer panics.Catch("slow pass")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := l.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		about := s.Get(state.Key{Kind: state.Namespaces, Name: metav1.NamespaceSystem})
		if n := s.Node(from.node); n != nil {
			about = n
		}
		if about == nil {
			return nil, nil
		}
		return AddEvent(s, About(about), EventText{Type: corev1.EventTypeWarning, Reason: "SlowPass", Message: why}, now), nil
	})
	if err != nil {
		l.Log.Debug("tell of a slow pass", "err", err)
	}
}
