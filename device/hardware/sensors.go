package hardware

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// temperatures reads thermal zones and hardware monitors; a zone with a monitor appears under both
// names.
func temperatures(t tree) []Temperature {
	var list []Temperature
	add := func(name, file string) {
		milli, err := t.number(file)
		if c := float64(milli) / 1000; err == nil && c > -100 && c < 250 { // an input without a sensor returns nonsense
			list = append(list, Temperature{Name: name, Celsius: c})
		}
	}
	for _, zone := range t.glob("/sys/class/thermal/thermal_zone*") {
		name := t.text(zone + "/type")
		if name == "" {
			name = path.Base(zone)
		}
		add(name, zone+"/temp")
	}
	for _, input := range t.glob("/sys/class/hwmon/hwmon*/temp*_input") {
		name := t.text(path.Dir(input) + "/name")
		if label := t.text(strings.TrimSuffix(input, "_input") + "_label"); label != "" {
			name += " " + label
		}
		add(name, input)
	}
	return few(list)
}

// monitored reads the inputs of one kind of all hardware monitors.
func monitored(t tree, kind string, add func(name string, value int64)) {
	for _, input := range t.glob("/sys/class/hwmon/hwmon*/" + kind + "*_input") {
		name := t.text(path.Dir(input) + "/name")
		if label := t.text(strings.TrimSuffix(input, "_input") + "_label"); label != "" {
			name += " " + label
		} else if n := strings.TrimSuffix(path.Base(input), "_input"); n != kind+"1" {
			name += " " + n
		}
		if v, err := t.number(input); err == nil {
			add(clean(name), v)
		}
	}
}

func fans(t tree) (list []Fan) {
	monitored(t, "fan", func(name string, rpm int64) { list = append(list, Fan{Name: name, RPM: rpm}) })
	return few(list)
}

func voltages(t tree) (list []Voltage) {
	monitored(t, "in", func(name string, milli int64) {
		list = append(list, Voltage{Name: name, Volts: float64(milli) / 1000})
	})
	return few(list)
}

// throttled returns the firmware's throttling bits. The path depends on the chip, and only the
// maker's kernels have the file.
func throttled(t tree) string {
	for _, pattern := range []string{"/sys/bus/platform/drivers/raspberrypi-firmware/*/get_throttled",
		"/sys/devices/platform/soc*/soc*:firmware/get_throttled"} {
		for _, file := range t.glob(pattern) {
			if text := t.text(file); text != "" {
				return text
			}
		}
	}
	return ""
}

// power reads eight bits of a Raspberry Pi's firmware (with the maker's kernel) and the kernel's
// low-voltage alarm. If they disagree, the worse value counts and the message names both.
func power(t tree) *Power {
	const firmware, monitor = "get_throttled", "in0_lcrit_alarm of rpi_volt"
	var p *Power
	if bits, err := strconv.ParseUint(strings.TrimPrefix(throttled(t), "0x"), 16, 32); err == nil {
		bit := func(n int) bool { return bits>>n&1 == 1 }
		p = &Power{
			UnderVoltage: bit(0), FrequencyCapped: bit(1), Throttled: bit(2), SoftTemperature: bit(3),
			UnderVoltageSeen: bit(16), FrequencyCappedSeen: bit(17), ThrottledSeen: bit(18), SoftTemperatureSeen: bit(19),
		}
	}
	for _, dir := range t.glob("/sys/class/hwmon/hwmon*") {
		alarm, err := t.number(dir + "/in0_lcrit_alarm")
		if t.text(dir+"/name") != "rpi_volt" || err != nil {
			continue
		}
		switch low := alarm != 0; {
		case p == nil:
			p = &Power{UnderVoltage: low, UnderVoltageSeen: low}
		case low && !p.UnderVoltage:
			p.UnderVoltage, p.UnderVoltageSeen, p.doubted = true, true, monitor+" reports low voltage, "+firmware+" does not"
		case !low && p.UnderVoltage:
			p.doubted = firmware + " reports low voltage, " + monitor + " does not"
		}
		return p
	}
	return p
}

// stalls returns the pressure-stall information, or nil if the kernel does not measure it.
func stalls(t tree) *Stalls {
	fs, err := procfs.NewFS(t.path("/proc"))
	if err != nil {
		return nil
	}
	var s Stalls
	for name, stall := range map[string]*Stall{"cpu": &s.CPU, "memory": &s.Memory, "io": &s.IO} {
		psi, err := fs.PSIStatsForResource(name)
		if err != nil {
			return nil
		}
		if psi.Some != nil {
			stall.Some10, stall.Some60 = psi.Some.Avg10, psi.Some.Avg60
		}
		if psi.Full != nil {
			stall.Full10, stall.Full60 = psi.Full.Avg10, psi.Full.Avg60
		}
	}
	return &s
}

// processorTemperature returns the temperature of the processor's warmest sensor. Other sensors do
// not count: a disk, a radio or an external probe may be warm without harm.
func processorTemperature(t tree) Amount {
	a := Amount{Problem: "this board does not report its processor's temperature"}
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

// isProcessor reports whether a sensor's name is that of a processor: cpu-thermal or soc_thermal on
// ARM boards, or a driver of Intel or AMD.
func isProcessor(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "cpu") || strings.Contains(name, "soc") ||
		slices.Contains([]string{"coretemp", "k10temp", "zenpower", "x86_pkg_temp", "imx_thermal_zone"}, name)
}
