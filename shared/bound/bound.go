// Package bound is the one place that says how much of anything a stranger, a device,
// a file, a person or a restored database may say: sizes of quantities and numbers,
// nesting, lengths, counts, and which characters.
//
// JSON, YAML and Proto look at text before it is decoded, because decoding itself can be
// the attack: 1e-999999999 is a quantity that takes minutes to read, and 1e999999999 one
// that takes minutes to compare. They know the type that the text is for, so that an
// environment variable or an annotation may look like whatever it likes. Object looks at
// what was decoded. Text and Clean make harmless what people will read.
//
// The package refuses and never repairs, but for the two last; what an object means, and
// whether somebody may say it, is the rule of others.
package bound

// Limits of everything that comes in.
const (
	Depth     = 32      // nesting of JSON and YAML
	MaxString = 1 << 20 // bytes of one string
	MaxList   = 8192    // entries of a list that has no limit of its own
	MaxMap    = 16384   // entries of a map that has no limit of its own
	MaxNumber = 64      // characters of a number

	MaxConditions = 64
	MaxImages     = 256
	MaxAddresses  = 32
	MaxTaints     = 64
	MaxLabels     = 64
	MaxHardware   = 32 << 10 // bytes of a device's hardware report

	MaxExpanded = 4 << 20 // bytes of YAML with its aliases written out
)
