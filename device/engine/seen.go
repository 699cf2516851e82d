package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
)

// Docker does not answer for a container as long as that hangs in its start or removal, such as at a mount whose server is
// gone, and answers for all others. To take that for an engine that is down would leave all of them alone: that one is as
// it was seen last, or as the list has it, which tells less.

// seen is what the newest list of a label had, by container id.
type seen struct {
	sync.Mutex
	byLabel map[string]map[string]sight
}

type sight struct {
	Container
	silent bool // the engine did not answer for it
}

func (s *seen) of(label string) map[string]sight {
	s.Lock()
	defer s.Unlock()
	return s.byLabel[label]
}

func (s *seen) set(label string, now map[string]sight) {
	s.Lock()
	defer s.Unlock()
	if s.byLabel == nil {
		s.byLabel = map[string]map[string]sight{}
	}
	s.byLabel[label] = now
}

// patienceFor is how long the answer for a container is waited for. Who did not get one last time knows better.
func (a *api) patienceFor(was sight) time.Duration {
	if was.silent {
		return a.patience / 10
	}
	return a.patience
}

// answers tells whether the engine answers at all.
func (a *api) answers(ctx context.Context) bool {
	asking, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	return a.Ping(asking) == nil
}

// listed is a container as a list has it.
func listed(item container.Summary) Container {
	c := Container{ID: item.ID, Name: firstName(item.Names), Image: item.Labels[askedLabel], ImageID: digest(item.ImageID),
		Labels: item.Labels, State: stateOf(string(item.State)), Created: time.Unix(item.Created, 0)}
	_, _ = fmt.Sscanf(item.Status, "Exited (%d)", &c.ExitCode) // as people read it: it is nowhere else
	delete(c.Labels, askedLabel)
	return c
}
