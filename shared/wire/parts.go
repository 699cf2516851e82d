package wire

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
)

// PackPods encodes a list of pods for the hub in one message, or in parts if it is too long.
// entries are its encoded pods; p.Pods is ignored.
func PackPods(p Pods, entries []json.RawMessage) ([][]byte, error) {
	type list struct {
		Pods
		Entries []json.RawMessage `json:"pods"`
	}
	encode := func(lo, hi, part, parts int) ([]byte, error) {
		out := list{p, entries[lo:hi:hi]}
		out.Part, out.Parts = part, parts
		if out.Entries == nil {
			out.Entries = []json.RawMessage{}
		}
		return json.Marshal(out)
	}
	text, err := encode(0, len(entries), 0, 0)
	if err != nil || len(text) <= worthwhile {
		return [][]byte{text}, err
	}
	return inParts(len(entries), packing{most: MaxUnpacked, packed: smallPart}, encode)
}

// PackDesired encodes a desired state that exceeds MaxFromDevice bytes as gzip, and in parts if the
// gzip is too long. A part with one object that gzip does not shorten is sent uncompressed.
func PackDesired(d Desired) ([][]byte, error) {
	pods, maps, secrets := len(d.Pods), len(d.ConfigMaps), len(d.Secrets)
	total := 0
	payloads, err := inParts(pods+maps+secrets, packing{MaxToDevice, MaxFromDevice, MaxToDevice},
		func(lo, hi, part, parts int) ([]byte, error) {
			p := d
			p.Part, p.Parts = part, parts
			p.Pods = within(d.Pods, lo, hi)
			p.ConfigMaps = within(d.ConfigMaps, lo-pods, hi-pods)
			p.Secrets = within(d.Secrets, lo-pods-maps, hi-pods-maps)
			text, err := json.Marshal(p)
			total = max(total, len(text))
			return text, err
		})
	if err == nil && total > MaxDesired {
		err = fmt.Errorf("it has %d bytes, at most %d are read", total, MaxDesired)
	}
	return payloads, err
}

// headBytes is how much of a desired state's text DesiredHead parses.
const headBytes = 1 << 10

// DesiredHead parses only the first fields of a payload: hub, generation, part and parts. It
// returns false if the payload begins with other fields, which no known hub writes.
func DesiredHead(payload []byte) (head Desired, known bool) {
	var text io.Reader = bytes.NewReader(payload)
	if Packed(payload) {
		var err error
		if text, err = gzip.NewReader(text); err != nil {
			return Desired{}, false
		}
	}
	d := json.NewDecoder(io.LimitReader(text, headBytes))
	if begin, err := d.Token(); err != nil || begin != json.Delim('{') {
		return Desired{}, false
	}
	for {
		name, err := d.Token()
		switch {
		case err != nil:
		case name == "generation":
			err = d.Decode(&head.Generation)
		case name == "hub":
			err = d.Decode(&head.Hub)
		case name == "part":
			err = d.Decode(&head.Part)
		case name == "parts":
			err = d.Decode(&head.Parts)
		default:
			return head, head.Hub != ""
		}
		if err != nil {
			return Desired{}, false
		}
	}
}

// within returns the part of a list between two indexes. The indexes may be out of range.
func within[T any](list []T, lo, hi int) []T {
	lo, hi = min(max(lo, 0), len(list)), min(max(hi, 0), len(list))
	return append([]T{}, list[lo:hi]...)
}

// DesiredParts collects the parts of a desired state. Repeated parts fill gaps.
type DesiredParts struct {
	of   Desired // the common fields of the parts
	have [MaxParts]*Desired
	size int // total bytes of text
}

// Add adds a payload parsed by ParseDesired, and returns the whole desired state once it is
// complete. A part of another desired state replaces the earlier parts.
func (p *DesiredParts) Add(d Desired, payload []byte) (whole Desired, ok bool, err error) {
	if d.Parts <= 1 {
		*p = DesiredParts{}
		return d, true, nil
	}
	if d.Hub != p.of.Hub || d.Generation != p.of.Generation || d.Parts != p.of.Parts {
		*p = DesiredParts{of: Desired{Hub: d.Hub, Generation: d.Generation, Parts: d.Parts}}
	}
	if p.have[d.Part-1] == nil {
		p.size += TextSize(payload)
	}
	if p.size > MaxDesired {
		*p = DesiredParts{}
		return Desired{}, false, fmt.Errorf("desired: its parts have more than %d bytes when unpacked", MaxDesired)
	}
	p.have[d.Part-1] = &d
	for _, part := range p.have[:d.Parts] {
		if part == nil {
			return Desired{}, false, nil
		}
	}
	whole = d
	whole.Part, whole.Parts = 0, 0
	whole.Pods, whole.ConfigMaps, whole.Secrets = []corev1.Pod{}, []corev1.ConfigMap{}, []corev1.Secret{}
	for _, part := range p.have[:d.Parts] {
		whole.Pods = append(whole.Pods, part.Pods...)
		whole.ConfigMaps = append(whole.ConfigMaps, part.ConfigMaps...)
		whole.Secrets = append(whole.Secrets, part.Secrets...)
	}
	*p = DesiredParts{}
	return whole, true, nil
}
