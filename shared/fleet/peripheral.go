package fleet

import (
	"maps"
	"slices"
)

// A Peripheral is a named, connected device. The agent checks that it is present, and pods request
// it as flotilla.dev/<name>. The resource of its type no longer counts a named serial port or
// camera. Peripherals on the same bus or GPIO chip share the device nodes of the bus or chip.
type Peripheral struct {
	Name string `json:"name"`
	Type string `json:"type"` // one of PeripheralTypes
	// gpiochip, serial, video, codec: the device's id as flotilla-device probe prints it, with the
	// wildcards * and ?
	ByID    string `json:"byID,omitempty"`
	Bus     *int64 `json:"bus,omitempty"`     // i2c: the bus number, 1 for i2c-1
	Address int64  `json:"address,omitempty"` // i2c: the chip's address, 7 bits
	Family  string `json:"family,omitempty"`  // onewire: the first two hex digits of the chip's id
	Line    string `json:"line,omitempty"`    // gpio-in, gpio-out: the line's name
	Pull    string `json:"pull,omitempty"`    // gpio-in: one of Pulls; empty: unchanged
}

// Types of a Peripheral.
const (
	PeripheralGPIOIn  = "gpio-in"
	PeripheralGPIOOut = "gpio-out"
	PeripheralI2C     = "i2c"
	PeripheralOneWire = "onewire"
)

// PeripheralBy lists the keys that identify a peripheral of each type.
var PeripheralBy = map[string][]string{
	PeripheralGPIOIn: {"line", "pull"}, PeripheralGPIOOut: {"line"}, PeripheralI2C: {"bus", "address"},
	PeripheralOneWire: {"family"},
	"gpiochip":        {"byID"}, "serial": {"byID"}, "video": {"byID"}, "codec": {"byID"},
}

// PeripheralTypes returns the types of a Peripheral, sorted.
func PeripheralTypes() []string { return slices.Sorted(maps.Keys(PeripheralBy)) }

// Pulls are the pulls of an input line, sorted.
var Pulls = []string{"down", "none", "up"}
