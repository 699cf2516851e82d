package sim

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// An accident happens to one packet: the nth of its kind after the accident was armed.
type accident struct {
	dir  direction
	kind string
	fate []time.Duration

	mu   sync.Mutex
	left int
	at   time.Time // time of the accident; zero: it has not happened
}

func (a *accident) tap(p *packet) []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.dir != a.dir || p.kind != a.kind || !a.at.IsZero() {
		return untouched
	}
	if a.left--; a.left > 0 {
		return untouched
	}
	a.at = time.Now()
	return a.fate
}

func (a *accident) happened() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at
}

// fates are the accidents that can happen to a message.
var fates = func() []fate {
	all := []fate{
		{"lost", nil},
		{"doubled, the second 12 s late", []time.Duration{0, 12 * time.Second}},
		{"doubled", []time.Duration{0, 0}},
		{"3 s late", []time.Duration{3 * time.Second}},
	}
	if !long {
		all = all[:2]
	}
	return all
}()

type fate struct {
	name string
	is   []time.Duration
}

// accidents prepares a world for accidents. arm sets the next accident; nil ends the accidents.
func (w *world) accidents() (arm func(*accident)) {
	var now *accident
	w.tap = func(p *packet) []time.Duration {
		w.mu.Lock()
		a := now
		w.mu.Unlock()
		if a == nil {
			return untouched
		}
		return a.tap(p)
	}
	return func(a *accident) {
		w.mu.Lock()
		defer w.mu.Unlock()
		now = a
	}
}

// talkative starts the hub and a device, and returns a chatty pod on it.
func (w *world) talkative() *corev1.Pod {
	w.t.Helper()
	w.startHub()
	w.fleet(1, "oslo")
	w.deploy("chatty", 1)
	w.settleWithin(10*time.Second, "the deployment")
	return w.pods("chatty")[0]
}
