package engine

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/container"
)

// Docker does not answer for a container as long as that hangs in its start or removal, such as at
// a mount whose server is gone, and answers for all others. To take that for an engine that is down
// would leave all of them alone: that one is as it was seen last, or as the list has it, which
// tells less. Podman has no list as long as a container hangs: there it is those that the newest
// one had, and those made since.

// seen is what the newest list of a label had, by container id.
type seen struct {
	sync.Mutex
	byLabel map[string]map[string]sight
	made    map[string]Container // that no list has had yet
	stuck   atomic.Bool          // a container kept Podman from the newest list
}

type sight struct {
	Container
	silent bool // the engine did not answer for it
}

// of is what is known of the containers with a label.
func (s *seen) of(label string) map[string]sight {
	s.Lock()
	defer s.Unlock()
	all := maps.Clone(s.byLabel[label])
	key, value, one := strings.Cut(label, "=")
	for id, c := range s.made {
		if v, has := c.Labels[key]; has && (v == value || !one) {
			if all == nil {
				all = map[string]sight{}
			}
			all[id] = sight{Container: c}
		}
	}
	return all
}

// set takes in a list. Who was made before it and is not in it has gone.
func (s *seen) set(label string, before, now map[string]sight) {
	s.Lock()
	defer s.Unlock()
	if s.byLabel == nil {
		s.byLabel = map[string]map[string]sight{}
	}
	s.byLabel[label] = now
	for id := range before {
		delete(s.made, id)
	}
}

// make takes in a container that has just been made.
func (s *seen) make(c Container) {
	s.Lock()
	defer s.Unlock()
	if s.made == nil {
		s.made = map[string]Container{}
	}
	s.made[c.ID] = c
}

// gone takes in that a container has been removed.
func (s *seen) gone(id string) {
	s.Lock()
	defer s.Unlock()
	delete(s.made, id)
}

// patienceFor is how long the answer for a container is waited for. Who did not get one last time
// knows better.
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
