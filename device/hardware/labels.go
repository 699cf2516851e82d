package hardware

import (
	"slices"
	"strconv"
	"strings"

	"flotilla.dev/shared/fleet"
)

// programFeatures are the processor features, of ARM and x86, that programs may require.
var programFeatures = []string{
	"neon", "vfpv3", "vfpv4", "asimd", "asimdhp", "asimddp", "atomics", "crc32", "pmull", "sha1", "sha2", "sve", "aes",
	"avx", "avx2", "avx512f", "bmi2", "f16c", "fma", "sha_ni", "sse4_1", "sse4_2", "vmx", "svm",
}

// features returns the features of the first processor.
func features(t tree) (list []string) {
	b, err := t.read("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(line, ":")
		if k = strings.TrimSpace(k); k != "flags" && k != "Features" {
			continue
		}
		for name := range strings.FieldsSeq(v) {
			if slices.Contains(programFeatures, name) {
				list = append(list, name)
			}
		}
		break
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Labels returns the measured labels for a scheduler: hardware.flotilla.dev/cpu-neon, page-size,
// gpio, i2c, spi, serial, video, codec, render, can, wifi, bluetooth and the USB devices. Each
// value is "true"; the page size is in bytes.
func Labels(r Report) map[string]string {
	labels := map[string]string{}
	add := func(key, value string) { labels[fleet.LabelHardwarePrefix+key] = value }
	if r.Host.PageSize > 0 {
		add("page-size", strconv.Itoa(r.Host.PageSize))
	}
	for _, f := range r.Host.Features {
		add("cpu-"+f, "true")
	}
	for _, d := range r.Devices {
		kind := d.Resource
		switch {
		case d.Internal:
			continue
		case kind == "gpiochip":
			kind = "gpio"
		case len(d.Nodes) == 0:
			kind = "can"
		case !strings.HasPrefix(kind, "usb-"):
			kind, _, _ = strings.Cut(strings.TrimRight(kind, "0123456789"), "-")
		}
		add(kind, "true")
	}
	for _, x := range r.Radios {
		add(x.Kind, "true")
	}
	return labels
}
