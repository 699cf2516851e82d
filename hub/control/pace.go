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

// A sender is the source of news. node is set if the source is a device.
type sender struct{ name, node string }

// From names the sender of the news that is passed with the context, such as "user kari". The log
// names it if the news makes a pass slow.
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
	slowPass     = time.Second      // a longer pass is logged
	longestPause = 10 * time.Second // longest wait before the next news of a sender; leases are not news
	maxSenders   = 256              // senders that are counted separately
	hubSender    = "hub"            // the name of the loop itself
)

// A pace delays senders whose news took long, so that news of other senders is evaluated between.
type pace struct {
	mu    sync.Mutex
	until map[string]time.Time
	slow  map[string]uint64
}

// wait returns when news of the sender may enter the loop.
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

// note counts a slow pass of a sender, and returns how long the sender must wait.
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
	for who, until := range p.until { // expired entries
		if time.Now().After(until) {
			delete(p.until, who)
		}
	}
	p.until[sender] = time.Now().Add(pause)
	return pause
}

// SlowPasses counts the passes over a second by the sender that caused most of the time. Passes
// without such a sender are counted for "hub".
func (l *Loop) SlowPasses() map[string]uint64 {
	l.pace.mu.Lock()
	defer l.pace.mu.Unlock()
	return maps.Clone(l.pace.slow)
}

// commitResult has the duration of a commit and the size of each object.
type commitResult struct {
	took  time.Duration
	sizes map[state.Key]int
}

// minDiskRate is how many bytes a second a healthy disk writes. A slower disk is not the sender's
// fault.
const minDiskRate = 1 << 20

// checkDuration checks how long a pass took. It delays a sender that caused most of that time. Many
// requests at once or a slow disk delay no sender.
func (l *Loop) checkDuration(took time.Duration, w commitResult, jobs []*job) {
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
		from = sender{name: hubSender}
	}
	why := fmt.Sprintf("a pass of the control loop took %s: ", took.Round(100*time.Millisecond))
	switch pause := l.pace.note(from.name, took); {
	case from.name == hubSender && w.took >= took/2:
		why += fmt.Sprintf("most of it to store %d objects; check the disk", len(w.sizes))
	case from.name == hubSender:
		why += "there was much to decide at once"
	default:
		why += fmt.Sprintf("most of it for news of %s, whose next request waits for %s", from.name,
			pause.Round(100*time.Millisecond))
	}
	l.Log.Warn(why, "took", took, "sender", from.name)
	go l.recordSlowPass(from, why)
}

// recordSlowPass creates an event of a slow pass, about the node or the namespace kube-system.
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
		l.Log.Debug("record a slow pass", "err", err)
	}
}
