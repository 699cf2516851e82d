package agent

import (
	"context"
	"encoding/json"
	"errors"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/wire"
)

const (
	minWindow    = 2 * time.Second // shortest time between two readings of processor time
	maxWindow    = 2 * time.Minute
	maxParallel  = 16              // number of containers that are read at the same time
	countTimeout = 5 * time.Second // timeout for one container: the hub waits 15 s for two readings
)

// usages has the last reading. A request soon after that reading measures from it. Without requests
// the agent measures nothing.
type usages struct {
	sync.Mutex
	last reading
}

// A reading has the values of all counters at one time.
type reading struct {
	at         time.Time
	busy       time.Duration // processor time of the device
	memory     int64
	containers map[string]counted // by container id
}

// A counted is the usage of a container with its time.
type counted struct {
	engine.Usage
	at time.Time
}

// A measurable is a running container.
type measurable struct {
	id   string
	pod  wire.PodUsage // the pod's usage without its containers
	name string
}

// usage measures the device and its containers, and returns a wire.Usage in JSON.
func (a *Agent) usage(ctx context.Context) ([]byte, error) {
	var (
		e    engine.Engine
		all  []measurable
		root string
	)
	err := a.inLoop(ctx, func(l *loop) error {
		e, all, root = l.engine, l.measurables(), l.info.Root
		return nil
	})
	if err != nil {
		return nil, err
	}
	read := func() reading {
		s := a.c.Hardware.Measure(ctx, root)
		ids := make([]string, len(all))
		for i, c := range all {
			ids[i] = c.id
		}
		return reading{time.Now(), s.Busy, s.Memory.Capacity - s.Memory.Available, countersOf(ctx, e, ids)}
	}
	a.usages.Lock()
	defer a.usages.Unlock()
	first, now := a.usages.last, read()
	if age := now.at.Sub(first.at); first.at.IsZero() || age < minWindow || age > maxWindow {
		select {
		case <-time.After(minWindow):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		first, now = now, read()
	}
	a.usages.last = now
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	payload, err := json.Marshal(usageOf(first, now, all))
	if err == nil && len(payload) > wire.MaxUsage {
		err = errors.New("the device has too many pods for one reply")
	}
	return payload, err
}

// countersOf reads the counters of many containers. A container that does not respond or has ended
// is absent.
func countersOf(ctx context.Context, e engine.Engine, ids []string) map[string]counted {
	out := make(map[string]counted, len(ids))
	var (
		mu sync.Mutex
		g  errgroup.Group
	)
	g.SetLimit(maxParallel)
	for _, id := range ids {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, countTimeout)
			defer cancel()
			if u, err := e.Usage(ctx, id); err == nil {
				mu.Lock()
				defer mu.Unlock()
				out[id] = counted{u, time.Now()}
			}
			return nil
		})
	}
	_ = g.Wait()
	return out
}

// measurables are the running containers, sorted by pod. Without a responding engine the list is
// empty.
func (l *loop) measurables() (all []measurable) {
	if l.engine == nil || l.engineErr != nil {
		return nil
	}
	for _, in := range l.o.Containers {
		pod := l.pod(in.Place.Pod)
		if pod != nil && in.State == engine.Running && in.Kind != podspec.KindSandbox {
			all = append(all, measurable{in.ID, wire.PodUsage{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name},
				in.Place.Container})
		}
	}
	sort.SliceStable(all, func(i, j int) bool {
		x, y := all[i], all[j]
		return strings.Compare(x.pod.Namespace+"/"+x.pod.Name+"/"+string(x.pod.UID)+"/"+x.name,
			y.pod.Namespace+"/"+y.pod.Name+"/"+string(y.pod.UID)+"/"+y.name) < 0
	})
	return all
}

// usageOf is the difference between two readings.
func usageOf(first, last reading, all []measurable) wire.Usage {
	window := last.at.Sub(first.at)
	amount := func(window, spent time.Duration, memory int64) corev1.ResourceList {
		nanos := int64(0)
		if spent > 0 && window > 0 {
			nanos = int64(float64(spent) / window.Seconds())
		}
		return corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewScaledQuantity(nanos, resource.Nano),
			corev1.ResourceMemory: *resource.NewQuantity(max(memory, 0), resource.BinarySI),
		}
	}
	u := wire.Usage{Time: last.at.UTC(), Window: metav1.Duration{Duration: window.Round(time.Millisecond)},
		Node: amount(window, last.busy-first.busy, last.memory)}
	for _, c := range all {
		now, measured := last.containers[c.id]
		if !measured {
			continue
		}
		var spent, while time.Duration
		if before, ok := first.containers[c.id]; ok && before.CPUNanos <= now.CPUNanos {
			spent, while = time.Duration(now.CPUNanos-before.CPUNanos), now.at.Sub(before.at)
		}
		if n := len(u.Pods); n == 0 || u.Pods[n-1].UID != c.pod.UID {
			u.Pods = append(u.Pods, c.pod)
		}
		pod := &u.Pods[len(u.Pods)-1]
		pod.Containers = append(pod.Containers, wire.ContainerUsage{Name: c.name,
			Usage: amount(while, spent, int64(now.MemoryBytes))})
	}
	return u
}
