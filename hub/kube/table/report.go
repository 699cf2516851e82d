package table

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

func init() {
	show(state.DeviceReports, columns(
		"Name Board Temperature Power Storage Age "+
			"(w)Model (w)Processor (w)Kernel (w)Firmware (w)Reset (w)Reported"), reportCells)
}

// A report is the part of a device's hardware report that the cells show. Unreadable parts count as
// missing.
type report struct {
	Host struct {
		CPU    string `json:"cpu"`
		Kernel string `json:"kernel"`
	} `json:"host"`
	Board struct {
		Name  string `json:"name"`
		Model string `json:"model"`
	} `json:"board"`
	Firmware struct {
		Version string `json:"version"`
		Reset   string `json:"reset"`
	} `json:"firmware"`
	Temperatures []struct {
		Celsius float64 `json:"celsius"`
	} `json:"temperatures"`
	Power map[string]bool `json:"power"`
	Disks []struct {
		LifeUsed  int    `json:"lifeUsed"`
		EndOfLife string `json:"endOfLife"`
		Errors    int64  `json:"errors"`
	} `json:"disks"`
	ReadOnly   []string `json:"readOnlyMounts"`
	Unwritable []string `json:"unwritable"`
}

func reportCells(obj state.Object, o *Options) []any {
	d := obj.(*fleet.DeviceReport)
	var parts map[string]json.RawMessage
	_ = json.Unmarshal(d.Text(), &parts)
	var r report
	for name, to := range map[string]any{
		"host": &r.Host, "board": &r.Board, "firmware": &r.Firmware, "temperatures": &r.Temperatures, "power": &r.Power,
		"disks": &r.Disks, "readOnlyMounts": &r.ReadOnly, "unwritable": &r.Unwritable,
	} {
		_ = json.Unmarshal(parts[name], to)
	}
	word := func(s string) string { return orUnknown(strings.Join(strings.Fields(bound.Text(s, 64)), " ")) }
	return []any{
		d.Name, word(r.Board.Name), r.warmest(), r.power(), r.storage(), age(d.CreationTimestamp, o),
		word(r.Board.Model), word(r.Host.CPU), word(r.Host.Kernel), word(r.Firmware.Version), word(r.Firmware.Reset),
		age(d.Reported, o),
	}
}

// warmest returns the highest temperature, which is mostly the processor's.
func (r *report) warmest() string {
	text, most := "<unknown>", 0.
	for i, t := range r.Temperatures {
		if i == 0 || t.Celsius > most {
			text, most = fmt.Sprintf("%.0f°C", t.Celsius), t.Celsius
		}
	}
	return text
}

// power returns the firmware's present warnings, or else those since the boot.
func (r *report) power() string {
	if r.Power == nil {
		return "<unknown>"
	}
	var now, seen []string
	for _, p := range []struct{ field, word string }{
		{"underVoltage", "UnderVoltage"}, {"throttled", "Throttled"}, {"frequencyCapped", "FrequencyCapped"},
		{"softTemperature", "SoftTemperatureLimit"},
	} {
		if r.Power[p.field] {
			now = append(now, p.word)
		}
		if r.Power[p.field+"Seen"] {
			seen = append(seen, p.word+"Seen")
		}
	}
	return cmp.Or(strings.Join(now, ","), strings.Join(append([]string{"OK"}, seen...), ","))
}

// storage returns the state of the worst disk.
func (r *report) storage() string {
	used, errors := 0, int64(0)
	for _, d := range r.Disks {
		if d.EndOfLife == "urgent" || d.LifeUsed > 100 {
			return "WornOut"
		}
		used, errors = max(used, d.LifeUsed), errors+d.Errors
	}
	switch {
	case len(r.Unwritable) > 0:
		return "ReadOnlyFileSystem"
	case len(r.ReadOnly) > 0:
		return "OK,ReadOnlyMounts"
	case errors > 0:
		return fmt.Sprintf("OK,%dErrors", errors)
	case len(r.Disks) == 0:
		return "<unknown>"
	case used > 0:
		return fmt.Sprintf("OK,%d%%Used", used)
	}
	return "OK"
}
