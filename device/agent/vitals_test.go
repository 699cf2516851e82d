package agent

import (
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/device/hardware"
)

func TestVitals(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	half := hardware.Amount{Available: 1, Capacity: 2}
	board := hardware.Report{Capacity: hardware.Capacity{CPUs: 4}}
	hot := board
	hot.Temperatures = []hardware.Temperature{{Name: "cpu", Celsius: 48.25}, {Name: "nvme", Celsius: 61.5},
		{Name: "acpitz", Celsius: 30}}
	hot.Voltages = []hardware.Voltage{{Name: "rp1_adc", Volts: 1.5}, {Name: "ina226", Volts: 12.04}}
	cold := board
	cold.Temperatures = []hardware.Temperature{{Name: "cpu", Celsius: -12}}
	for _, c := range []struct {
		name          string
		before, stats hardware.Stats
		after         time.Duration
		report        *hardware.Report
		want          string
	}{
		{"a board with all sensors", hardware.Stats{Busy: 100 * time.Second}, hardware.Stats{Busy: 400 * time.Second, Memory: half, ImageFs: hardware.Amount{Available: 3, Capacity: 4}}, 150 * time.Second, &hot,
			`{"cpu":0.5,"memory":0.5,"disk":0.25,"temperature":61.5,"supply":12.04}`},
		{"below zero", hardware.Stats{}, hardware.Stats{}, time.Minute, &cold, `{"temperature":-12}`},
		{"an idle processor is 0, not absent", hardware.Stats{Busy: time.Second}, hardware.Stats{Busy: time.Second}, time.Minute, &board, `{"cpu":0}`},
		{"the first measurement", hardware.Stats{}, hardware.Stats{Busy: time.Hour, Memory: half}, 0, &board, `{"memory":0.5}`},
		{"a kernel without counters", hardware.Stats{}, hardware.Stats{}, time.Minute, &board, `{}`},
		{"counters that were reset", hardware.Stats{Busy: time.Hour}, hardware.Stats{Busy: time.Second}, time.Minute, &board, `{}`},
		{"a failed measurement", hardware.Stats{}, hardware.Stats{Memory: hardware.Amount{Problem: "gone"}}, time.Minute, &board, `{}`},
		{"more than 100 %, by rounding", hardware.Stats{Busy: time.Second}, hardware.Stats{Busy: 242 * time.Second}, time.Minute, &board, `{"cpu":1}`},
		{"an unknown board", hardware.Stats{}, hardware.Stats{Memory: half}, time.Minute, nil, `{"memory":0.5}`},
	} {
		before := vitalSample{at, c.before}
		if c.after == 0 {
			before = vitalSample{}
		}
		got, err := json.Marshal(vitalsOf(before, vitalSample{at.Add(c.after), c.stats}, c.report))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.want)
		}
	}
	for name, is := range map[string]bool{"ina226": true, "ina238 in2": false, "ina3221 in1": false, "rp1_adc": false,
		"nct6775 +12V": true, "pmic ext5v": true, "bq25890 vbus": true, "in0": false, "adc divin": false} {
		if isSupply(name) != is {
			t.Errorf("isSupply(%q) is %v", name, !is)
		}
	}
}

// A status carries the vitals of the last minutes, but vitals never cause a status.
func TestVitalsCauseNoStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.board.set(func(b *board) { b.load = .5 })
		d.start()
		defer func() { d.end() }()
		time.Sleep(time.Minute)
		synctest.Wait()
		v := d.agent.Status().Vitals
		if v == nil || v.Memory == nil || *v.Memory != .5 || v.CPU != nil || v.Temperature != nil || v.Supply != nil {
			t.Fatalf("the vitals after a minute are %+v, want only half of the memory", v)
		}
		d.mu.Lock()
		statuses := d.status
		d.mu.Unlock()
		d.board.set(func(b *board) { b.stats.Memory.Available = b.stats.Memory.Capacity / 4 })
		time.Sleep(vitalsTime + 20*time.Second)
		synctest.Wait()
		if v = d.agent.Status().Vitals; v.CPU == nil || *v.CPU != .125 || *v.Memory != .75 { // half of one of four CPUs
			t.Errorf("the vitals after some minutes are %+v, want 1/8 of the CPU and 3/4 of the memory", v)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.status != statuses {
			t.Error("vitals have caused a status")
		}
	})
}
