package hardware

import (
	"path"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
)

// temperatures reads the thermal zones and the hardware monitors; a zone that a
// monitor shows as well appears under both names.
func temperatures(t tree) []Temperature {
	var list []Temperature
	add := func(name, file string) {
		milli, err := t.number(file)
		if c := float64(milli) / 1000; err == nil && c > -100 && c < 250 { // unwired inputs report nonsense
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

// power reads what the Raspberry Pi's firmware says: eight bits of it with its
// own kernel, the under-voltage alarm with any other.
func power(t tree) *Power {
	if text := t.text("/sys/devices/platform/soc/soc:firmware/get_throttled"); text != "" {
		bits, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 32)
		if err != nil {
			return nil
		}
		bit := func(n int) bool { return bits>>n&1 == 1 }
		return &Power{
			UnderVoltage: bit(0), FrequencyCapped: bit(1), Throttled: bit(2), SoftTemperature: bit(3),
			UnderVoltageSeen: bit(16), FrequencyCappedSeen: bit(17), ThrottledSeen: bit(18), SoftTemperatureSeen: bit(19),
		}
	}
	for _, dir := range t.glob("/sys/class/hwmon/hwmon*") {
		if t.text(dir+"/name") != "rpi_volt" {
			continue
		}
		if alarm, err := t.number(dir + "/in0_lcrit_alarm"); err == nil {
			return &Power{UnderVoltage: alarm != 0, UnderVoltageSeen: alarm != 0}
		}
	}
	return nil
}

// stalls is nil where the kernel was built or started without them.
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
