package hardware

import (
	"encoding/json"
	"reflect"
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
	r.Problems = append(slices.Clone(few(r.Problems)), "the report was too large: buses, devices, disks and sensors are left out")
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

// Same says that two reports differ in nothing but readings that never stand
// still: temperatures, stalls, bytes written, signal strength. A difference in
// anything else is worth telling at once.
func Same(a, b Report) bool { return reflect.DeepEqual(a.facts(), b.facts()) }

func (r Report) facts() Report {
	r.Stalls = nil
	r.Temperatures = slices.Clone(r.Temperatures)
	for i := range r.Temperatures {
		r.Temperatures[i].Celsius = 0
	}
	r.Disks = slices.Clone(r.Disks)
	for i := range r.Disks {
		r.Disks[i].Written = 0
	}
	r.Radios = slices.Clone(r.Radios)
	for i := range r.Radios {
		r.Radios[i].Signal = 0
	}
	r.Fans = slices.Clone(r.Fans)
	for i := range r.Fans {
		r.Fans[i].RPM = 0
	}
	r.Voltages = slices.Clone(r.Voltages)
	for i := range r.Voltages {
		r.Voltages[i].Volts = 0
	}
	if r.Clock != nil && r.Clock.Battery != nil {
		c := *r.Clock
		c.Battery = new(float64)
		r.Clock = &c
	}
	return r
}
