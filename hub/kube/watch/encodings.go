package watch

import (
	"sync"
	"time"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/panics"
)

// Encodings caches the encodings of the newest changes, so that watches of the same form share
// them.
type Encodings struct {
	mu    sync.Mutex
	made  map[encodingKey]*encoding
	queue []encodingKey // oldest first
	bytes int           // of all cached encodings
	old   *time.Timer

	encodings int // made so far
}

const (
	// maxCached limits the cache in bytes: enough for some thousand nodes that reconnect at once. A
	// watch that is further behind encodes for itself.
	maxCached = 16 << 20
	// cacheFor is how long the cache lives after its last addition.
	cacheFor = 5 * time.Second
)

type encodingKey struct {
	rev      uint64
	old      bool // the object before the change
	resource *resource.Resource
	form     resource.Form
	headers  bool
}

type encoding struct {
	once sync.Once
	body []byte
	err  error
	size int // its bytes in the cache's count; 0 while it is being made
}

// NewEncodings returns the encodings of one hub.
func NewEncodings() *Encodings { return &Encodings{made: map[encodingKey]*encoding{}} }

// get returns the cached encoding for the key, or calls make.
func (f *Encodings) get(k encodingKey, make func() ([]byte, error)) ([]byte, error) {
	f.mu.Lock()
	e := f.made[k]
	if e == nil {
		e = new(encoding)
		f.encodings++
		f.made[k] = e
		f.queue = append(f.queue, k)
		f.expire()
	}
	f.mu.Unlock()
	e.once.Do(func() {
		e.body, e.err = make()
		f.add(k, e)
	})
	return e.body, e.err
}

// add counts a new encoding, and removes the oldest to make room for it.
func (f *Encodings) add(k encodingKey, e *encoding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made[k] != e {
		return // removed while it was made
	}
	e.size = len(e.body)
	f.bytes += e.size
	for f.bytes > maxCached && len(f.queue) > 1 {
		f.bytes -= f.made[f.queue[0]].size
		delete(f.made, f.queue[0])
		f.queue = f.queue[1:]
	}
}

// expire clears the cache once nothing was added for cacheFor: by then the watches have sent
// everything.
func (f *Encodings) expire() {
	if f.old == nil {
		f.old = time.AfterFunc(cacheFor, f.forget)
		return
	}
	f.old.Reset(cacheFor)
}

func (f *Encodings) forget() {
	defer panics.Catch("watch")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made, f.queue, f.bytes = map[encodingKey]*encoding{}, nil, 0
}
