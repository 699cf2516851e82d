package watch

import (
	"sync"
	"time"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/panics"
)

// Encodings keeps the encodings of the newest changes, so that each is made once
// for all watchers that want it in the same form.
type Encodings struct {
	mu    sync.Mutex
	made  map[encodingKey]*encoding
	queue []encodingKey // oldest first
	bytes int           // of all that is encoded and kept
	old   *time.Timer

	encodings int // made in all
}

const (
	// maxKept bounds the encodings kept, in bytes: those of some thousand nodes that
	// come back at once. A watcher further behind encodes for itself.
	maxKept = 16 << 20
	// keptFor is how long nothing new may come until they are forgotten.
	keptFor = 5 * time.Second
)

type encodingKey struct {
	rev      uint64
	old      bool // the object as it was before the change
	resource *resource.Resource
	form     resource.Form
	headers  bool
}

type encoding struct {
	once sync.Once
	body []byte
	err  error
	size int // as it was counted; 0 while it is being made
}

// NewEncodings returns the encodings of one hub.
func NewEncodings() *Encodings { return &Encodings{made: map[encodingKey]*encoding{}} }

// get returns the encoding for the key, by make if it is not there.
func (f *Encodings) get(k encodingKey, make func() ([]byte, error)) ([]byte, error) {
	f.mu.Lock()
	e := f.made[k]
	if e == nil {
		e = new(encoding)
		f.encodings++
		f.made[k] = e
		f.queue = append(f.queue, k)
		f.later()
	}
	f.mu.Unlock()
	e.once.Do(func() {
		e.body, e.err = make()
		f.keep(k, e)
	})
	return e.body, e.err
}

// keep counts an encoding that was made, and forgets the oldest for it.
func (f *Encodings) keep(k encodingKey, e *encoding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made[k] != e {
		return // forgotten while it was made
	}
	e.size = len(e.body)
	f.bytes += e.size
	for f.bytes > maxKept && len(f.queue) > 1 {
		f.bytes -= f.made[f.queue[0]].size
		delete(f.made, f.queue[0])
		f.queue = f.queue[1:]
	}
}

// later forgets everything once nothing new has come for a while: the watchers have
// passed on.
func (f *Encodings) later() {
	if f.old == nil {
		f.old = time.AfterFunc(keptFor, f.forget)
		return
	}
	f.old.Reset(keptFor)
}

func (f *Encodings) forget() {
	defer panics.Catch("watch")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made, f.queue, f.bytes = map[encodingKey]*encoding{}, nil, 0
}
