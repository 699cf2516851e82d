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

// What looking for a pattern may cost. RE2 takes no longer than its program's size for
// each byte, and so the size is what counts.
const (
	maxRepeat  = 100 // of one part of a pattern
	maxProgram = 300 // instructions: a line of words and classes has some fifty
	// siftRest is how many times as long as it took to look a query rests after it: it
	// takes a fifth of a processor at most.
	siftRest = 4
	// siftTime is how long a query that does not follow may take.
	siftTime = time.Minute
	maxSifts = 8 // under way, on this hub
	nodeSift = 2 // and of one node's log
	userSift = 3 // and of one user
)

// compilePattern reads a pattern whose work is bounded.
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
		return nil, fmt.Errorf("must be simpler: it takes %d steps, at most %d are taken", len(prog.Inst), maxProgram)
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

// sifting counts the queries that look at lines, in all, by node and by user.
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
			"%d log queries with a time or a pattern of %s are under way, which is the most that one user has: end some",
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
			"%d log queries with a time or a pattern are under way, %d of node %s; at most %d and %d are served: end some",
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

// rest lets others work after a look that took so long.
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
