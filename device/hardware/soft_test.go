package hardware

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

// A soft threshold sets its condition at once, but pods are evicted only after it was crossed for
// its whole period.
func TestASoftThresholdEvictsAfterItsPeriod(t *testing.T) {
	profile := &fleet.BoardProfile{}
	r := &profile.Spec.Resources
	r.EvictionHard = map[string]string{fleet.SignalMemoryAvailable: "100Mi", fleet.SignalTemperature: "88"}
	r.EvictionSoft = map[string]fleet.SoftThreshold{
		fleet.SignalMemoryAvailable: {Value: "200Mi", For: metav1.Duration{Duration: 90 * time.Second}},
		fleet.SignalTemperature:     {Value: "82", For: metav1.Duration{Duration: 2 * time.Minute}},
	}
	l, err := With(profile, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	start, none := time.Unix(1_800_000_000, 0), int64(-1)
	type step struct {
		after   time.Duration
		memory  int64 // MiB
		celsius int64
		want    string
	}
	for _, c := range []struct {
		rule  string
		steps []step
	}{
		{"memory sets the condition at once and evicts after the period", []step{
			{0, 300, 50, ""}, {10 * time.Second, 150, 50, "MemoryPressure"}, {99 * time.Second, 150, 50, "MemoryPressure"}, {100 * time.Second, 150, 50, "MemoryPressure soft"},
			{110 * time.Second, 50, 50, "MemoryPressure hard"}, {120 * time.Second, 150, 50, "MemoryPressure soft"}, {130 * time.Second, 300, 50, "MemoryPressure"}}},
		{"memory that recovers starts the period again", []step{
			{0, 150, 50, "MemoryPressure"}, {80 * time.Second, 300, 50, "MemoryPressure"}, {90 * time.Second, 150, 50, "MemoryPressure"}, {170 * time.Second, 150, 50, "MemoryPressure"}, {180 * time.Second, 150, 50, "MemoryPressure soft"}}},
		{"heat", []step{
			{0, 300, 82, ""}, {time.Second, 300, 83, "TemperatureOK"}, {120 * time.Second, 300, 83, "TemperatureOK"}, {121 * time.Second, 300, 83, "TemperatureOK soft"},
			{122 * time.Second, 300, 89, "TemperatureOK hard"}, {123 * time.Second, 300, 60, "TemperatureOK"}, {8 * time.Minute, 300, 60, ""}}},
		{"a failed measurement does not count as recovery", []step{
			{0, 300, 83, "TemperatureOK"}, {110 * time.Second, 300, none, "TemperatureOK"}, {119 * time.Second, 300, 83, "TemperatureOK"},
			{120 * time.Second, 300, none, "TemperatureOK"}, {130 * time.Second, 300, 83, "TemperatureOK soft"}}},
		{"after PressureHold the period starts again", []step{
			{0, 300, 83, "TemperatureOK"}, {10 * time.Second, 300, none, "TemperatureOK"}, {PressureHold, 300, none, "TemperatureOK=Unknown"},
			{PressureHold + 10*time.Second, 300, 83, "TemperatureOK"}, {PressureHold + 130*time.Second, 300, 83, "TemperatureOK soft"}}},
		{"an unknown temperature evicts nothing", []step{{0, 300, none, "TemperatureOK=Unknown"}}},
	} {
		var held Held
		for _, s := range c.steps {
			stats := plenty()
			stats.Memory = Amount{Available: s.memory << 20, Capacity: 1 << 30}
			stats.Temperature = Amount{Available: s.celsius * 1000, Capacity: 1}
			if s.celsius == none {
				stats.Temperature = Amount{Problem: "no sensor"}
			}
			before := fmt.Sprint(held)
			conditions, next := Pressure(stats, l, held, start.Add(s.after))
			if fmt.Sprint(held) != before {
				t.Fatalf("%s, %s: Pressure has changed its argument", c.rule, s.after)
			}
			held = next
			var got []string
			for _, x := range conditions {
				good := corev1.ConditionFalse
				if x.Type == fleet.ConditionTemperatureOK {
					good = corev1.ConditionTrue
				}
				switch x.Status {
				case good:
				case corev1.ConditionUnknown:
					got = append(got, string(x.Type)+"=Unknown")
				default:
					got = append(got, string(x.Type))
				}
			}
			switch max(held.Memory.Due, held.Disk.Due, held.Heat.Due) {
			case SoftDue:
				got = append(got, "soft")
			case HardDue:
				got = append(got, "hard")
			}
			if now := strings.Join(got, " "); now != s.want {
				t.Errorf("%s: after %s: %q, want %q", c.rule, s.after, now, s.want)
			}
		}
	}
	if cs, _ := Pressure(plenty(), Limits{Hard: DefaultThresholds()}, Held{}, start); len(cs) != 4 {
		t.Errorf("without a temperature threshold got %d conditions, want 4", len(cs))
	}
}

func TestTheWarmestSensorOfTheProcessorCounts(t *testing.T) {
	for _, c := range []struct {
		rule  string
		files map[string]string
		want  int64 // -1: unknown
	}{
		{"a Raspberry Pi", map[string]string{"sys/class/thermal/thermal_zone0/type": "cpu-thermal\n", "sys/class/thermal/thermal_zone0/temp": "61322\n"}, 61322},
		{"the warmest", map[string]string{"sys/class/hwmon/hwmon0/name": "coretemp", "sys/class/hwmon/hwmon0/temp1_input": "50000", "sys/class/hwmon/hwmon0/temp2_input": "71000"}, 71000},
		{"disks and external probes do not count", map[string]string{"sys/class/hwmon/hwmon0/name": "nvme", "sys/class/hwmon/hwmon0/temp1_input": "85000", "sys/class/hwmon/hwmon1/name": "w1_slave_temp", "sys/class/hwmon/hwmon1/temp1_input": "99000"}, -1},
		{"nonsense", map[string]string{"sys/class/thermal/thermal_zone0/type": "cpu-thermal", "sys/class/thermal/thermal_zone0/temp": "-274000"}, -1},
	} {
		a := processorTemperature(tree(rootOf(t, c.files)))
		if c.want < 0 != (a.Problem != "") || c.want >= 0 && a.Available != c.want {
			t.Errorf("%s: %+v, want %d", c.rule, a, c.want)
		}
	}
}
