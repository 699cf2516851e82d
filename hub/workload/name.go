package workload

import (
	"encoding/binary"
	"encoding/json"
	"hash/fnv"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// safe is Kubernetes' alphabet for generated names: no vowels, so no words, and
// nothing that is easily mistaken for something else.
const safe = "bcdfghjklmnpqrstvwxz2456789"

// maxBase leaves room for five more characters in a name of 63.
const maxBase = 58

// freeName returns a name that nothing of the kind has: base and five characters
// that follow from the owner, the snapshot's revision and a counter, so that the
// same fleet at the same revision always makes the same names.
func (p *pass) freeName(kind state.Kind, namespace, base string, owner types.UID) string {
	base = cut(base, maxBase-1) + "-"
	for ; ; p.named++ {
		h := fnv.New64a()
		h.Write([]byte(p.base.Salt + "\x00" + string(owner) + "\x00"))
		h.Write(binary.BigEndian.AppendUint64(nil, p.base.Revision))
		h.Write(binary.BigEndian.AppendUint64(nil, p.named))
		sum, name := mix(h.Sum64()), []byte(base)
		for range 5 {
			name = append(name, safe[sum%uint64(len(safe))])
			sum /= uint64(len(safe))
		}
		k := state.Key{Kind: kind, Namespace: namespace, Name: string(name)}
		if p.given[k] || p.s.Get(k) != nil {
			continue
		}
		if p.given == nil {
			p.given = map[state.Key]bool{}
		}
		p.given[k] = true // this one is not in the snapshot yet
		p.named++
		return k.Name
	}
}

// maxName is how long a name may be.
const maxName = 253

// hashed is the name of what a workload makes of its template with that hash.
func hashed(base, hash string) string { return cut(base, maxName-1-len(hash)) + "-" + hash }

// cut is the beginning of a name that more can be added to: a part of it never ends in a dot.
func cut(base string, room int) string {
	return strings.TrimRight(base[:min(len(base), room)], ".")
}

// mix spreads the last bits of a sum over all of them (the finalizer of
// MurmurHash3): counters that differ by one shall not give names that do.
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// hashOf returns the label value that stands for a template; collisions sets
// templates apart whose hashes are alike.
func hashOf(template any, collisions *int32) string {
	h := fnv.New32a()
	raw, _ := json.Marshal(template)
	h.Write(raw)
	if collisions != nil {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(*collisions)))
	}
	out := []byte(strconv.FormatUint(uint64(h.Sum32()), 10))
	for i, c := range out {
		out[i] = safe[int(c)%len(safe)]
	}
	return string(out)
}
