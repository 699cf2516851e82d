package hardware

import (
	"testing"

	"flotilla.dev/shared/fleet"
)

// Pods can request the header's lines and the buses that periph has found, completed from /sys.
func TestPeriphsDevicesAreOffered(t *testing.T) {
	bus, port := &Device{
		Resource: "i2c-1",
		ID:       "i2c-1",
		Nodes:    []string{"/dev/i2c-1"},
	}, &Device{
		Resource: "spi0",
		ID:       "spi0",
		Nodes:    []string{"/dev/spidev0.0", "/dev/spidev0.1"},
	}
	header := &Device{Resource: "gpiochip", ID: "pinctrl-rp1", Nodes: []string{"/dev/gpiochip0"}}
	for _, c := range []struct {
		rule  string
		sys   map[string]string
		found []*Device
		want  string
	}{
		{"devices that only periph reports", map[string]string{"dev/i2c-1": "", "dev/spidev0.0": "", "dev/spidev0.1": "", "dev/gpiochip0": ""}, []*Device{bus, port, header},
			"gpiochip pinctrl-rp1 /dev/gpiochip0; i2c-1 i2c-1 /dev/i2c-1; spi0 spi0 /dev/spidev0.0 /dev/spidev0.1"},
		{"a bus that both periph and /sys report", map[string]string{"dev/i2c-1": "", "sys/class/i2c-dev/i2c-1/name": "bcm2835"}, []*Device{bus}, "i2c-1 i2c-1 /dev/i2c-1"},
		{"a bus that only /sys reports", map[string]string{"dev/i2c-1": "", "sys/class/i2c-dev/i2c-1/name": "bcm2835"}, nil, "i2c-1 i2c-1 /dev/i2c-1"},
		{"a device that was unplugged after periph's run", nil, []*Device{bus}, ""},
		{"an internal chip is not offered", map[string]string{"dev/gpiochip1": ""}, []*Device{{Resource: "gpiochip", ID: "raspberrypi-exp-gpio", Nodes: []string{"/dev/gpiochip1"}}}, ""},
	} {
		root := tree(rootOf(t, c.sys))
		list := root.withPeriph(devices(root), c.found)
		var got []Device
		for _, r := range Resources(list, nil) {
			got = append(got, r.Devices...)
		}
		if describe(got) != c.want {
			t.Errorf("%s: %s; want %s", c.rule, describe(got), c.want)
		}
		for _, d := range got {
			if now, nodes, err := d.Look(); err != nil || !now.Same(d) || len(nodes) != len(d.Nodes) {
				t.Errorf("%s: Look returns for %s: %+v, %v", c.rule, d.ID, now, err)
			}
		}
	}
}

// Probe and Connected use periph's result.
func TestABusThatOnlyPeriphReports(t *testing.T) {
	o := Options{Periph: &Periph{args: []string{"child-finds"}}}
	r, err := Probe(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if got := offered(Resources(r.Devices, nil), "i2c-77"); got != "i2c-77 i2c-77 /dev/null" {
		t.Errorf("the bus that periph found is %q among %s", got, describe(r.Devices))
	}
	bus := int64(77)
	if found := Connected(t.Context(), o, []fleet.Peripheral{{Name: "env", Type: fleet.PeripheralI2C, Bus: &bus,
		Address: 0x76}}, nil); len(found) != 1 || found[0].Missing == "" {
		t.Errorf("the peripheral is %+v, want it missing", found)
	} else if text := found[0].Missing; text == "bus i2c-77 not found: switch it on (on a Raspberry Pi dtparam=i2c_arm=on), and load i2c-dev" {
		t.Errorf("the bus that periph found counts as missing: %s", text)
	}
}
