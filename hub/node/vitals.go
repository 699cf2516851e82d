package node

import (
	"time"

	"flotilla.dev/shared/wire"
)

// Vitals are measurements of a node and its link since the last call of TakeVitals.
type Vitals struct {
	wire.Vitals               // the device's measurements; empty if it reported nothing new
	Silence     time.Duration // the longest time between two heartbeats; 0: not known
	Lost        uint64        // number of leases that were sent but did not arrive
}

// TakeVitals returns a node's measurements and resets them; false: no lease has arrived since.
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
