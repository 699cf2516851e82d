package mirror

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

// errNotKept means that a blob is too large for the cache. The engine gets it from the hub.
var errNotKept = errors.New("the blob is too large to be kept")

// errDamaged means that a neighbour sent a blob with another digest. The next try of the engine does
// not ask that neighbour.
var errDamaged = errors.New("the blob that came from other devices has another digest")

// A fetch is a blob on its way to the cache. The engine and neighbours read what has come so far.
type fetch struct {
	digest, path string
	file         *os.File

	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each change
	progress
	readers int
}

// progress is how far a fetch is.
type progress struct {
	size int64 // -1: not known yet
	have int64
	done bool
	err  error
}

// look returns the progress, and a channel that is closed at its next change.
func (f *fetch) look() (progress, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.progress, f.changed
}

// at returns the progress.
func (f *fetch) at() progress {
	p, _ := f.look()
	return p
}

func (f *fetch) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	close(f.changed)
	f.changed = make(chan struct{})
}

// release closes the file when the fetch has ended and nothing reads it.
func (f *fetch) release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers--; f.readers == 0 {
		_ = f.file.Close()
	}
}

// find returns a blob that is in the cache or being fetched, and counts one reader more. It returns
// nil if there is no such blob.
func (m *Mirror) find(digest string) *fetch {
	if f := m.cache.find(digest); f != nil {
		return f
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.fetches[digest]
	if f != nil {
		f.mu.Lock()
		f.readers++
		f.mu.Unlock()
	}
	return f
}

// serveShared serves a blob from the cache, or fetches it into the cache. It returns false if the
// cache cannot keep the blob.
func (m *Mirror) serveShared(w http.ResponseWriter, to io.Writer, q *http.Request, digest string) bool {
	f := m.find(digest)
	if f == nil {
		var err error
		if f, err = m.begin(q.URL.Path, digest); err != nil {
			m.log.Warn("an image is not shared with other devices", "err", err)
			return false
		}
	}
	return m.follow(w, to, q, f)
}

// begin starts to fetch a blob; the caller is its first reader.
func (m *Mirror) begin(path, digest string) (*fetch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.fetches[digest]; f != nil { // another request was faster
		f.mu.Lock()
		f.readers++
		f.mu.Unlock()
		return f, nil
	}
	file, err := os.OpenFile(m.cache.part(digest), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	f := &fetch{digest: digest, path: path, file: file, progress: progress{size: -1},
		changed: make(chan struct{}), readers: 2}
	m.fetches[digest] = f
	go func() {
		err := m.fetch(f)
		if err == nil {
			err = m.cache.keep(f)
		}
		if err != nil {
			_ = os.Remove(m.cache.part(digest))
		}
		m.mu.Lock()
		delete(m.fetches, digest)
		m.mu.Unlock()
		f.change(func() { f.done, f.err = err == nil, err })
		f.release()
	}()
	return f, nil
}

// follow sends what has come of a blob, as it comes. False: nothing was sent, and the blob is not
// kept.
func (m *Mirror) follow(w http.ResponseWriter, to io.Writer, q *http.Request, f *fetch) bool {
	defer f.release()
	offset, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(q.Header.Get("Range"), "bytes="), "-"), 10, 64)
	ranged := err == nil && offset > 0
	if !ranged {
		offset = 0
	}
	buffer := make([]byte, 32<<10)
	for begun := false; ; {
		now, changed := f.look()
		size, have, done, err := now.size, now.have, now.done, now.err
		switch {
		case err != nil && !begun && errors.Is(err, errNotKept):
			return false
		case err != nil && !begun:
			refuse(w, http.StatusBadGateway, "UNKNOWN", err.Error())
			return true
		case err != nil:
			panic(http.ErrAbortHandler) // the reader tries again
		case size >= 0 && !begun:
			begun = true
			if offset > size {
				refuse(w, http.StatusRequestedRangeNotSatisfiable, "UNKNOWN", "the blob is shorter")
				return true
			}
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Docker-Content-Digest", f.digest)
			w.Header().Set("Content-Length", strconv.FormatInt(size-offset, 10))
			if ranged {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", offset, size-1, size))
				w.WriteHeader(http.StatusPartialContent)
			}
		}
		if begun && offset < have {
			n, err := f.file.ReadAt(buffer[:min(int64(len(buffer)), have-offset)], offset)
			if n == 0 && err != nil {
				panic(http.ErrAbortHandler)
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return true // the reader is gone
			}
			offset += int64(n)
			continue
		}
		if done && begun {
			return true
		}
		if r, ok := w.(http.Flusher); ok && begun {
			r.Flush()
		}
		select {
		case <-changed:
		case <-q.Context().Done():
			return true
		}
	}
}

