package hardware

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/shared/fleet"
)

// Write prints a report for users, one fact per line.
func (r Report) Write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		if text := strings.TrimSpace(fmt.Sprintf(format, args...)); text != "" {
			fmt.Fprintf(tw, "%s\t%s\n", name, text)
		}
	}
	line("board", "%s (%s)", cmp.Or(r.Board.Model, "unknown"), r.Board.Name)
	line("compatible", "%s", strings.Join(r.Board.Compatible, " "))
	if v := r.Board.Revision; v != nil {
		parts := slices.DeleteFunc([]string{v.Code, v.Type, v.Processor, v.Manufacturer}, func(s string) bool {
			return s == ""
		})
		line("revision", "%s", strings.Join(parts, ", "))
	}
	line("serial", "%s", r.Board.Serial)
	if f := r.Firmware; f != nil {
		line("firmware", "%s", join(", ", f.Version, f.Built, f.Image, when(f.BootMode != "", "booted from "+f.BootMode),
			when(f.Tryboot, "a try")))
		line("last reset", "%s%s", f.Reset, when(f.Reset == "" && f.ResetStatus != "", "status "+f.ResetStatus))
	}
	line("processor", "%d × %s, %s/%s %s", r.Capacity.CPUs, cmp.Or(r.Host.CPU, "unknown"), r.Host.OS, r.Host.Arch,
		r.Host.Variant)
	line("memory", "%s, swap %s%s", size(r.Capacity.Memory), size(r.Capacity.Swap),
		when(!r.MemoryLimits, ", the kernel does not limit containers"))
	for _, n := range r.NUMA {
		line("numa node", "%d: processors %s, %s", n.ID, n.CPUs, size(n.Memory))
	}
	line("page size", "%s", size(int64(r.Host.PageSize)))
	line("storage", "%s for containers", size(r.Capacity.Ephemeral))
	line("system", "%s, kernel %s", cmp.Or(r.Host.Image, "unknown"), cmp.Or(r.Host.Kernel, "unknown"))
	line("machine id", "%s", r.Host.MachineID)
	for _, a := range r.Addresses {
		line("address", "%s %s", a.Address, a.Type)
	}
	for _, d := range r.Disks {
		life := when(d.LifeUsed > 0, fmt.Sprintf(", %d%% of its life used", d.LifeUsed))
		line("disk", "%s %s, %s%s%s", d.Name, cmp.Or(strings.TrimSpace(d.Kind+" "+d.Model), "unknown"), size(d.Bytes), life,
			when(d.Errors > 0, fmt.Sprintf(", %d errors", d.Errors))+when(d.ReadOnly, ", read-only"))
	}
	line("read-only", "%s", strings.Join(r.ReadOnly, " "))
	for _, t := range r.Temperatures {
		line("temperature", "%.1f °C %s", t.Celsius, t.Name)
	}
	for _, f := range r.Fans {
		line("fan", "%d rpm %s", f.RPM, f.Name)
	}
	for _, v := range r.Voltages {
		line("voltage", "%.2f V %s", v.Volts, v.Name)
	}
	if s := r.Supply; s != nil {
		line("supply", "%d mA%s", s.MaxMilliamps, when(s.USBOverCurrent, ", USB took too much before the boot"))
	}
	if p := r.Power; p != nil {
		bad := when(p.UnderVoltage, "voltage too low ") + when(p.Throttled || p.FrequencyCapped, "throttled ") +
			when(p.UnderVoltageSeen && !p.UnderVoltage, "voltage was too low since the boot")
		line("power", "%s", cmp.Or(strings.TrimSpace(bad), "sufficient"))
	}
	if g := r.Watchdog; g != nil {
		line("watchdog", "%s, %d s", cmp.Or(g.Identity, "unknown"), g.Timeout)
	}
	if c := r.Clock; c != nil {
		line("clock", "%s, %s", either(c.Synced, "synchronised", "not synchronised"),
			either(c.RTC, c.text(), "no real-time clock: the time is lost at a power cut"))
	}
	for _, x := range r.Radios {
		line("radio", "%s %s%s", x.Name, x.Kind, when(x.Signal != 0, fmt.Sprintf(", %d dBm", x.Signal)))
	}
	for _, b := range []struct {
		name  string
		names []string
	}{{"gpio", r.Buses.GPIO}, {"i2c", r.Buses.I2C}, {"spi", r.Buses.SPI}, {"1-wire", r.Buses.OneWire},
		{"leds", r.Buses.LEDs}, {"audio", r.Audio}} {
		line(b.name, "%s", strings.Join(b.names, " "))
	}
	for _, c := range r.Chips {
		line("chip", "%s", c)
	}
	for _, d := range r.Devices {
		line("device", "%s%s %s %s%s", fleet.Group+"/", d.Resource, d.ID, strings.Join(d.Nodes, " "),
			when(d.Title != "", " ("+d.Title+")")+when(d.Internal, " (internal: only for a peripheral of the board profile)"))
	}
	if s := r.Stalls; s != nil {
		line("stalls", "cpu %.1f%%, memory %.1f%%, io %.1f%% of the last minute", s.CPU.Some60, s.Memory.Some60, s.IO.Some60)
	}
	for _, p := range r.Problems {
		line("problem", "%s", p)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print the hardware report: %w", err)
	}
	return nil
}

// text describes a clock.
func (c Clock) text() string {
	battery := ", battery unknown"
	if c.Battery != nil {
		battery = fmt.Sprintf(", battery %.1f V", *c.Battery)
	}
	return cmp.Or(c.Name, "real-time clock") + battery
}

// join joins the parts that are not empty.
func join(between string, parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), between)
}

func when(ok bool, text string) string { return either(ok, text, "") }

func either(ok bool, yes, no string) string {
	if ok {
		return yes
	}
	return no
}

// size formats a number of bytes with a rounded unit.
func size(bytes int64) string {
	switch {
	case bytes >= 10<<30:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return resource.NewQuantity(bytes, resource.BinarySI).String()
}

// MaxReport is the largest report on the wire, in bytes.
const MaxReport = 16 << 10

// JSON encodes a report in at most MaxReport bytes. If the report is larger, JSON leaves out the
// long lists and adds a problem that says so.
func (r Report) JSON() json.RawMessage {
	b := encode(r)
	if len(b) <= MaxReport {
		return b
	}
	r.Problems = append(slices.Clone(few(r.Problems)),
		"the report was too large: buses, devices, disks and sensors are left out")
	for i, p := range r.Problems {
		r.Problems[i] = clean(p)
	}
	r.Buses, r.Devices, r.Disks, r.Temperatures, r.Radios, r.ReadOnly = Buses{}, nil, nil, nil, nil, nil
	r.Fans, r.Voltages, r.NUMA, r.Audio, r.Chips = nil, nil, nil, nil, nil
	return encode(r)
}

func encode(r Report) json.RawMessage {
	b, err := json.Marshal(r)
	if err != nil { // only a NaN can cause an error
		b, _ = json.Marshal(Report{Problems: []string{"encode the report: " + err.Error()}})
	}
	return b
}
