// Package node is the hub's side of the device protocol: which device may act for a node, what a
// device's messages change, and what is published to a device.
//
// Messages become news for package control's loop, which alone changes the fleet. A lease renewal
// only sets a few numbers. A decider (Deliver) computes a device's desired state, which is
// published after the commit. The package has no connections; package broker has them. It decides
// neither about silent nodes (package lifecycle does) nor about their pods.
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

// A Broker reaches devices. No call blocks.
type Broker interface {
	// Disconnect closes the session of a node whose device may no longer act for it.
	Disconnect(node string)
	Publish(node string, c wire.Channel, parts ...[]byte) error
	Request(node, id string, r wire.Request) error
}

// Config holds the settings of Devices.
type Config struct {
	Broker        Broker // may be set later, before the loop runs
	LeaseInterval time.Duration
	Grace         time.Duration // silence after which another machine may replace the incumbent
	// Profile returns the name of the board profile that matches a hardware report; "": no profile
	// matches.
	Profile func(s state.Snapshot, st corev1.NodeStatus, hardware json.RawMessage) string
	// Manual: a report does not create a Node; an administrator creates it first.
	Manual bool
	// Signing signs boot configurations; nil: no boot configuration is published.
	Signing ed25519.PrivateKey
	// Mirrors are registries or repositories whose images devices pull from the hub if it has them.
	Mirrors []string
}

// Devices are the devices of a fleet, with the loop that changes the fleet.
type Devices struct {
	*control.Loop
	Config
	nodes   livenesses
	desired Deliver
	ids     atomic.Uint64
	// formerGenerations are the generations of deleted Nodes whose devices need no key. Only the
	// loop's goroutine uses them.
	formerGenerations map[string]int64
}

// New returns the devices of a fleet with its loop, made from l. The deciders of this package,
// Deliver among them, run after l's deciders.
func New(c Config, l control.Config) *Devices {
	d := &Devices{Config: c, formerGenerations: map[string]int64{},
		desired: Deliver{encoded: new(sync.Map), lease: c.LeaseInterval, signing: c.Signing}}
	if len(c.Mirrors) > 0 {
		d.desired.images = &wire.Images{Mirrors: c.Mirrors}
	}
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

// parallelEach calls do with each element, on all processors.
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
