package node

import (
	"time"

	"flotilla.dev/shared/wire"
)

// Vitals are how a node and its link have fared since they were taken last.
type Vitals struct {
	wire.Vitals               // what the device said; nothing of it where it said nothing new
	Silence     time.Duration // the longest between two signs of life; 0: not known
	Lost        uint64        // leases that were sent and did not arrive
}

// TakeVitals returns what has gathered of a node, and begins anew; false: no lease of it
// was heard. Between two calls a lease costs no more than two numbers.
func (d *Devices) TakeVitals(node string) (v Vitals, heard bool) {
	p := d.nodes.find(node)
	if p == nil {
		return v, false
	}
	v.Silence, v.Lost = time.Duration(p.longestSilence.Swap(0)), p.lost.Swap(0)
	fresh := p.vitalsAreNew.Swap(false)
	if said := p.vitals.Load(); fresh && said != nil {
		v.Vitals = *said
	}
	return v, fresh || v.Silence > 0
}
