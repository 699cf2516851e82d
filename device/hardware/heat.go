package hardware

import (
	"path"
	"slices"
	"strings"
)

// heat is how warm the processor is: the warmest of its sensors. Others do not count: a disk, a
// radio, or a probe on a wire may be warm and well.
func heat(t tree) Amount {
	a := Amount{Problem: "this board does not tell how warm its processor is"}
	take := func(name, file string) {
		if !isProcessor(name) {
			return
		}
		if milli, err := t.number(file); err == nil && milli > -100_000 && milli < 250_000 &&
			(a.Capacity == 0 || milli > a.Available) {
			a = Amount{Available: milli, Capacity: 250_000}
		}
	}
	for _, zone := range t.glob("/sys/class/thermal/thermal_zone*") {
		take(t.text(zone+"/type"), zone+"/temp")
	}
	for _, input := range t.glob("/sys/class/hwmon/hwmon*/temp*_input") {
		take(t.text(path.Dir(input)+"/name"), input)
	}
	return a
}

// isProcessor tells by its name whether a sensor is the processor's: cpu-thermal and soc_thermal of
// ARM boards, the drivers of Intel's and AMD's.
func isProcessor(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "cpu") || strings.Contains(name, "soc") ||
		slices.Contains([]string{"coretemp", "k10temp", "zenpower", "x86_pkg_temp", "imx_thermal_zone"}, name)
}
