package address

import "net/netip"

// size returns the number of blocks of the range.
func (d Decider) size() int { return 1 << (d.Bits - d.Cluster.Bits()) }

// span returns the numbers of the blocks that a prefix overlaps: first, and the number after the
// last.
func (d Decider) span(p netip.Prefix) (first, end int) {
	switch {
	case !p.Overlaps(d.Cluster):
		return 0, 0
	case p.Bits() <= d.Cluster.Bits():
		return 0, d.size()
	}
	first = d.number(p.Addr())
	return first, first + 1<<max(d.Bits-p.Bits(), 0)
}

// offset returns where the bits of an address begin in its 16-byte form.
func (d Decider) offset() int {
	if d.Cluster.Addr().Is4() {
		return 96
	}
	return 0
}

// number returns the number of the block that contains an address of the range, which is in the
// bits between the range's prefix and the block's.
func (d Decider) number(a netip.Addr) (i int) {
	b, at := a.As16(), d.offset()
	for bit := at + d.Cluster.Bits(); bit < at+d.Bits; bit++ {
		i = i<<1 | int(b[bit/8]>>(7-bit%8)&1)
	}
	return i
}

// block returns the block with a number.
func (d Decider) block(i int) netip.Prefix {
	b, at := d.Cluster.Masked().Addr().As16(), d.offset()
	for bit := at + d.Bits - 1; bit >= at+d.Cluster.Bits(); bit-- {
		b[bit/8] |= byte(i&1) << (7 - bit%8)
		i >>= 1
	}
	a := netip.AddrFrom16(b)
	if d.Cluster.Addr().Is4() {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, d.Bits)
}
