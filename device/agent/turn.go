package agent

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
)

// A pod that ends stops its sidecars last, as with the kubelet (KEP-753): what they do for the
// others, such as carrying their connections or logs, they do until those have ended. Their
// preStop hooks begin with the others', and waiting takes its time from the grace: when that is
// over, they are stopped whatever else still runs.

// before lists the running containers of a pod that end before one of its sidecars: those that
// are none, and the sidecars that come after it. Of a pod that is no longer known the labels tell
// as much as they can.
func (p *pass) before(in Instance, pod *corev1.Pod) (ids []string) {
	if in.Kind != podspec.KindInit {
		return nil
	}
	last := map[string]bool{}
	if pod != nil {
		i := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == in.Place.Container })
		if i < 0 || !podspec.IsSidecar(podspec.Container{Spec: &pod.Spec.InitContainers[i], Kind: podspec.KindInit}) {
			return nil
		}
		for j := range pod.Spec.InitContainers[i+1:] {
			if w := (podspec.Container{Spec: &pod.Spec.InitContainers[i+1+j], Kind: podspec.KindInit}); podspec.IsSidecar(w) {
				last[w.Spec.Name] = true
			}
		}
	}
	for _, other := range p.instances[in.Place.Pod] {
		if (other.State == engine.Running || other.State == engine.Paused) && (other.Kind == podspec.KindApp || last[other.Place.Container]) {
			ids = append(ids, other.ID)
		}
	}
	return ids
}

// see takes in what runs.
func (s *stopping) see(all []Instance) {
	s.Lock()
	defer s.Unlock()
	s.running = make(map[string]bool, len(all))
	for _, in := range all {
		if in.State == engine.Running || in.State == engine.Paused {
			s.running[in.ID] = true
		}
	}
	if s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// turn waits until the containers that end before one have ended, at most for its grace, and
// returns what is left of that.
func (s *stopping) turn(ctx context.Context, before []string, grace time.Duration) time.Duration {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for {
		s.Lock()
		waits := slices.ContainsFunc(before, func(id string) bool { return s.running[id] })
		if waits && s.news == nil {
			s.news = make(chan struct{})
		}
		news := s.news
		s.Unlock()
		if !waits {
			return grace - time.Since(began)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return grace - time.Since(began)
		}
	}
}
