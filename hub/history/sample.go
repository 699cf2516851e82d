package history

import "math"

// A Kind is one of the figures of a sample.
type Kind int

// The figures of a sample. A value that a device does not report is absent, never 0.
const (
	CPU         Kind = iota // used share of all processors, 0 to 1
	Memory                  // used share, 0 to 1
	Disk                    // used share of the containers' file system, 0 to 1
	Temperature             // °C, of the hottest sensor
	Supply                  // V
	Silence                 // s, the longest time between two heartbeats
	Losses                  // leases that were sent but did not arrive
	RTT                     // s, from a message to its acknowledgement
	Pods                    // pods placed on the node
	Kinds
)

// A Sample holds a node's figures in one slot.
type Sample [Kinds]float64

// Nothing returns a sample without values.
func Nothing() (s Sample) {
	for k := range s {
		s[k] = math.NaN()
	}
	return s
}

// A Word is a sample in 8 bytes. The zero word has no values.
type Word uint64

// A scale encodes a figure in some bits of a word. Code 0 means "absent"; the other codes are
// steps. A value beyond an end of the scale becomes that end.
type scale struct {
	bits        int
	from        float64 // value of code 1
	step        float64 // difference between two codes; with ratio, their quotient
	ratio       bool
	coarse      float64 // above this value a step counts eight times; 0: never
	shift, most int
}

// The scales choose the step between two codes: 0.01 of a share, 1 K, 0.42 % of a voltage, 6 % of a
// silence and 20 % of an RTT. A figure is wrong by at most half a step, within its scale.
var scales = func() (all [Kinds]scale) {
	all = [Kinds]scale{
		CPU:         {bits: 7, step: .01},
		Memory:      {bits: 7, step: .01},
		Disk:        {bits: 7, step: .01},
		Temperature: {bits: 7, from: -20, step: 1},
		Supply:      {bits: 10, from: 1, step: 1.0042, ratio: true}, // up to 72 V
		Silence:     {bits: 7, from: 1, step: 1.06, ratio: true},    // up to 25 min
		Losses:      {bits: 5, step: 1},
		RTT:         {bits: 6, from: .001, step: 1.2, ratio: true}, // up to 81 s
		Pods:        {bits: 8, step: 1, coarse: 127},               // up to 1143
	}
	shift := 0
	for k := range all {
		all[k].shift, all[k].most = shift, 1<<all[k].bits-1
		shift += all[k].bits
	}
	if shift != 64 {
		panic("history: a sample has not 64 bits")
	}
	return all
}()

func (s scale) code(v float64) uint64 {
	if math.IsNaN(v) {
		return 0
	}
	var steps float64
	switch {
	case s.ratio:
		steps = math.Log(max(v, s.from)/s.from) / math.Log(s.step)
	case s.coarse > 0 && v > s.coarse:
		steps = (s.coarse-s.from)/s.step + (v-s.coarse)/(8*s.step)
	default:
		steps = (v - s.from) / s.step
	}
	return uint64(min(max(math.Round(steps), 0), float64(s.most-1))) + 1
}

func (s scale) value(code uint64) float64 {
	steps := float64(code) - 1
	if s.ratio {
		return s.from * math.Pow(s.step, steps)
	}
	if fine := (s.coarse - s.from) / s.step; s.coarse > 0 && steps > fine {
		return s.coarse + (steps-fine)*8*s.step
	}
	return s.from + steps*s.step
}

// Pack encodes a sample.
func Pack(of Sample) (w Word) {
	for k, s := range scales {
		w |= Word(s.code(of[k]) << s.shift)
	}
	return w
}

func (w Word) code(k Kind) uint64 { return uint64(w) >> scales[k].shift & uint64(scales[k].most) }

// Value decodes a figure; false: the figure is absent.
func (w Word) Value(k Kind) (float64, bool) {
	code := w.code(k)
	if code == 0 {
		return 0, false
	}
	return scales[k].value(code), true
}

// with merges a word with a later one of the same slot: it takes the longest silence, the sum of
// losses, and otherwise the later value if present.
func (w Word) with(later Word) Word {
	for k := range Kinds {
		old, now := w.code(k), later.code(k)
		switch {
		case now == 0:
			now = old
		case old == 0:
		case k == Silence:
			now = max(now, old)
		case k == Losses:
			now = min(now+old-1, uint64(scales[k].most))
		}
		later = later&^Word(uint64(scales[k].most)<<scales[k].shift) | Word(now<<scales[k].shift)
	}
	return later
}
