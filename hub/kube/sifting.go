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

// Limits of pattern matching. RE2 takes at most the program's size in steps for each byte, so the
// size is limited.
const (
	maxRepeat  = 100 // of one part of a pattern
	maxProgram = 300 // instructions: words and classes on one line take about fifty
	// filterRest is the ratio of rest to matching time: a query uses at most a fifth of a
	// processor.
	siftRest = 4
	// filterTime limits a query that does not follow.
	siftTime = time.Minute
	maxSifts = 8 // filters under way on this hub
	nodeSift = 2 // of one node's log
	userSift = 3 // of one user
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

// logFilters counts log queries that filter, in all, by node and by user.
type sifting struct {
	shares listen.Shares

	mu  sync.Mutex
	all int
	by  map[string]int
}

func newSifting() *sifting { return &sifting{shares: listen.Shares{Most: userSift}} }

func (s *sifting) enter(user, node string) (leave func(), err error) {
	mine, ok := s.shares.Enter(user)
	if !ok {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf(
			"%d log queries with a time or a pattern are under way for user %s, which is the limit: end some",
			userSift, user), 5)
	}
	defer func() {
		if err != nil {
			mine()
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxSifts || s.by[node] >= nodeSift {
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf(
			"%d log queries with a time or a pattern are under way, %d of node %s; the limits are %d and %d: end some",
			s.all, s.by[node], node, maxSifts, nodeSift), 5)
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

// rest gives the processor to others after a time of matching.
func rest(ctx context.Context, took time.Duration) {
	if took < time.Millisecond {
		return
	}
	t := time.NewTimer(siftRest * took)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
