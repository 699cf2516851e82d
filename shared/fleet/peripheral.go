package fleet

import (
	"maps"
	"slices"
)

// A Peripheral is something connected to the board that has a name of its own: the device looks
// whether it is there, and pods ask for flotilla.dev/<name>. A serial port or a camera is not
// counted with others of its type any more; what hangs on a bus or a GPIO chip comes with that,
// which others may have as well.
type Peripheral struct {
	Name string `json:"name"`
	Type string `json:"type"` // one of PeripheralTypes
	// gpiochip, serial, video, codec: the device's id, as flotilla-device probe prints it; * and ?
	// stand for any characters
	ByID    string `json:"byID,omitempty"`
	Bus     *int64 `json:"bus,omitempty"`     // i2c: its number, 1 for i2c-1
	Address int64  `json:"address,omitempty"` // i2c: of the chip, 7 bits
	Family  string `json:"family,omitempty"`  // onewire: with which the ids of such chips begin, two hex digits
	Line    string `json:"line,omitempty"`    // gpio-in, gpio-out: its name
	Pull    string `json:"pull,omitempty"`    // gpio-in: one of Pulls; empty: as it is
}

// Types of a Peripheral.
const (
	PeripheralGPIOIn  = "gpio-in"
	PeripheralGPIOOut = "gpio-out"
	PeripheralI2C     = "i2c"
	PeripheralOneWire = "onewire"
)

// PeripheralBy says by which keys a peripheral of each type is found.
var PeripheralBy = map[string][]string{
	PeripheralGPIOIn: {"line", "pull"}, PeripheralGPIOOut: {"line"}, PeripheralI2C: {"bus", "address"},
	PeripheralOneWire: {"family"},
	"gpiochip":        {"byID"}, "serial": {"byID"}, "video": {"byID"}, "codec": {"byID"},
}

// PeripheralTypes are the types of a Peripheral, sorted.
func PeripheralTypes() []string { return slices.Sorted(maps.Keys(PeripheralBy)) }

// Pulls of a line that is an input, sorted.
var Pulls = []string{"down", "none", "up"}
