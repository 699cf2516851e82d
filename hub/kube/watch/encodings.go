package watch

import (
	"sync"
	"time"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/panics"
)

// Encodings caches the encodings of the newest changes. Watches of the same form share them.
type Encodings struct {
	mu    sync.Mutex
	made  map[encodingKey]*encoding
	queue []encodingKey // oldest encoding first
	bytes int           // size of all cached encodings
	old   *time.Timer

	encodings int // number of encodings made so far, for tests
}

const (
	// maxCached limits the cache in bytes. It has room for some thousand nodes that reconnect at
	// once. A watch that is further behind does not use the cache.
	maxCached = 16 << 20
	// cacheFor is how long the cache is kept after its last addition.
	cacheFor = 5 * time.Second
)

type encodingKey struct {
	rev      uint64
	old      bool // whether the object is the one before the change
	resource *resource.Resource
	form     resource.Form
	headers  bool
}

type encoding struct {
	once sync.Once
	body []byte
	err  error
	size int // bytes that the cache counts; 0 while the encoding is being made
}

// NewEncodings returns an empty cache. A hub has one.
func NewEncodings() *Encodings { return &Encodings{made: map[encodingKey]*encoding{}} }

// get returns the cached encoding of a key, or makes it.
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
		return // it was removed while it was being made
	}
	e.size = len(e.body)
	f.bytes += e.size
	for f.bytes > maxCached && len(f.queue) > 1 {
		f.bytes -= f.made[f.queue[0]].size
		delete(f.made, f.queue[0])
		f.queue = f.queue[1:]
	}
}

// expire clears the cache when nothing was added for cacheFor. By then all watches have sent the
// changes.
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
