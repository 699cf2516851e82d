package agent

import (
	"math"
	"slices"
	"strings"
	"time"

	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/wire"
)

// vitalsTime is how often the figures that the hub keeps are made: a status without a
// change comes no sooner. Nothing is measured for them that is not measured anyway.
const vitalsTime = 150 * time.Second

// A vital is what the next figures are made from.
type vital struct {
	at    time.Time // zero: nothing has been measured
	stats hardware.Stats
}

// vitalsOf are the figures at a moment; the processors' are since the one before. What
// the board does not tell is absent.
func vitalsOf(before, now vital, r *hardware.Report) *wire.Vitals {
	var v wire.Vitals
	figure := func(f float64) *float64 {
		f = math.Round(f*1000) / 1000
		return &f
	}
	used := func(a hardware.Amount) *float64 {
		if a.Problem != "" || a.Capacity <= 0 {
			return nil
		}
		return figure(min(max(1-float64(a.Available)/float64(a.Capacity), 0), 1))
	}
	v.Memory, v.Disk = used(now.stats.Memory), used(now.stats.ImageFs)
	if r == nil {
		return &v
	}
	if all := now.at.Sub(before.at) * time.Duration(r.Capacity.CPUs); !before.at.IsZero() && all > 0 && before.stats.Busy > 0 && now.stats.Busy >= before.stats.Busy {
		v.CPU = figure(min(float64(now.stats.Busy-before.stats.Busy)/float64(all), 1))
	}
	for _, t := range r.Temperatures {
		if v.Temperature == nil || t.Celsius > *v.Temperature {
			v.Temperature = figure(t.Celsius)
		}
	}
	if i := slices.IndexFunc(r.Voltages, func(x hardware.Voltage) bool { return supplies(x.Name) }); i >= 0 {
		v.Supply = figure(r.Voltages[i].Volts)
	}
	return &v
}

// supplies tells by its name whether an input of a hardware monitor is the board's
// supply: the bus voltage of a power monitor such as an INA226, or what is labelled so.
// Most inputs are other things.
func supplies(name string) bool {
	name = strings.ToLower(name)
	if chip, ok := strings.CutPrefix(name, "ina2"); ok && len(chip) == 2 {
		return true
	}
	return slices.ContainsFunc(strings.Fields(name), func(word string) bool {
		switch word {
		case "vin", "vbus", "vsys", "supply", "ext5v", "ext5v_v", "+5v", "+12v", "+24v":
			return true
		}
		return false
	})
}

// takeVitals makes the figures when it is time to.
func (a *Agent) takeVitals(now time.Time) {
	l := &a.loop
	if l.report == nil || now.Sub(l.vital.at) < vitalsTime {
		return
	}
	next := vital{now, l.stats}
	v := vitalsOf(l.vital, next, l.report)
	l.vital = next
	a.told.Lock()
	defer a.told.Unlock()
	a.told.vitals = v
}
