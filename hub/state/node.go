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

// HasBlock tells whether a node has a pod CIDR.
func HasBlock(n *corev1.Node) bool { return n.Spec.PodCIDR != "" || len(n.Spec.PodCIDRs) > 0 }

// BlocksOf returns the valid pod CIDRs of a node.
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

// blockKey sorts blocks by family, size and address. Blocks of the same size cannot overlap and are
// consecutive in the index.
func blockKey(p netip.Prefix) string {
	b := p.Addr().AsSlice()
	return string([]byte{byte(len(b)), byte(p.Bits())}) + string(b)
}

func blockAt(key string) netip.Prefix {
	a, _ := netip.AddrFromSlice([]byte(key[2:]))
	return netip.PrefixFrom(a, int(key[1]))
}

// creationKey orders the nodes without a block, the oldest first.
func creationKey(n *corev1.Node) string {
	return n.CreationTimestamp.UTC().Format("2006-01-02T15:04:05.000000000Z")
}

// WithoutBlock walks the nodes without a pod CIDR, the oldest first, nodes of the same age by name.
func (s Snapshot) WithoutBlock() iter.Seq[*corev1.Node] { return s.indexedNodes(s.withoutBlock, "") }

// Blocks are the blocks of one size that nodes have in a range, in order.
type Blocks struct {
	t      *table[[]string]
	lo, hi int
}

// Blocks returns the blocks of a prefix length that begin in the range.
func (s Snapshot) Blocks(in netip.Prefix, bits int) Blocks {
	first := blockKey(netip.PrefixFrom(in.Masked().Addr(), bits))
	return Blocks{s.blocks, searchTable(s.blocks, func(key string) bool { return key >= first }),
		searchTable(s.blocks, func(key string) bool {
			return key >= first && !(key[:2] == first[:2] && in.Contains(blockAt(key).Addr()))
		})}
}

// Len returns the number of blocks.
func (b Blocks) Len() int { return b.hi - b.lo }

// At returns the i-th block.
func (b Blocks) At(i int) netip.Prefix {
	key, _, _ := b.t.GetAt(b.lo + i)
	return blockAt(key)
}

// searchTable returns the position of the first key for which so is true. so must be false for all
// keys before that and true for all keys after it.
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

// BlockSizes walks the prefix lengths of all blocks in the address family of a.
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

// Overlapping walks the blocks that overlap p, with the nodes that have them.
func (s Snapshot) Overlapping(p netip.Prefix) iter.Seq2[netip.Prefix, []string] {
	blocks, sizes := s.blocks, s.BlockSizes(p.Addr())
	return func(yield func(netip.Prefix, []string) bool) {
		for bits := range sizes {
			on := true
			first := netip.PrefixFrom(p.Addr(), min(bits, p.Bits())).Masked() // the larger block contains the smaller
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

// Tolerates tells whether one of the tolerations tolerates a taint. The operators Lt and Gt, alpha
// in Kubernetes, are not supported.
func Tolerates(all []corev1.Toleration, t *corev1.Taint) bool {
	return schedcorev1.TolerationsTolerateTaint(klog.Logger{}, all, t, false)
}

// Fork returns a copy of a node for its next version. Metadata, spec and conditions are copied. The
// rest of the status is shared, because only a device's report replaces it, as a whole. Full copies
// took most of the memory while a fleet started.
func Fork(n *corev1.Node) *corev1.Node {
	next := *n
	n.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
	n.Spec.DeepCopyInto(&next.Spec)
	next.Status.Conditions = slices.Clone(n.Status.Conditions)
	return &next
}

// ForkPod returns a copy of a pod for a change of its status. Metadata and conditions are copied,
// the rest is shared.
func ForkPod(p *corev1.Pod) *corev1.Pod {
	next := *p
	p.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
	next.Status.Conditions = slices.Clone(p.Status.Conditions)
	return &next
}
