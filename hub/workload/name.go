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

// nameAlphabet is Kubernetes' alphabet for generated names, without vowels and without characters
// that are easily confused.
const nameAlphabet = "bcdfghjklmnpqrstvwxz2456789"

// maxBase leaves room for five more characters in a label of 63.
const maxBase = 58

// freeName returns an unused name: base and five characters derived from the owner, the snapshot's
// revision and a counter. The same fleet at the same revision always yields the same names.
func (p *pass) freeName(kind state.Kind, namespace, base string, owner types.UID) string {
	base = cut(base, maxBase-1) + "-"
	for ; ; p.named++ {
		h := fnv.New64a()
		h.Write([]byte(p.base.Salt + "\x00" + string(owner) + "\x00"))
		h.Write(binary.BigEndian.AppendUint64(nil, p.base.Revision))
		h.Write(binary.BigEndian.AppendUint64(nil, p.named))
		sum, name := mixBits(h.Sum64()), []byte(base)
		for range 5 {
			name = append(name, nameAlphabet[sum%uint64(len(nameAlphabet))])
			sum /= uint64(len(nameAlphabet))
		}
		k := state.Key{Kind: kind, Namespace: namespace, Name: string(name)}
		if p.given[k] || p.s.Get(k) != nil {
			continue
		}
		if p.given == nil {
			p.given = map[state.Key]bool{}
		}
		p.given[k] = true // the snapshot does not have the name yet
		p.named++
		return k.Name
	}
}

// maxName is the length limit of a name.
const maxName = 253

// hashed returns a name of base and a template's hash.
func hashed(base, hash string) string { return cut(base, maxName-1-len(hash)) + "-" + hash }

// cut shortens a name so that a suffix of room characters fits. The result never ends in a dot.
func cut(base string, room int) string {
	return strings.TrimRight(base[:min(len(base), room)], ".")
}

// mixBits spreads the last bits of a hash over all bits (the finalizer of MurmurHash3), so that
// consecutive counters yield different names.
func mixBits(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// hashOf returns the label value of a template's hash. collisions changes it after a hash
// collision.
func hashOf(template any, collisions *int32) string {
	h := fnv.New32a()
	raw, _ := json.Marshal(template)
	h.Write(raw)
	if collisions != nil {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(*collisions)))
	}
	out := []byte(strconv.FormatUint(uint64(h.Sum32()), 10))
	for i, c := range out {
		out[i] = nameAlphabet[int(c)%len(nameAlphabet)]
	}
	return string(out)
}