// fetch brings a blob: from neighbours that the hub names, or from the hub, and goes on where
// either broke off.
func (m *Mirror) fetch(f *fetch) error {
	sum, notFrom, used := sha256.New(), m.badPeers(), []string{}
	moved := time.Now()
	for {
		before := f.at().have
		err := m.fetchSome(f, sum, &notFrom, &used)
		now := f.at()
		size, have := now.size, now.have
		if have > before {
			moved = time.Now()
		}
		switch {
		case size >= 0 && have == size:
			if got := fmt.Sprintf("sha256:%x", sum.Sum(nil)); got != f.digest {
				m.markBad(used)
				return fmt.Errorf("%w: %s, from %s", errDamaged, got, strings.Join(append(used, "the hub"), ", "))
			}
			return nil
		case errors.Is(err, errNotKept), errors.Is(err, errRefused), time.Since(moved) > giveUp:
			return err
		case err != nil:
			time.Sleep(retryWait)
		}
	}
}

// errRefused means that the hub does not give a blob.
var errRefused = errors.New("the hub refuses it")

// fetchSome asks the hub once, and reads from where it says. A nil error may leave bytes missing.
func (m *Mirror) fetchSome(f *fetch, sum hash.Hash, notFrom, used *[]string) error {
	ctx := context.Background()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, f.path, nil)
	if err != nil {
		return err
	}
	q.Header.Set(wire.HeaderPeerPort, m.port)
	q.Header.Set(wire.HeaderNotFrom, strings.Join(*notFrom, ","))
	offset := f.at().have
	answer, err := m.ask(q, offset)
	if err != nil {
		return err
	}
	list := answer.Header.Get(wire.HeaderPeers)
	switch {
	case answer.StatusCode == http.StatusNoContent && list != "":
		_ = answer.Body.Close()
		for address := range strings.SplitSeq(list, ",") {
			offset = f.at().have
			answer, err := m.fromPeer(ctx, address, f.digest, offset)
			if err == nil {
				*used = append(*used, address)
				err = m.take(f, answer, offset, sum)
			}
			if err == nil || errors.Is(err, errNotKept) {
				return err
			}
			m.log.Info("a device of this site does not give a blob", "address", address, "err", err)
			*notFrom = append(*notFrom, address)
		}
		return nil
	case answer.StatusCode == http.StatusOK && offset == 0, answer.StatusCode == http.StatusPartialContent:
		return m.take(f, answer, offset, sum)
	case answer.StatusCode >= http.StatusInternalServerError || answer.StatusCode == http.StatusTooManyRequests:
		_ = answer.Body.Close()
		return errors.New(answer.Status)
	}
	_ = answer.Body.Close()
	return fmt.Errorf("%w: %s", errRefused, answer.Status)
}

// take appends the body of an answer.
func (m *Mirror) take(f *fetch, answer *http.Response, offset int64, sum hash.Hash) error {
	if answer.ContentLength < 0 {
		_ = answer.Body.Close()
		return errors.New("the blob comes without its length")
	}
	size := offset + answer.ContentLength
	if known := f.at().size; known >= 0 && known != size {
		_ = answer.Body.Close()
		return errors.New("the blob comes with another length")
	} else if known < 0 {
		if !m.cache.room(size) {
			_ = answer.Body.Close()
			return errNotKept
		}
		f.change(func() { f.size = size })
	}
	_, readErr, writeErr := pass(appending{f, sum}, answer.Body)
	if readErr == nil && writeErr == nil && f.at().have < size {
		readErr = io.ErrUnexpectedEOF
	}
	return errors.Join(readErr, writeErr)
}

// appending writes to a fetch.
type appending struct {
	*fetch
	sum hash.Hash
}

func (a appending) Write(p []byte) (int, error) {
	now := a.at()
	if now.have+int64(len(p)) > now.size {
		return 0, errors.New("the blob is longer than its length")
	}
	n, err := a.file.WriteAt(p, now.have)
	a.sum.Write(p[:n])
	a.change(func() { a.have += int64(n) })
	return n, err
}

// badPeers returns the neighbours that sent something else than a blob lately.
func (m *Mirror) badPeers() (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for address, until := range m.bad {
		if time.Now().Before(until) {
			all = append(all, address)
		} else {
			delete(m.bad, address)
		}
	}
	return all
}

func (m *Mirror) markBad(addresses []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range addresses {
		m.bad[a] = time.Now().Add(badTime)
	}
}
