package hardware

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestLabelsAreMeasured(t *testing.T) {
	root := rootOf(t, map[string]string{
		"proc/cpuinfo":                     "processor : 0\nFeatures : half thumb neon aes crc32 nothing\n\nprocessor : 1\nFeatures : sve\n",
		"sys/bus/gpio/devices/gpiochip0/x": "", "dev/gpiochip0": "", "sys/class/gpio/chip0/label": "pinctrl-rp1", "sys/class/i2c-dev/i2c-10/x": "", "dev/i2c-10": "",
		"sys/class/spidev/spidev0.0/x": "", "dev/spidev0.0": "", "sys/class/net/vcan7/type": "280", "sys/class/net/wlan0/wireless/x": "",
	})
	internal := rootOf(
		t,
		map[string]string{
			"sys/bus/gpio/devices/gpiochip0/x": "",
			"dev/gpiochip0":                    "",
			"sys/class/gpio/chip0/label":       "raspberrypi-exp-gpio",
		},
	)
	if r, err := Probe(t.Context(), Options{Root: internal}); err != nil || Labels(r)["hardware.flotilla.dev/gpio"] != "" {
		t.Errorf("a board with only an internal chip has the label gpio: %v, %v", Labels(r), err)
	}
	r, err := Probe(t.Context(), Options{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	r.Host.PageSize = 16384
	labels := Labels(r)
	got := strings.ReplaceAll(strings.Join(slices.Sorted(maps.Keys(labels)), " "), "hardware.flotilla.dev/", "")
	if want := "can cpu-aes cpu-crc32 cpu-neon gpio i2c page-size spi wifi"; got != want ||
		labels["hardware.flotilla.dev/page-size"] != "16384" {
		t.Errorf("the labels are %s; want %s", got, want)
	}
}
