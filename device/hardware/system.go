package hardware

import (
	"errors"
	"os"
	"path"
	"sort"
	"strconv"
	"strings"

	kernel "flotilla.dev/shared/clock"
)

// clock asks the kernel whether a time service adjusts it.
func clock(t tree) *Clock {
	if !t.real() {
		return nil
	}
	synced, known := kernel.Kept()
	if !known {
		return nil
	}
	c := rtc(t)
	c.Synced = synced
	return &c
}

// rtc describes the real-time clock. Only a Raspberry Pi 5 measures its battery.
func rtc(t tree) (c Clock) {
	const dir = "/sys/class/rtc/rtc0/"
	c.RTC, c.Name = t.exists(dir), t.text(dir+"name")
	if micro, err := t.number(dir + "battery_voltage"); err == nil {
		volts := float64(micro) / 1e6
		c.Battery = &volts
	}
	return c
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
	signal := map[string]int{} // dBm by interface
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
		} else if b, err := t.read(dir + "/uevent"); err == nil && strings.Contains(string(b), "DEVTYPE=wwan\n") {
			list = append(list, Radio{Name: name, Kind: "wwan"})
		}
	}
	for _, dir := range t.glob("/sys/class/bluetooth/hci*") {
		list = append(list, Radio{Name: path.Base(dir), Kind: "bluetooth"})
	}
	return few(list)
}

func audio(t tree) (list []string) {
	for _, file := range t.glob("/sys/class/sound/card*/id") {
		list = append(list, t.text(file))
	}
	return few(list)
}

// chips returns the I2C chips that the kernel knows from its configuration; it does not access the
// bus.
func chips(t tree) (list []string) {
	for _, file := range t.glob("/sys/bus/i2c/devices/[0-9]*-*/name") {
		list = append(list, path.Base(path.Dir(file))+" "+t.text(file))
	}
	return few(list)
}

// leds returns the board's LEDs, without those of keyboards.
func leds(t tree) (list []string) {
	for _, dir := range t.glob("/sys/class/leds/*") {
		if name := path.Base(dir); !strings.HasPrefix(name, "input") {
			list = append(list, clean(name))
		}
	}
	return few(list)
}

// NUMA returns the NUMA nodes of the machine with that root directory; nil if it has only one.
func NUMA(root string) []NUMANode { return numa(treeOf(Options{Root: root})) }

// Count returns a node's number of processors.
func (n NUMANode) Count() (count int64) {
	for part := range strings.SplitSeq(n.CPUs, ",") {
		first, last, several := strings.Cut(part, "-")
		a, err := strconv.ParseInt(first, 10, 32)
		if err != nil {
			continue
		}
		if b, err := strconv.ParseInt(last, 10, 32); several && err == nil && b > a {
			count += b - a
		}
		count++
	}
	return count
}

// numa returns nil if the machine has only one NUMA node.
func numa(t tree) (list []NUMANode) {
	for _, dir := range t.glob("/sys/devices/system/node/node[0-9]*") {
		id, err := strconv.Atoi(strings.TrimPrefix(path.Base(dir), "node"))
		if err != nil {
			continue
		}
		n := NUMANode{ID: id, CPUs: t.text(dir + "/cpulist")}
		if b, err := t.read(dir + "/meminfo"); err == nil {
			for line := range strings.Lines(string(b)) { // Node 0 MemTotal: 4041 kB
				if f := strings.Fields(line); len(f) == 5 && f[2] == "MemTotal:" {
					kib, _ := strconv.ParseInt(f[3], 10, 64)
					n.Memory = kib << 10
				}
			}
		}
		list = append(list, n)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].ID < list[j].ID })
	if len(list) < 2 {
		return nil
	}
	return few(list)
}

// memoryLimits reports whether the kernel can limit a container's memory. The firmware of some
// Raspberry Pis disables it.
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

// Swaps returns the swap devices and files of the machine with that root directory.
func Swaps(root string) (names []string, err error) {
	b, err := treeOf(Options{Root: root}).read("/proc/swaps")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // a kernel without swap
	}
	for line := range strings.Lines(string(b)) { // Filename Type Size Used Priority
		if f := strings.Fields(line); len(f) > 1 && f[0] != "Filename" {
			names = append(names, clean(f[0]))
		}
	}
	return few(names), err
}

// statLine returns the number of a key in a file of "key number" lines.
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
