package registry

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"flotilla.dev/shared/fsync"
)

// An upload is a blob of which not all has arrived.
type upload struct {
	id, name string
	mu       sync.Mutex // one request at a time
	sum      hash.Hash
	size     int64
	gone     bool
	touched  time.Time // guarded by Registry.mu
}

func (r *Registry) uploadPath(u *upload) string { return r.path("uploads", u.id) }

// begin starts an upload to a repository.
func (r *Registry) begin(name string) (*upload, error) {
	r.DropIdle()
	u := &upload{id: rand.Text(), name: name, sum: sha256.New(), touched: r.Now()}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.uploads) >= maxUploads {
		return nil, refusal{http.StatusTooManyRequests, "TOOMANYREQUESTS",
			fmt.Sprintf("%d uploads are under way, as many as the hub takes at once; try again later", maxUploads)}
	}
	r.uploads[u.id] = u
	return u, nil
}

// take returns an upload, locked; the caller unlocks it.
func (r *Registry) take(name, id string) (*upload, error) {
	r.mu.Lock()
	u := r.uploads[id]
	if u != nil {
		u.touched = r.Now()
	}
	r.mu.Unlock()
	unknown := refusal{http.StatusNotFound, "BLOB_UPLOAD_UNKNOWN", "this upload has ended; push again"}
	if u == nil || u.name != name {
		return nil, unknown
	}
	if !u.mu.TryLock() {
		return nil, refusal{http.StatusConflict, "BLOB_UPLOAD_INVALID", "another request writes to this upload"}
	}
	if u.gone {
		u.mu.Unlock()
		return nil, unknown
	}
	return u, nil
}

// drop removes an upload and its bytes; u.mu is held.
func (r *Registry) drop(u *upload) {
	if u.gone {
		return
	}
	u.gone = true
	r.mu.Lock()
	delete(r.uploads, u.id)
	r.used -= u.size
	r.mu.Unlock()
	_ = os.Remove(r.uploadPath(u))
}

// DropIdle removes the uploads of clients that have gone.
func (r *Registry) DropIdle() {
	r.mu.Lock()
	var idle []*upload
	for _, u := range r.uploads {
		if r.Now().Sub(u.touched) > uploadIdle {
			idle = append(idle, u)
		}
	}
	r.mu.Unlock()
	for _, u := range idle {
		if u.mu.TryLock() { // else a request writes to it
			r.drop(u)
			u.mu.Unlock()
		}
	}
}

// receive appends a body to an upload. One that breaks off leaves nothing; u.mu is held.
func (r *Registry) receive(u *upload, body io.Reader) (err error) {
	defer func() {
		if err != nil {
			r.drop(u)
		}
	}()
	f, err := os.OpenFile(r.uploadPath(u), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, readErr := body.Read(buffer)
		if n > 0 {
			if err := r.reserve(int64(n)); err != nil {
				return err
			}
			u.size += int64(n)
			if _, err := f.Write(buffer[:n]); err != nil {
				return diskError(err)
			}
			u.sum.Write(buffer[:n])
		}
		if errors.Is(readErr, io.EOF) {
			break
		}
		if readErr != nil {
			return refusal{http.StatusBadRequest, "BLOB_UPLOAD_INVALID", "the upload broke off; push again"}
		}
	}
	r.mu.Lock()
	u.touched = r.Now()
	r.mu.Unlock()
	return diskError(f.Sync())
}

func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return full("no space is left on the hub's disk")
	}
	return err
}

// finish makes a blob of an upload; u.mu is held.
func (r *Registry) finish(u *upload, digest string) error {
	defer r.drop(u)
	if got := fmt.Sprintf("sha256:%x", u.sum.Sum(nil)); got != digest {
		return refusal{http.StatusBadRequest, "DIGEST_INVALID",
			fmt.Sprintf("the blob has the digest %s, not %s", got, digest)}
	}
	r.collecting.RLock()
	defer r.collecting.RUnlock()
	if u.size == 0 { // receive was never called
		if err := os.WriteFile(r.uploadPath(u), nil, 0o600); err != nil {
			return diskError(err)
		}
	}
	path := r.blobPath(digest)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return diskError(err)
	}
	r.mu.Lock()
	var err error
	if !r.refresh(digest) { // else the same blob came before
		if err = os.Rename(r.uploadPath(u), path); err == nil {
			u.size = 0 // its bytes are the blob's now
		}
	}
	r.mu.Unlock()
	if err != nil {
		return diskError(err)
	}
	return fsync.Dir(filepath.Dir(path))
}

// refresh tells whether a blob is there, and gives it an hour more to get a manifest.
func (r *Registry) refresh(digest string) bool {
	now := r.Now()
	return os.Chtimes(r.blobPath(digest), now, now) == nil
}
