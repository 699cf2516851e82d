package hardware

import (
	"cmp"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// armParts are the processors of common boards. ARM's cpuinfo has only a number, and 64-bit kernels
// omit the name. The variant is listed too, since an ARM1176 (v6) reports "CPU architecture: 7".
var armParts = map[string]struct{ name, variant string }{
	"0xb76": {"ARM1176", "v6"},
	"0xc05": {"Cortex-A5", "v7"},
	"0xc07": {"Cortex-A7", "v7"},
	"0xc08": {"Cortex-A8", "v7"},
	"0xc09": {"Cortex-A9", "v7"},
	"0xc0d": {"Cortex-A17", "v7"},
	"0xc0f": {"Cortex-A15", "v7"},
	"0xd03": {"Cortex-A53", "v8"},
	"0xd04": {"Cortex-A35", "v8"},
	"0xd05": {"Cortex-A55", "v8"},
	"0xd07": {"Cortex-A57", "v8"},
	"0xd08": {"Cortex-A72", "v8"},
	"0xd09": {"Cortex-A73", "v8"},
	"0xd0a": {"Cortex-A75", "v8"},
	"0xd0b": {"Cortex-A76", "v8"},
	"0xd0d": {"Cortex-A77", "v8"},
	"0xd41": {"Cortex-A78", "v8"},
}

func host(t tree) (Host, []string) {
	h := Host{
		OS:       runtime.GOOS,
		Arch:     runtime.GOARCH,
		Hostname: hostname(t),
		Kernel:   t.text("/proc/sys/kernel/osrelease"),
		BootID:   t.text("/proc/sys/kernel/random/boot_id"),
		Image:    osImage(t),
		PageSize: pageSize(t),
	}
	h.Features = features(t)
	info := cpuinfo(t)
	if part, ok := armParts[info["CPU part"]]; ok {
		h.CPU, h.Variant = part.name, part.variant
	} else {
		h.CPU = info["model name"]
	}
	var problems []string
	id, err := MachineID(string(t))
	if err != nil {
		problems = append(problems, err.Error())
	}
	h.MachineID = id
	for _, file := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if id := t.text(file); id != "uninitialized" {
			h.OSMachineID = cmp.Or(h.OSMachineID, id)
		}
	}
	h.SystemUUID = cmp.Or(t.text("/sys/class/dmi/id/product_uuid"), serial(t), h.OSMachineID) // root only
	if h.BootID == "" {
		problems = append(problems, "read the boot id: "+t.path("/proc/sys/kernel/random/boot_id")+
			" is missing: is /proc mounted?")
	}
	return h, problems
}

func hostname(t tree) string {
	return cmp.Or(t.text("/proc/sys/kernel/hostname"), t.text("/etc/hostname"))
}

// pageSize returns the kernel's page size. For another root it reads the size from the maps of a
// process.
func pageSize(t tree) int {
	if b, err := t.read("/proc/self/smaps"); err == nil && !t.real() {
		if _, after, ok := strings.Cut(string(b), "KernelPageSize:"); ok {
			if f := strings.Fields(after); len(f) > 1 && f[1] == "kB" {
				if kib, err := strconv.Atoi(f[0]); err == nil {
					return kib << 10
				}
			}
		}
	}
	return os.Getpagesize()
}

// cpuinfo returns the first value of each key of /proc/cpuinfo.
func cpuinfo(t tree) map[string]string {
	m := map[string]string{}
	b, err := t.read("/proc/cpuinfo")
	if err != nil {
		return m
	}
	for line := range strings.Lines(string(b)) {
		k, v, ok := strings.Cut(line, ":")
		k = strings.TrimSpace(k)
		if _, seen := m[k]; ok && !seen {
			m[k] = clean(v)
		}
	}
	return m
}

// osImage returns PRETTY_NAME of os-release(5).
func osImage(t tree) string {
	for _, file := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		b, err := t.read(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME=")
			if !ok {
				continue
			}
			if unquoted, err := strconv.Unquote(v); err == nil {
				v = unquoted
			}
			return clean(strings.Trim(v, "'"))
		}
	}
	return ""
}
