package state

import (
	"iter"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// HasBlock tells whether a node has a block of addresses.
func HasBlock(n *corev1.Node) bool { return n.Spec.PodCIDR != "" || len(n.Spec.PodCIDRs) > 0 }

// BlocksOf returns the blocks of addresses that a node has; what cannot be read is none.
func BlocksOf(n *corev1.Node) (blocks []netip.Prefix) {
	all := n.Spec.PodCIDRs
	if len(all) == 0 && n.Spec.PodCIDR != "" {
		all = []string{n.Spec.PodCIDR}
	}
	for _, text := range all {
		if p, err := netip.ParsePrefix(text); err == nil {
			blocks = append(blocks, p.Masked())
		}
	}
	return blocks
}

// blockKey sorts blocks by family, then by size, then by address, so that those of
// one size, which cannot overlap, stand together.
func blockKey(p netip.Prefix) string {
	b := p.Addr().AsSlice()
	return string([]byte{byte(len(b)), byte(p.Bits())}) + string(b)
}

func blockAt(key string) netip.Prefix {
	a, _ := netip.AddrFromSlice([]byte(key[2:]))
	return netip.PrefixFrom(a, int(key[1]))
}

// creationKey orders the nodes without a block: the oldest first.
func creationKey(n *corev1.Node) string {
	return n.CreationTimestamp.UTC().Format("2006-01-02T15:04:05.000000000Z")
}

// WithoutBlock walks the nodes that have no block of addresses, the oldest first,
// those of one age by name.
func (s Snapshot) WithoutBlock() iter.Seq[*corev1.Node] { return s.indexedNodes(s.withoutBlock, "") }

// Blocks are all blocks of one size that nodes have in a range, in order.
type Blocks struct {
	t      *table[[]string]
	lo, hi int
}

// Blocks returns the blocks with so many leading bits that begin in the range.
func (s Snapshot) Blocks(in netip.Prefix, bits int) Blocks {
	first := blockKey(netip.PrefixFrom(in.Masked().Addr(), bits))
	return Blocks{s.blocks, searchTable(s.blocks, func(key string) bool { return key >= first }),
		searchTable(s.blocks, func(key string) bool {
			return key >= first && !(key[:2] == first[:2] && in.Contains(blockAt(key).Addr()))
		})}
}

// Len is how many there are.
func (b Blocks) Len() int { return b.hi - b.lo }

// At returns the i-th.
func (b Blocks) At(i int) netip.Prefix {
	key, _, _ := b.t.GetAt(b.lo + i)
	return blockAt(key)
}

// searchTable returns the position of the first key of a table from which on all are so.
func searchTable[V any](t *table[V], so func(string) bool) int {
	lo, hi := 0, t.Len()
	for lo < hi {
		mid := (lo + hi) / 2
		if key, _, _ := t.GetAt(mid); so(key) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// BlockSizes walks the numbers of leading bits of all blocks of an address family
// (that of a) that nodes have.
func (s Snapshot) BlockSizes(a netip.Addr) iter.Seq[int] {
	family, blocks := byte(a.BitLen()/8), s.blocks
	return func(yield func(int) bool) {
		pivot := string([]byte{family, 0})
		for {
			size := -1
			blocks.Ascend(pivot, func(key string, _ []string) bool {
				if key[0] == family {
					size = int(key[1])
				}
				return false
			})
			if size < 0 || !yield(size) || size == 255 {
				return
			}
			pivot = string([]byte{family, byte(size + 1)})
		}
	}
}

// Overlapping walks the blocks that have an address in common with p, with the
// names of the nodes that have them.
func (s Snapshot) Overlapping(p netip.Prefix) iter.Seq2[netip.Prefix, []string] {
	blocks, sizes := s.blocks, s.BlockSizes(p.Addr())
	return func(yield func(netip.Prefix, []string) bool) {
		for bits := range sizes {
			on := true
			first := netip.PrefixFrom(p.Addr(), min(bits, p.Bits())).Masked() // the larger of the two, in which the other lies
			pivot := blockKey(netip.PrefixFrom(first.Addr(), bits))
			blocks.Ascend(pivot, func(key string, holders []string) bool {
				if !strings.HasPrefix(key, pivot[:2]) {
					return false
				}
				b := blockAt(key)
				if !b.Overlaps(p) {
					return false
				}
				on = yield(b, holders)
				return on
			})
			if !on {
				return
			}
		}
	}
}

// NodeFits tells whether a node matches the nodeSelector and the required node affinity of a pod.
func NodeFits(spec *corev1.PodSpec, n *corev1.Node) bool {
	fits, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec}).Match(n)
	return err == nil && fits
}

// Tolerates tells whether one of the tolerations tolerates a taint. The operators that
// compare numbers, alpha in Kubernetes, are none of ours.
func Tolerates(all []corev1.Toleration, t *corev1.Taint) bool {
	return schedcorev1.TolerationsTolerateTaint(klog.Logger{}, all, t, false)
}

// Fork is a copy of a node to make its next version of. Metadata, spec and
// conditions are the copy's own; of the rest of its status, which only a device
// changes, and that as a whole, both share what they point to. Objects in a
// snapshot never change, and the feed keeps several versions of each: whole copies
// were most of what a starting fleet took.
func Fork(n *corev1.Node) *corev1.Node {
	next := *n
	n.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
	n.Spec.DeepCopyInto(&next.Spec)
	next.Status.Conditions = slices.Clone(n.Status.Conditions)
	return &next
}

// ForkPod is a copy of a pod to make its next version of, of which only the status is another:
// metadata and conditions are the copy's own. The rest both share; a device says it as a whole.
func ForkPod(p *corev1.Pod) *corev1.Pod {
	next := *p
	p.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
	next.Status.Conditions = slices.Clone(p.Status.Conditions)
	return &next
}
