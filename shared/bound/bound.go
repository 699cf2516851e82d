// Package bound limits all input: sizes of quantities and numbers, nesting, lengths, counts, and
// allowed characters.
//
// JSON, YAML and Proto check a text before it is decoded, because decoding itself can be the
// attack: 1e-999999999 is a quantity that takes minutes to parse, and 1e999999999 takes minutes to
// compare. They know the target type, so that other strings may look like a quantity. Object checks
// decoded values. Text and Clean make a text safe for readers; all other functions refuse and never
// repair. The package does not interpret objects. Hub and devices call it.
package bound

// Limits of all input.
const (
	Depth     = 32      // levels of JSON and YAML
	MaxString = 1 << 20 // bytes of one string
	MaxList   = 8192    // entries of a list without its own limit
	MaxMap    = 16384   // entries of a map without its own limit
	MaxNumber = 64      // characters of a number

	MaxConditions = 64
	MaxImages     = 256
	MaxAddresses  = 32
	MaxTaints     = 64
	MaxLabels     = 64
	MaxHardware   = 32 << 10 // bytes of a device's hardware report

	MaxExpanded = 4 << 20 // bytes of YAML with its aliases expanded
)
