package node

import (
	"time"

	"flotilla.dev/shared/wire"
)

// Vitals are measurements of a node and its link since the last call of TakeVitals.
type Vitals struct {
	wire.Vitals               // from the device; empty if it reported nothing new
	Silence     time.Duration // the longest time between two heartbeats; 0: not known
	Lost        uint64        // leases that were sent and did not arrive
}

// TakeVitals returns a node's measurements and starts new ones; false: no lease arrived. In between
// a lease costs two numbers.
func (d *Devices) TakeVitals(node string) (v Vitals, ok bool) {
	p := d.nodes.find(node)
	if p == nil {
		return v, false
	}
	v.Silence, v.Lost = time.Duration(p.longestSilence.Swap(0)), p.lost.Swap(0)
	fresh := p.vitalsAreNew.Swap(false)
	if newest := p.vitals.Load(); fresh && newest != nil {
		v.Vitals = *newest
	}
	return v, fresh || v.Silence > 0
}
