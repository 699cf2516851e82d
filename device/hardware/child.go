package hardware

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"periph.io/x/conn/v3/gpio/gpioreg"
	"periph.io/x/conn/v3/i2c/i2creg"
	"periph.io/x/conn/v3/onewire/onewirereg"
	"periph.io/x/conn/v3/physic"
	"periph.io/x/conn/v3/spi/spireg"
	periph "periph.io/x/host/v3"
	"periph.io/x/host/v3/gpioioctl"
	"periph.io/x/host/v3/sysfs"
)

// ChildCommand is the hidden command with which Periph runs the device program as its child. The
// program must then call RunChild.
const ChildCommand = "hwprobe"

const childLimit = 5 * time.Second

// Found is the result of periph.
type Found struct {
	Buses        Buses         `json:"buses"`
	Temperatures []Temperature `json:"temperatures,omitempty"`
	Problems     []string      `json:"problems,omitempty"`
	Devices      []*Device     `json:"devices,omitempty"` // buses and GPIO chips for pods
}

// RunChild runs periph and writes a Found to w; with a question it looks for peripherals instead.
// periph's drivers may hang or panic in their own goroutines, so the agent only runs it as a child
// process. RunChild exits after 5 s even if the agent is gone.
func RunChild(w io.Writer, questions ...string) error {
	time.AfterFunc(childLimit, func() { os.Exit(3) })
	state, err := periph.Init()
	if err != nil {
		return fmt.Errorf("start periph's drivers: %w", err)
	}
	if len(questions) == 1 {
		return answerQuestion(w, questions[0])
	}
	var f Found
	for _, fail := range state.Failed {
		f.Problems = append(f.Problems, clean(fmt.Sprintf("periph driver %s: %v", fail.D, fail.Err)))
	}
	for _, pin := range gpioreg.All() {
		f.Buses.GPIO = append(f.Buses.GPIO, clean(pin.Name()))
	}
	s := &search{t: "/"}
	for _, c := range gpioioctl.Chips {
		s.add("gpiochip", clean(c.Label()), c.Path(), "")
	}
	for _, ref := range i2creg.All() {
		f.Buses.I2C = append(f.Buses.I2C, clean(ref.Name))
		if bus := path.Base(ref.Name); strings.HasPrefix(ref.Name, "/dev/i2c-") {
			s.add(bus, bus, ref.Name, "")
		}
	}
	for _, ref := range spireg.All() {
		f.Buses.SPI = append(f.Buses.SPI, clean(ref.Name))
		if bus := spiBus(ref.Name); strings.HasPrefix(ref.Name, "/dev/spidev") {
			s.join(bus, bus, ref.Name, "")
		}
	}
	for _, ref := range onewirereg.All() {
		f.Buses.OneWire = append(f.Buses.OneWire, clean(ref.Name))
	}
	for _, led := range sysfs.LEDs {
		f.Buses.LEDs = append(f.Buses.LEDs, clean(led.String()))
	}
	warm := map[string]float64{}
	for _, s := range sysfs.ThermalSensors {
		var e physic.Env
		if s.Sense(&e) == nil {
			warm[clean(s.Type())] = e.Temperature.Celsius()
		}
	}
	for _, name := range slices.Sorted(maps.Keys(warm)) {
		f.Temperatures = append(f.Temperatures, Temperature{Name: name, Celsius: warm[name]})
	}
	f.Devices = few(s.list)
	for _, list := range []*[]string{&f.Buses.GPIO, &f.Buses.I2C, &f.Buses.SPI, &f.Buses.OneWire, &f.Buses.LEDs,
		&f.Problems} {
		*list = few(*list)
	}
	if err := json.NewEncoder(w).Encode(f); err != nil {
		return fmt.Errorf("write the result of periph: %w", err)
	}
	return nil
}
