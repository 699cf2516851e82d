package agent

import (
	"context"
	"slices"
	"time"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
)

// A pod that ends stops its sidecars last, as with the kubelet (KEP-753): what they do for the
// others, such as carrying their connections or logs, they do until those have ended. Their
// preStop hooks begin with the others', and waiting takes its time from the grace: when that is
// over, they are stopped whatever else still runs.

// see takes in what runs.
func (s *stopping) see(all []plan.Instance) {
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
