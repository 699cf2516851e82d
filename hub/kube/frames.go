package kube

import "sync"

// frames keeps the encodings of the newest changes, so that each is made once
// for all watchers that want it in the same form.
type frames struct {
	mu   sync.Mutex
	made map[frameKey]*frame
	ring []frameKey // oldest first, from next on
	next int

	encodings int // made in all
}

// maxFrames bounds the encodings kept. A watcher further behind encodes for itself.
const maxFrames = 512

type frameKey struct {
	rev      uint64
	old      bool // the object as it was before the change
	resource *resource
	form     form
	headers  bool
}

type frame struct {
	once sync.Once
	body []byte
	err  error
}

func newFrames() *frames {
	return &frames{made: map[frameKey]*frame{}, ring: make([]frameKey, 0, maxFrames)}
}

// get returns the encoding for the key, by make if it is not there.
func (f *frames) get(k frameKey, make func() ([]byte, error)) ([]byte, error) {
	f.mu.Lock()
	e := f.made[k]
	if e == nil {
		e = new(frame)
		f.encodings++
		f.made[k] = e
		if len(f.ring) < maxFrames {
			f.ring = append(f.ring, k)
		} else {
			delete(f.made, f.ring[f.next])
			f.ring[f.next] = k
			f.next = (f.next + 1) % maxFrames
		}
	}
	f.mu.Unlock()
	e.once.Do(func() { e.body, e.err = make() })
	return e.body, e.err
}
