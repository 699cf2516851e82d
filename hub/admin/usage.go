package admin

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// measureAgain is how old a measurement is when a page that shows it asks for another.
	measureAgain = 15 * time.Second
	// measured is how long a measurement is shown.
	measured = time.Minute
)

// A Usage is what a device measured of itself and of its containers over a short while.
type Usage struct {
	Node       corev1.ResourceList
	Containers map[ContainerOf]corev1.ResourceList // of whatever pods the device says
}

// A ContainerOf names a container of a pod.
type ContainerOf struct {
	Pod  types.UID
	Name string
}

// gauges keep what devices use now, of those that somebody looks at: a device
// measures when it is asked, and a page that shows it asks.
type gauges struct {
	measure func(ctx context.Context, node string) (Usage, error)
	told    func(node string) // there is something new
	mu      sync.Mutex
	byNode  map[string]*gauge
	swept   time.Time
}

type gauge struct {
	asked time.Time
	busy  bool
	at    time.Time // of usage; zero: none yet
	usage Usage
}

func newGauges(measure func(context.Context, string) (Usage, error), told func(node string)) *gauges {
	return &gauges{measure: measure, told: told, byNode: map[string]*gauge{}}
}

// of returns what is known of a node, and asks for what is not. It does not wait.
func (g *gauges) of(node string, now time.Time) (Usage, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.swept) > measured {
		for name, old := range g.byNode {
			if !old.busy && now.Sub(old.asked) > measured {
				delete(g.byNode, name)
			}
		}
		g.swept = now
	}
	m := g.byNode[node]
	if m == nil {
		m = &gauge{}
		g.byNode[node] = m
	}
	if !m.busy && now.Sub(m.asked) >= measureAgain {
		m.asked, m.busy = now, true
		go g.ask(node, m)
	}
	return m.usage, now.Sub(m.at) < measured
}

func (g *gauges) ask(node string, m *gauge) {
	u, err := g.measure(context.Background(), node)
	g.mu.Lock()
	m.busy = false
	if err == nil { // one that does not answer is shown by its link
		m.usage, m.at = u, time.Now()
	}
	g.mu.Unlock()
	if err == nil {
		g.told(node)
	}
}

// usageTopic is what pages watch that show what a node uses.
func usageTopic(node string) string { return "usage/" + node }
