package kube

import (
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flotilla.dev/hub/panics"
)

// Limits of encoded answers that clients have not read yet.
const (
	maxUnread  = 96 << 20 // bytes of all users
	userUnread = 32 << 20 // bytes of one user, except that a single answer may be larger
	// Small answers are not counted, because the limit of connections bounds their number.
	smallAnswer = 16 << 10
	// encoders is the number of lists that are encoded at a time. encoderWait is how long a request
	// waits for its turn.
	encoders    = 2
	encoderWait = 10 * time.Second
	// shareFor is how long an encoded list serves further requests for the same list. The ages and
	// heartbeats in the list may be outdated by that time.
	shareFor = time.Second
)

// answers bounds the memory of answers in progress. Requests for the same list share an encoding
// while it is made, and for up to shareFor while another client still reads it.
type answers struct {
	encoding chan struct{}

	mu   sync.Mutex
	all  int // bytes of all users
	by   map[string]int
	made map[string]*shared

	encodings int // number of encodings made so far, for tests
}

// A shared is an encoding that exists while at least one client reads it.
type shared struct {
	at      time.Time
	done    chan struct{} // closed when body and err are set
	body    []byte
	err     error
	refs    int
	readers map[string]int // number of answers in progress by user
}

func newAnswers() *answers {
	return &answers{encoding: make(chan struct{}, encoders), by: map[string]int{}, made: map[string]*shared{}}
}

// hold counts n bytes for a user until release. It refuses them over a limit.
func (a *answers) hold(user string, n int) (release func(), err error) {
	if n <= smallAnswer {
		return func() {}, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if have := a.by[user]; have > 0 && have+n > userUnread || a.all > 0 && a.all+n > maxUnread {
		return nil, errUnread(user)
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

func errUnread(user string) error {
	return apierrors.NewTooManyRequests(fmt.Sprintf(
		"too many unread answers: over %d MiB of user %s, or over %d MiB of all users; read them, or use limit "+
			"to list in pages",
		userUnread>>20, user, maxUnread>>20), 2)
}

// share returns the shared encoding of a list, or makes it. The caller calls release when the body
// is sent.
func (a *answers) share(user, key string, make func() ([]byte, error)) (body []byte, release func(), err error) {
	a.mu.Lock()
	e := a.made[key]
	mustMake := e == nil || time.Since(e.at) > shareFor
	if mustMake {
		if a.by[user] > userUnread {
			a.mu.Unlock()
			return nil, nil, errUnread(user)
		}
		e = newShared()
		a.made[key] = e
		a.encodings++
	}
	e.refs++
	a.mu.Unlock()
	if mustMake {
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

// take counts an encoding for a reader: once for all users, and once for each user. It refuses only
// a user who is over the limit.
func (a *answers) take(user string, e *shared) error {
	n := e.counts()
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.readers[user] == 0 {
		if have := a.by[user]; n > 0 &&
			(have > 0 && have+n > userUnread || len(e.readers) == 0 && a.all > 0 && a.all+n > maxUnread) {
			return errUnread(user)
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

// counts returns how many bytes an encoding counts.
func (e *shared) counts() int {
	if len(e.body) <= smallAnswer {
		return 0
	}
	return len(e.body)
}

func (a *answers) encode(e *shared, make func() ([]byte, error)) {
	defer close(e.done)
	defer panics.CatchThen("list", func(err error) { e.err = err })
	timeout := time.NewTimer(encoderWait)
	defer timeout.Stop()
	select {
	case a.encoding <- struct{}{}:
	case <-timeout.C:
		e.err = apierrors.NewTooManyRequests("too many list requests at once", 2)
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
