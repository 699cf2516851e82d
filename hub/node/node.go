// Package node is the hub's side of the device protocol: who may speak for a node, what
// follows from what a device says, and what a device is told.
//
// A device's words become news for package control's loop, which alone changes the
// fleet; but a lease renewal sets a few numbers and is over. What a node's device should
// run is a decider's answer like any other, and is told once it is remembered. The room
// knows no connection, which is package broker's, and decides neither about a silent
// node (package lifecycle does) nor about its pods.
package node

import (
	"crypto/ed25519"
	"encoding/json"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// A Broker reaches devices. No call waits for one.
type Broker interface {
	// Disconnect closes the session of a node, whose device may not be it any more.
	Disconnect(node string)
	Publish(node string, c wire.Channel, parts ...[]byte) error
	Request(node, id string, r wire.Request) error
}

// Config is what devices are heard and told with.
type Config struct {
	Broker        Broker // may be set later, before the loop runs
	LeaseInterval time.Duration
	Grace         time.Duration // when a silent incumbent gives way to another machine
	// Profile names the board profile that matches a hardware report, "" for none.
	Profile func(s state.Snapshot, st corev1.NodeStatus, hardware json.RawMessage) string
	// Manual: a device does not become a node by reporting; an administrator
	// creates its Node first.
	Manual bool
	// Signing is the key by which boot configurations are signed; nil: none is told.
	Signing ed25519.PrivateKey
}

// Devices are the devices of a fleet, with the loop that keeps it.
type Devices struct {
	*control.Loop
	Config
	nodes   livenesses
	desired Deliver
	ids     atomic.Uint64
	// generations of Nodes that were deleted and whose devices need no key; only the loop's goroutine
	formerGenerations map[string]int64
}

// New returns the devices of the fleet that a loop, made as l says, keeps. Which desired
// states are to be told is asked after l's deciders.
func New(c Config, l control.Config) *Devices {
	d := &Devices{Config: c, formerGenerations: map[string]int64{},
		desired: Deliver{encoded: new(sync.Map), lease: c.LeaseInterval, signing: c.Signing}}
	l.Devices, l.Follows = d, Ended
	l.Deciders = append(l.Deciders[:len(l.Deciders):len(l.Deciders)], Rematch{c.Profile}, ApplyProfile{}, d.desired)
	d.Loop = control.New(l)
	parallelEach(state.Each[*state.Record](l.Start, state.Records, ""), d.adoptRecord)
	parallelEach(l.Start.Nodes(), func(n *corev1.Node) {
		p := d.nodes.get(n.Name)
		if rec := l.Start.Record(n.Name); rec != nil {
			p.leaseIntervalPending.Store(seconds(state.WantedLease(l.Start, n.Name, c.LeaseInterval)) < rec.LeaseSeconds)
		}
		p.silent.Store(state.ReadyOf(n) == corev1.ConditionUnknown)
	})
	return d
}

// parallelEach does something with each of many, on all processors.
func parallelEach[T any](many iter.Seq[T], do func(T)) {
	var all sync.WaitGroup
	for some := range slices.Chunk(slices.Collect(many), 1000) {
		all.Go(func() {
			defer panics.Catch("start")
			for _, one := range some {
				do(one)
			}
		})
	}
	all.Wait()
}
