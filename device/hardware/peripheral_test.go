package hardware

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"periph.io/x/conn/v3/gpio"

	"flotilla.dev/shared/fleet"
)

func one() *int64 { n := int64(1); return &n }

// Peripherals with a driver are found through the kernel, without a child process.
func TestPeripheralsWithADriver(t *testing.T) {
	root := rootOf(t, map[string]string{
		"sys/class/i2c-dev/i2c-1/name": "bcm2835", "dev/i2c-1": "", "sys/bus/i2c/devices/1-0076/driver/x": "", "sys/bus/i2c/devices/1-0020/name": "x",
		"sys/bus/w1/devices/28-0316a2/w1_slave": "", "sys/bus/w1/devices/w1_bus_master1/x": "",
		"sys/class/tty/ttyS2/device/x": "", "sys/class/tty/ttyS2/type": "4", "dev/ttyS2": "",
	})
	two := int64(2)
	list := []fleet.Peripheral{
		{Name: "env", Type: fleet.PeripheralI2C, Bus: one(), Address: 0x76},
		{Name: "probe", Type: fleet.PeripheralOneWire, Family: "28"},
		{Name: "radio", Type: "serial", ByID: "ttyS*"},
		{Name: "elsewhere", Type: fleet.PeripheralI2C, Bus: &two, Address: 0x76},
		{Name: "cold", Type: fleet.PeripheralOneWire, Family: "10"},
		{Name: "gateway", Type: "serial", ByID: "usb-RAK*"},
		{Name: "expander", Type: fleet.PeripheralI2C, Bus: one(), Address: 0x20}, // a chip without a driver must be read itself
	}
	wants := []string{"", "", "", "bus i2c-2 not found", "family 10", "usb-RAK*", "on the board itself only"}
	found := Connected(context.Background(), Options{Root: root}, list, nil)
	p := &fleet.BoardProfile{Spec: fleet.BoardProfileSpec{Peripherals: list}}
	var connected []Device
	for i, x := range found {
		if x.Name != list[i].Name || (x.Missing == "") != (wants[i] == "") || !strings.Contains(x.Missing, wants[i]) {
			t.Errorf("got %+v, want missing %q", x, wants[i])
		}
		if x.Missing == "" && x.Device.ID != "" {
			connected = append(connected, x.Device)
		}
	}
	var got []string
	for _, r := range Resources(devices(tree(root)), p, connected...) {
		for _, d := range r.Devices {
			got = append(got, string(r.Name)+" "+d.ID+" "+strings.Join(d.Nodes, " "))
			if now, nodes, err := d.Look(); err != nil || !now.Same(d) || len(nodes) != len(d.Nodes) ||
				now.Resource != d.Resource || now.On != d.On {
				t.Errorf("Look returns for %s: %+v with nodes %v: %v", d.ID, now, nodes, err)
			}
		}
		if r.Amount() == 0 {
			got = append(got, string(r.Name)+" none")
		}
	}
	want := []string{
		"flotilla.dev/cold none",
		"flotilla.dev/elsewhere none",
		"flotilla.dev/env i2c-1/0x76 /dev/i2c-1",
		"flotilla.dev/expander none",
		"flotilla.dev/gateway none",
		"flotilla.dev/i2c-1 i2c-1 /dev/i2c-1",
		"flotilla.dev/probe 28-0316a2 ",
		"flotilla.dev/radio ttyS2 /dev/ttyS2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the resources are\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A fakeLine is a line of a chip without pull-downs.
type fakeLine struct {
	user   string
	in     []gpio.Pull
	closed bool
}

func (l *fakeLine) Consumer() string { return l.user }
func (l *fakeLine) Close()           { l.closed = true }
func (l *fakeLine) In(p gpio.Pull, _ gpio.Edge) error {
	l.in = append(l.in, p)
	if p == gpio.PullDown {
		return errors.New("invalid argument")
	}
	return nil
}

// Chips and lines are read unless a container uses their node, and no line is driven.
func TestPeripheralsThatTheChildChecks(t *testing.T) {
	for _, c := range []struct {
		rule    string
		p       fleet.Peripheral
		inUse   string
		missing string
		answer  answer // expected if the peripheral is present
		calls   string
	}{
		{"an address that answers", fleet.Peripheral{Type: "i2c", Bus: one(), Address: 0x76}, "", "", answer{Node: "/dev/i2c-1"}, "i2c"},
		{"an address that does not answer", fleet.Peripheral{Type: "i2c", Bus: one(), Address: 0x77}, "", "nothing answers at address 0x77 of i2c-1", answer{}, "i2c"},
		{"a bus that a container uses", fleet.Peripheral{Type: "i2c", Bus: one(), Address: 0x77}, "/dev/i2c-1", "", answer{Node: "/dev/i2c-1", Unasked: true}, ""},
		{"a line with its pull", fleet.Peripheral{Type: "gpio-in", Line: "GPIO17", Pull: "up"}, "", "", answer{Node: "/dev/gpiochip0"}, "PullUp"},
		{"a line without a pull", fleet.Peripheral{Type: "gpio-in", Line: "GPIO17"}, "", "", answer{Node: "/dev/gpiochip0"}, "PullNoChange"},
		{"a pull that the chip does not support", fleet.Peripheral{Type: "gpio-in", Line: "GPIO17", Pull: "down"}, "", `cannot be an input with pull "down"`, answer{}, "PullDown"},
		{"an output is not touched", fleet.Peripheral{Type: "gpio-out", Line: "GPIO17"}, "", "", answer{Node: "/dev/gpiochip0"}, ""},
		{"a line of a chip that a container uses", fleet.Peripheral{Type: "gpio-in", Line: "busy", Pull: "up"}, "/dev/gpiochip0", "", answer{Node: "/dev/gpiochip0"}, ""},
		{"a line that a driver uses", fleet.Peripheral{Type: "gpio-in", Line: "busy"}, "", "line busy is used by spi0 CS0", answer{}, ""},
		{"an unknown line", fleet.Peripheral{Type: "gpio-out", Line: "GPIO99"}, "", "line GPIO99 not found", answer{}, ""},
	} {
		var called []string
		l := &fakeLine{}
		b := buses{
			i2c: func(_, address int64) error {
				if called = append(called, "i2c"); address != 0x76 {
					return errors.New("remote I/O error")
				}
				return nil
			},
			line: func(name string) (string, line) {
				if name == "GPIO99" {
					return "", nil
				}
				if name == "busy" {
					l.user = "spi0 CS0"
				}
				return "/dev/gpiochip0", l
			},
		}
		a := b.answer(c.p, strings.Fields(c.inUse))
		for _, p := range l.in {
			called = append(called, p.String())
		}
		if len(l.in) > 0 && !l.closed {
			t.Errorf("%s: the line is not closed", c.rule)
		}
		if !strings.Contains(a.Missing, c.missing) || (a.Missing == "") != (c.missing == "") ||
			c.missing == "" && a != c.answer ||
			strings.Join(called, " ") != c.calls {
			t.Errorf("%s: %+v after the calls %q; want missing %q, calls %q", c.rule, a, called, c.missing, c.calls)
		}
	}
}

// The child answers a question about a bus and a line that this machine does not have.
func TestTheChildLooksForPeripherals(t *testing.T) {
	two := int64(250)
	var answers []answer
	err := Options{
		Periph: new(Periph),
	}.ask(context.Background(), "/",
		question{List: []fleet.Peripheral{{Type: "i2c", Bus: &two, Address: 0x50}, {Type: "gpio-in", Line: "no such line"}}},
		&answers)
	if err != nil || len(answers) != 2 || !strings.Contains(answers[0].Missing, "i2c-250") ||
		!strings.Contains(answers[1].Missing, "no such line") {
		t.Errorf("the answers are %+v, %v; want a missing bus and a missing line", answers, err)
	}
}
