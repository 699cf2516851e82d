package body

import (
	"bytes"
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/bound"
)

// Limits in bytes of the memory for request bodies: of all requests, and of one user's requests.
const (
	maxReading, userReading   = 32 << 20, 16 << 20
	maxDecoding, userDecoding = 80 << 20, 48 << 20

	// readPatience and decodePatience limit how long a request waits for memory before it is
	// refused. A request that waits to be read blocks its HTTP/2 connection, and so other requests
	// that hold memory.
	readPatience   = time.Second
	decodePatience = 10 * time.Second
)

// A Load limits the memory that requests use while they are read and decoded.
type Load struct{ reading, decoding budget }

// NewLoad returns the limits of one hub.
func NewLoad() *Load {
	return &Load{
		reading:  budget{all: semaphore.NewWeighted(maxReading), each: userReading, patience: readPatience},
		decoding: budget{all: semaphore.NewWeighted(maxDecoding), each: userDecoding, patience: decodePatience},
	}
}

// A budget is a number of bytes for all users, with a limit for each user.
type budget struct {
	all      *semaphore.Weighted
	each     int64
	patience time.Duration

	mu sync.Mutex
	by map[string]*semaphore.Weighted // each user's share; the hub has few users
}

func (r *budget) of(user string) *semaphore.Weighted {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[string]*semaphore.Weighted{}
	}
	if r.by[user] == nil {
		r.by[user] = semaphore.NewWeighted(r.each)
	}
	return r.by[user]
}

// take reserves memory for a user until release. It waits while too little is free.
func (r *budget) take(ctx context.Context, user string, size int64) (release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	size = min(size, r.each) // a larger request needs its user's whole share
	share := r.of(user)
	if share.Acquire(ctx, size) == nil {
		if r.all.Acquire(ctx, size) == nil {
			return func() { r.all.Release(size); share.Release(size) }, nil
		}
		share.Release(size)
	}
	return nil, apierrors.NewTooManyRequests(
		"the hub has too little free memory for this request: send fewer large requests at once, and try again", 1)
}

// cost estimates the memory for decoding, merging and encoding a body.
func cost(text []byte, n bound.Count, isYAML bool) int64 {
	size := 4*len(text) + 1024*n.Objects + 64*n.Values
	if isYAML { // YAML is first decoded into a tree with a node for each name and value
		size += 4*len(text) + 384*n.Values
	}
	return int64(size)
}

// patchCost estimates the additional memory for a patch. The object is encoded, patched and
// decoded. A JSON patch may copy its own copies, up to the size of a body.
func patchCost(patch []byte, media string, live int) int64 {
	size := 8 * int64(live)
	// the word copy may be written with escapes
	copies := bytes.Contains(patch, []byte("copy")) || bytes.IndexByte(patch, '\\') >= 0
	if copies && media == string(types.JSONPatchType) {
		size += 4 * MaxBody
	}
	return size
}
