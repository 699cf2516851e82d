package registry

import (
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"
)

// Limits of Peers.
const (
	peersAsked = 3              // named in one answer
	peerKept   = 24 * time.Hour // as devices keep blobs
	maxShared  = 4096           // blobs of all sites
)

// Peers remembers, in memory, which devices of a site have asked for a blob, so that later ones
// pull it from them.
type Peers struct {
	mu    sync.Mutex
	blobs map[shared][]holder
}

type shared struct{ site, digest string }

// A holder is a device that has a blob, or is pulling it.
type holder struct {
	Device
	at time.Time
}

// A Device asks for a blob.
type Device struct {
	Node, Address string // Address is where it serves its neighbours
}

// Ask returns the addresses of devices of the site from which one may pull a blob; none: it pulls it
// from the hub. usable tells whether a device may be asked. A device is only sent to those that
// asked before it, so none waits for itself.
func (p *Peers) Ask(site string, of Device, digest string, now time.Time,
	usable func(Device) bool) (addresses []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blobs == nil || len(p.blobs) >= maxShared {
		p.blobs = map[shared][]holder{}
	}
	k := shared{site, digest}
	list := slices.DeleteFunc(p.blobs[k], func(h holder) bool { return now.Sub(h.at) > peerKept })
	mine := slices.IndexFunc(list, func(h holder) bool { return h.Node == of.Node })
	if mine < 0 {
		mine = len(list)
		list = append(list, holder{of, now})
	}
	p.blobs[k] = list
	for _, h := range list[:mine] {
		if usable(h.Device) {
			addresses = append(addresses, h.Address)
		}
	}
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	return addresses[:min(len(addresses), peersAsked)]
}

// Has reports whether the registry has a blob.
func (r *Registry) Has(digest string) bool {
	if !digestPattern.MatchString(digest) {
		return false
	}
	_, err := os.Stat(r.blobPath(digest))
	return err == nil
}
