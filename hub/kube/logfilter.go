package kube

import (
	"context"
	"fmt"
	"regexp"
	"regexp/syntax"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flotilla.dev/hub/listen"
)

// Limits of pattern matching. For each byte RE2 takes at most as many steps as the program has
// instructions, so their number is limited.
const (
	maxRepeat  = 100 // repetitions of one part of a pattern
	maxProgram = 300 // instructions; a usual pattern, a few words or classes, needs about fifty
	// filterRest is the ratio of rest to matching time, so that a query uses at most a fifth of a
	// processor.
	filterRest = 4
	// filterTime limits a query without follow.
	filterTime  = time.Minute
	maxFilters  = 8 // concurrent filters on this hub
	nodeFilters = 2 // concurrent filters of one node's log
	userFilters = 3 // concurrent filters of one user
)

// compilePattern compiles a pattern if its cost is bounded.
func compilePattern(text string) (*regexp.Regexp, error) {
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if repeats(tree) {
		return nil, fmt.Errorf("must not repeat anything more than %d times", maxRepeat)
	}
	prog, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return nil, err
	}
	if len(prog.Inst) > maxProgram {
		return nil, fmt.Errorf("is too complex: it compiles to %d instructions, the limit is %d", len(prog.Inst), maxProgram)
	}
	return regexp.Compile(text)
}

func repeats(tree *syntax.Regexp) bool {
	if tree.Op == syntax.OpRepeat && max(tree.Min, tree.Max) > maxRepeat {
		return true
	}
	for _, sub := range tree.Sub {
		if repeats(sub) {
			return true
		}
	}
	return false
}

// logFilters counts concurrent log queries that filter: in total, by node and by user.
type logFilters struct {
	shares listen.Shares

	mu  sync.Mutex
	all int
	by  map[string]int
}

func newLogFilters() *logFilters { return &logFilters{shares: listen.Shares{Most: userFilters}} }

func (s *logFilters) enter(user, node string) (leave func(), err error) {
	mine, ok := s.shares.Enter(user)
	if !ok {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf(
			"%d log queries with a time or a pattern are under way for user %s, which is the limit: end some",
			userFilters, user), 5)
	}
	defer func() {
		if err != nil {
			mine()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxFilters || s.by[node] >= nodeFilters {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf(
			"%d log queries with a time or a pattern are under way, %d of node %s; the limits are %d and %d: end some",
			s.all, s.by[node], node, maxFilters, nodeFilters), 5)
	}
	if s.by == nil {
		s.by = map[string]int{}
	}
	s.all++
	s.by[node]++
	return func() {
		mine()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all--
		if s.by[node]--; s.by[node] == 0 {
			delete(s.by, node)
		}
	}, nil
}

// pause rests after matching, so that other goroutines get the processor.
func pause(ctx context.Context, took time.Duration) {
	if took < time.Millisecond {
		return
	}
	t := time.NewTimer(filterRest * took)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
