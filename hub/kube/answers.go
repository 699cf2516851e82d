package kube

import (
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flotilla.dev/hub/panics"
)

// Limits of the answers that are encoded and not yet taken by their clients.
const (
	heldByAll  = 96 << 20 // bytes
	heldByUser = 32 << 20 // bytes; one answer alone may be greater
	// small answers are not counted: how many there are is bounded by the connections.
	smallAnswer = 16 << 10
	// encoders is how many lists are encoded at a time, and encoderWait how long one
	// waits for its turn.
	encoders    = 2
	encoderWait = 10 * time.Second
	// sameFor is how long the encoding of a list serves others who ask for the same: the
	// ages and heartbeats in it are as old.
	sameFor = time.Second
)

// answers bounds the memory of the answers under way. Who asks for a list that is
// being encoded, or was a moment ago and is still being sent, gets the same one.
type answers struct {
	encoding chan struct{}

	mu   sync.Mutex
	all  int // bytes
	by   map[string]int
	made map[string]*shared

	encodings int // made in all
}

// A shared encoding is there as long as somebody is sent it.
type shared struct {
	at      time.Time
	done    chan struct{} // closed when it is made
	body    []byte
	err     error
	refs    int
	readers map[string]int // how many answers to whom it is counted for
}

func newAnswers() *answers {
	return &answers{encoding: make(chan struct{}, encoders), by: map[string]int{}, made: map[string]*shared{}}
}

// hold counts so many bytes for a user until they are released, or refuses them.
func (a *answers) hold(user string, n int) (release func(), err error) {
	if n <= smallAnswer {
		return func() {}, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if have := a.by[user]; have > 0 && have+n > heldByUser || a.all > 0 && a.all+n > heldByAll {
		return nil, errHeld(user)
	}
	a.all += n
	a.by[user] += n
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all -= n
		if a.by[user] -= n; a.by[user] == 0 {
			delete(a.by, user)
		}
	}, nil
}

func errHeld(user string) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf(
		"answers of %d MiB wait for %s, or of %d MiB for all, to read them: read those, or ask for pages with limit",
		heldByUser>>20, user, heldByAll>>20), 2)
}

// share returns the encoding of a list, by make if nobody has it now. release must be
// called when it has been sent.
func (a *answers) share(user, key string, make func() ([]byte, error)) (body []byte, release func(), err error) {
	a.mu.Lock()
	e := a.made[key]
	mine := e == nil || time.Since(e.at) > sameFor
	if mine {
		if a.by[user] > heldByUser {
			a.mu.Unlock()
			return nil, nil, errHeld(user)
		}
		e = newShared()
		a.made[key] = e
		a.encodings++
	}
	e.refs++
	a.mu.Unlock()
	if mine {
		a.encode(e, make)
	} else {
		<-e.done
	}
	err = e.err
	if err == nil {
		err = a.take(user, e)
	}
	if err != nil {
		a.release(key, e)
		return nil, nil, err
	}
	return e.body, func() { a.leave(user, e); a.release(key, e) }, nil
}

func newShared() *shared {
	return &shared{at: time.Now(), done: make(chan struct{}), readers: map[string]int{}}
}

// take counts an encoding for one of those who are sent it: once in all, and once for each
// user, whose limit it may be too much for, but for nobody else's.
func (a *answers) take(user string, e *shared) error {
	n := e.counts()
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.readers[user] == 0 {
		if have := a.by[user]; n > 0 &&
			(have > 0 && have+n > heldByUser || len(e.readers) == 0 && a.all > 0 && a.all+n > heldByAll) {
			return errHeld(user)
		}
		if len(e.readers) == 0 {
			a.all += n
		}
		a.by[user] += n
	}
	e.readers[user]++
	return nil
}

func (a *answers) leave(user string, e *shared) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.readers[user]--; e.readers[user] > 0 {
		return
	}
	delete(e.readers, user)
	if len(e.readers) == 0 {
		a.all -= e.counts()
	}
	if a.by[user] -= e.counts(); a.by[user] == 0 {
		delete(a.by, user)
	}
}

// counts is how many bytes an encoding counts as.
func (e *shared) counts() int {
	if len(e.body) <= smallAnswer {
		return 0
	}
	return len(e.body)
}

func (a *answers) encode(e *shared, make func() ([]byte, error)) {
	defer close(e.done)
	defer panics.CatchThen("list", func(err error) { e.err = err })
	late := time.NewTimer(encoderWait)
	defer late.Stop()
	select {
	case a.encoding <- struct{}{}:
	case <-late.C:
		e.err = apierrors.NewTooManyRequests("many lists are asked for now", 2)
		return
	}
	defer func() { <-a.encoding }()
	e.body, e.err = make()
}

func (a *answers) release(key string, e *shared) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.refs--; e.refs == 0 && a.made[key] == e {
		delete(a.made, key)
	}
}
