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

// A container may hang in its start or removal, for example at a mount of a lost server. The engine
// is not down then. Docker answers for all other containers, and the hanging one is reported as in
// the last list. Podman returns no list at all: the result is the last list and the containers
// created since.

// seen stores the newest list of each label by container id.
type seen struct {
	sync.Mutex
	byLabel map[string]map[string]sight
	made    map[string]Container // containers created since the last list
	stuck   atomic.Bool          // a container kept Podman from completing the newest list
}

type sight struct {
	Container
	silent bool // the engine did not answer for this container
}

// of returns the known containers with a label.
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

// set stores a list. A container that was created before the list but is not in it is gone.
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

// make adds a container that was just created.
func (s *seen) make(c Container) {
	s.Lock()
	defer s.Unlock()
	if s.made == nil {
		s.made = map[string]Container{}
	}
	s.made[c.ID] = c
}

// gone removes a container that was removed.
func (s *seen) gone(id string) {
	s.Lock()
	defer s.Unlock()
	delete(s.made, id)
}

// patienceFor returns how long to wait for the answer about a container: a shorter time if the last
// answer did not come.
func (a *api) patienceFor(was sight) time.Duration {
	if was.silent {
		return a.answerTime / 10
	}
	return a.answerTime
}

// answers reports whether the engine answers at all.
func (a *api) answers(ctx context.Context) bool {
	asking, cancel := context.WithTimeout(ctx, a.answerTime)
	defer cancel()
	return a.Ping(asking) == nil
}

// listed converts an entry of a list.
func listed(item container.Summary) Container {
	c := Container{ID: item.ID, Name: firstName(item.Names), Image: item.Labels[requestedImageLabel],
		ImageID: digest(item.ImageID), Labels: item.Labels,
		State: stateOf(string(item.State)), Created: time.Unix(item.Created, 0)}
	_, _ = fmt.Sscanf(item.Status, "Exited (%d)", &c.ExitCode) // a list has the exit code in this text only
	delete(c.Labels, requestedImageLabel)
	return c
}
