package hardware

import (
	"context"
	"fmt"
	"os"
	"slices"
)

// Probe reads everything once. It fails only if the root cannot be read; Report.Problems names
// missing parts.
func Probe(ctx context.Context, o Options) (Report, error) {
	t := treeOf(o)
	if st, err := os.Stat(string(t)); err != nil {
		return Report{}, fmt.Errorf("probe the hardware below %s: %w", t, err)
	} else if !st.IsDir() {
		return Report{}, fmt.Errorf("probe the hardware below %s: it is a file: name the directory that holds proc and sys",
			t)
	}
	var r Report
	var problems []string
	r.Host, problems = host(t)
	r.Problems = append(r.Problems, problems...)
	r.Board = board(t)
	r.Firmware = firmware(t)
	r.Capacity, problems = capacity(ctx, t, o)
	r.Problems = append(r.Problems, problems...)
	r.NUMA = numa(t)
	r.Addresses, problems = addresses(t, o, r.Host.Hostname)
	r.Problems = append(r.Problems, problems...)
	r.Devices = devices(t)
	r.Temperatures = temperatures(t)
	r.Fans, r.Voltages = fans(t), voltages(t)
	r.Power, r.Supply = power(t), supply(t)
	r.Disks = disks(t)
	r.ReadOnly = readOnlyMounts(t)
	r.Unwritable = unwritable(t, o)
	r.Watchdog = watchdog(t)
	r.Clock = clock(t)
	r.Radios = radios(t)
	r.Audio, r.Chips = audio(t), chips(t)
	r.Stalls = stalls(t)
	r.MemoryLimits = memoryLimits(t)
	if o.Periph != nil && t.real() {
		found, err := o.Periph.Read(ctx)
		if err != nil {
			r.Problems = append(r.Problems, err.Error())
		}
		r.Buses = found.Buses
		r.Devices = t.withPeriph(r.Devices, found.Devices)
		r.Temperatures = merge(r.Temperatures, found.Temperatures)
		r.Problems = append(r.Problems, found.Problems...)
	}
	if len(r.Buses.LEDs) == 0 {
		r.Buses.LEDs = leds(t)
	}
	return r, ctx.Err()
}

// merge adds the sensors that only periph reports. periph's values may be minutes old, so all other
// sensors keep the fresh values.
func merge(fresh, more []Temperature) []Temperature {
	for _, m := range more {
		if !slices.ContainsFunc(fresh, func(f Temperature) bool { return f.Name == m.Name }) {
			fresh = append(fresh, m)
		}
	}
	return few(fresh)
}
