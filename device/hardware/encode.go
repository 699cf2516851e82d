package hardware

import (
	"encoding/json"
	"slices"
)

// MaxReport is the largest report on the wire, in bytes.
const MaxReport = 16 << 10

// JSON encodes a report in at most MaxReport bytes: of one that is larger the
// long lists are left out, and that is said.
func (r Report) JSON() json.RawMessage {
	b := encode(r)
	if len(b) <= MaxReport {
		return b
	}
	r.Problems = append(slices.Clone(few(r.Problems)),
		"the report was too large: buses, devices, disks and sensors are left out")
	for i, p := range r.Problems {
		r.Problems[i] = clean(p)
	}
	r.Buses, r.Devices, r.Disks, r.Temperatures, r.Radios, r.ReadOnly = Buses{}, nil, nil, nil, nil, nil
	r.Fans, r.Voltages, r.NUMA, r.Audio, r.Chips = nil, nil, nil, nil, nil
	return encode(r)
}

func encode(r Report) json.RawMessage {
	b, err := json.Marshal(r)
	if err != nil { // only a not-a-number can do that
		b, _ = json.Marshal(Report{Problems: []string{"encode the report: " + err.Error()}})
	}
	return b
}
