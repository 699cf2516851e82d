package hardware

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/fleet"
)

// plenty returns the stats of a device without any shortage.
func plenty() Stats {
	much := Amount{Available: 80 << 30, Capacity: 100 << 30}
	return Stats{
		Memory: much, NodeFs: much, NodeFsInodes: Amount{Available: 80, Capacity: 100},
		ImageFs: much, ImageFsInodes: Amount{Available: 80, Capacity: 100}, PIDs: Amount{Available: 9000, Capacity: 9999},
	}
}

func TestPressure(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	pids := append(DefaultThresholds(), fleet.Threshold{Signal: fleet.SignalPIDAvailable, Percent: 10})
	for _, tt := range []struct {
		name   string
		limits Thresholds
		change func(*Stats)
		want   string // type=status/reason of every condition that is not False
	}{
		{"a device without shortage has no pressure", nil, func(*Stats) {}, ""},
		{"memory below 100Mi", nil, func(s *Stats) { s.Memory.Available = 100<<20 - 1 }, "MemoryPressure=True/KubeletHasInsufficientMemory"},
		{"memory of exactly 100Mi is enough", nil, func(s *Stats) { s.Memory.Available = 100 << 20 }, ""},
		{"the disk below 10%", nil, func(s *Stats) { s.NodeFs.Available = 10<<30 - 1 }, "DiskPressure=True/KubeletHasDiskPressure"},
		{"inodes below 5%", nil, func(s *Stats) { s.NodeFsInodes.Available = 4 }, "DiskPressure=True/KubeletHasDiskPressure"},
		{"the image disk below 15%", nil, func(s *Stats) { s.ImageFs.Available = 15<<30 - 1 }, "DiskPressure=True/KubeletHasDiskPressure"},
		{"a file system without a number of inodes", nil, func(s *Stats) { s.NodeFsInodes = Amount{} }, ""},
		{"less than 256Mi free", nil, func(s *Stats) { s.NodeFs.Available = 256<<20 - 1 }, "DiskPressure=True/KubeletHasDiskPressure OutOfDisk=True/KubeletOutOfDisk"},
		{"less than 256Mi free on the image disk", nil, func(s *Stats) { s.ImageFs.Available = 1 }, "DiskPressure=True/KubeletHasDiskPressure OutOfDisk=True/KubeletOutOfDisk"},
		{"process ids have no threshold by default", nil, func(s *Stats) { s.PIDs.Available = 1 }, ""},
		{"process ids below a given threshold", pids, func(s *Stats) { s.PIDs.Available = 999 - 1 }, "PIDPressure=True/KubeletHasInsufficientPID"},
		{"memory that cannot be measured is unknown", nil, func(s *Stats) { s.Memory = Amount{Problem: "no /proc"} }, "MemoryPressure=Unknown/StatsUnavailable"},
		{"a full disk sets the condition although the other disk is unknown", nil, func(s *Stats) { s.ImageFs, s.NodeFs.Available = Amount{Problem: "gone"}, 1 },
			"DiskPressure=True/KubeletHasDiskPressure OutOfDisk=True/KubeletOutOfDisk"},
		{"a threshold of 0 switches the signal off", Thresholds{{Signal: fleet.SignalMemoryAvailable}}, func(s *Stats) { s.Memory.Available = 0 }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, limits := plenty(), tt.limits
			tt.change(&s)
			if limits == nil {
				limits = DefaultThresholds()
			}
			conditions, _ := Pressure(s, Limits{Hard: limits}, Held{}, now)
			if len(conditions) != 4 {
				t.Fatalf("%d conditions, want 4", len(conditions))
			}
			var got []string
			for _, c := range conditions {
				if c.Status != corev1.ConditionFalse {
					got = append(got, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("got  %v\nwant %v", strings.Join(got, " "), tt.want)
			}
		})
	}
}

func TestGoodConditionsHaveTheKubeletsReasons(t *testing.T) {
	conditions, _ := Pressure(plenty(), Limits{Hard: DefaultThresholds()}, Held{}, time.Unix(0, 0))
	want := []string{
		"KubeletHasSufficientMemory",
		"KubeletHasNoDiskPressure",
		"KubeletHasSufficientPID",
		"KubeletHasSufficientDisk",
	}
	for i, c := range conditions {
		if c.Reason != want[i] || c.Status != corev1.ConditionFalse || c.Message == "" {
			t.Errorf("%s is %s, %s, %q; want False, %s", c.Type, c.Status, c.Reason, c.Message, want[i])
		}
	}
}

func TestPressureLastsForFiveMinutes(t *testing.T) {
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	short := plenty()
	short.Memory.Available = 1
	unknown := plenty()
	unknown.Memory = Amount{Problem: "cannot be read"}
	var held Held
	for _, step := range []struct {
		after   time.Duration
		stats   Stats
		status  corev1.ConditionStatus
		changed time.Duration
	}{
		{0, plenty(), corev1.ConditionFalse, 0},
		{10 * time.Second, short, corev1.ConditionTrue, 10 * time.Second},
		{time.Minute, short, corev1.ConditionTrue, 10 * time.Second},
		{time.Minute + 10*time.Second, plenty(), corev1.ConditionTrue, 10 * time.Second},
		{2 * time.Minute, unknown, corev1.ConditionTrue, 10 * time.Second},
		{6*time.Minute - 1, plenty(), corev1.ConditionTrue, 10 * time.Second},
		{6 * time.Minute, plenty(), corev1.ConditionFalse, 6 * time.Minute},
		{7 * time.Minute, unknown, corev1.ConditionUnknown, 7 * time.Minute},
	} {
		var conditions []corev1.NodeCondition
		conditions, held = Pressure(step.stats, Limits{Hard: DefaultThresholds()}, held, start.Add(step.after))
		c := conditions[0]
		if c.Status != step.status || !c.LastTransitionTime.Time.Equal(start.Add(step.changed)) {
			t.Errorf("after %v: %s since %v, want %s since %v", step.after, c.Status, c.LastTransitionTime.Sub(start),
				step.status, step.changed)
		}
		if !c.LastHeartbeatTime.Time.Equal(start.Add(step.after)) {
			t.Errorf("after %v: the heartbeat is from %v", step.after, c.LastHeartbeatTime)
		}
	}
}

func TestAMessageHasNoMeasuredValue(t *testing.T) {
	a, b := plenty(), plenty()
	a.Memory.Available, b.Memory.Available = 1<<20, 2<<20
	first, held := Pressure(a, Limits{Hard: DefaultThresholds()}, Held{}, time.Unix(0, 0))
	second, _ := Pressure(b, Limits{Hard: DefaultThresholds()}, held, time.Unix(10, 0))
	if first[0].Message != second[0].Message || !strings.Contains(first[0].Message, "memory.available is below 100Mi") {
		t.Errorf("the message changes from %q to %q, want the threshold only", first[0].Message, second[0].Message)
	}
}

func TestHealth(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	good := func() Report {
		return Report{
			Power:        &Power{},
			Clock:        &Clock{Synced: true},
			MemoryLimits: true,
			Disks:        []Disk{{Name: "mmcblk0", EndOfLife: "normal", LifeUsed: 20}},
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*Report)
		want   string // reasons of the conditions that are not True
	}{
		{"a healthy board", func(*Report) {}, ""},
		{"too little voltage now", func(r *Report) { r.Power.UnderVoltage = true }, "UnderVoltage"},
		{"an earlier low voltage is reported but not a problem", func(r *Report) { r.Power.UnderVoltageSeen = true }, ""},
		{"a throttled processor", func(r *Report) { r.Power.Throttled = true }, "Throttled"},
		{"a state directory that became read-only", func(r *Report) { r.Unwritable = []string{"/var/lib/flotilla"} }, "ReadOnlyFileSystem"},
		{"a worn eMMC", func(r *Report) { r.Disks[0].EndOfLife = "urgent" }, "WornOut"},
		{"an unadjusted clock", func(r *Report) { r.Clock.Synced = false }, "ClockNotSynced"},
		{"a kernel without memory limits", func(r *Report) { r.MemoryLimits = false }, "MemoryControllerDisabled"},
	} {
		r := good()
		tt.change(&r)
		var got []string
		for _, c := range Health(r, nil, now) {
			if c.Status != corev1.ConditionTrue {
				got = append(got, c.Reason)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if list := Health(Report{MemoryLimits: true}, nil, now); len(list) != 2 {
		t.Errorf("without facts about power and clock the conditions are %v, want 2", list)
	}
	first := Health(good(), nil, now)
	second := Health(good(), first, now.Add(time.Hour))
	if !second[0].LastTransitionTime.Time.Equal(now) || !second[0].LastHeartbeatTime.Time.Equal(now.Add(time.Hour)) {
		t.Errorf("the transition time of an unchanged condition has changed: %+v", second[0])
	}
}
