package kube

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"golang.org/x/sync/semaphore"

	"flotilla.dev/shared/bound"
)

// What all requests together hold in memory of their bodies, in bytes, and one user's requests.
const (
	maxReading, userReading   = 32 << 20, 16 << 20
	maxDecoding, userDecoding = 80 << 20, 48 << 20

	// How long a request waits for room. What it has sent of its body stands before that of others
	// on the same HTTP/2 connection, which may be those that it waits for.
	readPatience   = time.Second
	decodePatience = 10 * time.Second
)

// A load bounds what requests hold in memory while they are read and decoded.
type load struct{ reading, decoding room }

func newLoad() *load {
	return &load{
		reading:  room{all: semaphore.NewWeighted(maxReading), each: userReading, patience: readPatience},
		decoding: room{all: semaphore.NewWeighted(maxDecoding), each: userDecoding, patience: decodePatience},
	}
}

// A room is so many bytes for all, and so many of them for each user.
type room struct {
	all      *semaphore.Weighted
	each     int64
	patience time.Duration

	mu sync.Mutex
	by map[string]*semaphore.Weighted // of users, who are few
}

func (r *room) of(user string) *semaphore.Weighted {
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

// holds takes room for a request until it ends, and waits for it for a while.
func (c *call) holds(r *room, bytes int64) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), r.patience)
	defer cancel()
	bytes = min(bytes, r.each) // what is greater than estimated still comes alone
	for _, s := range []*semaphore.Weighted{r.of(c.who.Name), r.all} {
		if s.Acquire(ctx, bytes) != nil {
			return apierrors.NewTooManyRequests("the hub reads as many bytes of requests as it has memory for: send fewer at a time, and this one again", 1)
		}
		c.held = append(c.held, func() { s.Release(bytes) })
	}
	return nil
}

// release gives back what the request holds.
func (c *call) release() {
	for _, release := range c.held {
		release()
	}
}

// cost is about how many bytes a body takes while it is decoded, merged and encoded again.
func cost(text []byte, n bound.Count, written bool) int64 {
	size := 4*len(text) + 1024*n.Objects + 64*n.Values
	if written { // YAML is a tree first, with a node for each name and value
		size += 4*len(text) + 384*n.Values
	}
	return int64(size)
}
