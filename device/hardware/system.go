package hardware

import (
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// clock asks the kernel, which knows whether a time service disciplines it.
func clock(t tree) *Clock {
	if !t.real() {
		return nil
	}
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx) // modes 0: only reads
	if err != nil {
		return nil
	}
	const timeError = 5 // TIME_ERROR of adjtimex(2)
	return &Clock{Synced: state != timeError && tx.Status&unix.STA_UNSYNC == 0, RTC: t.exists("/sys/class/rtc/rtc0")}
}

func watchdog(t tree) *Watchdog {
	const dir = "/sys/class/watchdog/watchdog0/"
	if !t.exists(dir) {
		return nil
	}
	return &Watchdog{
		Identity:   t.text(dir + "identity"),
		State:      t.text(dir + "state"),
		Timeout:    int(t.integer(dir + "timeout")),
		MaxTimeout: int(t.integer(dir + "max_timeout")),
		BootStatus: int(t.integer(dir + "bootstatus")),
	}
}

func radios(t tree) []Radio {
	signal := map[string]int{} // dBm, by interface
	if b, err := t.read("/proc/net/wireless"); err == nil {
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 4 || !strings.HasSuffix(f[0], ":") {
				continue
			}
			if dbm, err := strconv.ParseFloat(f[3], 64); err == nil {
				signal[strings.TrimSuffix(f[0], ":")] = int(dbm)
			}
		}
	}
	var list []Radio
	for _, dir := range t.glob("/sys/class/net/*") {
		if name := path.Base(dir); t.exists(dir+"/wireless") || t.exists(dir+"/phy80211") {
			list = append(list, Radio{Name: name, Kind: "wifi", Signal: signal[name]})
		}
	}
	for _, dir := range t.glob("/sys/class/bluetooth/hci*") {
		list = append(list, Radio{Name: path.Base(dir), Kind: "bluetooth"})
	}
	return few(list)
}

// memoryLimits says whether the kernel can limit the memory of a container:
// the firmware of some Raspberry Pis switches that off.
func memoryLimits(t tree) bool {
	if b, err := t.read("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		for name := range strings.FieldsSeq(string(b)) {
			if name == "memory" {
				return true
			}
		}
		return false
	}
	b, err := t.read("/proc/cgroups")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) { // name, hierarchy, groups, enabled
		if f := strings.Fields(line); len(f) == 4 && f[0] == "memory" {
			return f[3] == "1"
		}
	}
	return false
}

// statLine is the number after a key in a file of "key number" lines.
func statLine(t tree, file, key string) int64 {
	b, err := t.read(file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n
		}
	}
	return 0
}
