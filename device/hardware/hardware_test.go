package hardware

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/shared/fleet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMain also runs as the child process, with one behaviour for each argument.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case ChildCommand:
			if err := RunChild(os.Stdout, os.Args[2:]...); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		case "child-hangs":
			time.Sleep(time.Minute)
		case "child-panics":
			go func() { panic("index out of range in a driver") }()
			time.Sleep(time.Minute)
		case "child-floods":
			line := bytes.Repeat([]byte("x"), 1<<20)
			for range 64 {
				os.Stdout.Write(line)
			}
			os.Exit(0)
		case "child-finds":
			json.NewEncoder(os.Stdout).Encode(Found{Devices: []*Device{{Resource: "i2c-77", ID: "i2c-77",
				Nodes: []string{"/dev/null"}}}})
			os.Exit(0)
		case "child-answers":
			json.NewEncoder(os.Stdout).Encode(Found{Buses: Buses{I2C: []string{fmt.Sprintf("uid-%d", os.Getuid())}}})
			os.Exit(0)
		}
	}
	flag.Parse()
	os.Exit(m.Run())
}

func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (run with -update to accept that); got:\n%s", file, got)
	}
}

const boards = "../../firmware-configs/testdata"

// fixed replaces the values that depend on the machine of the test.
func fixed(r Report, arch string) Report {
	r.Host.Arch = arch
	if r.Host.PageSize == os.Getpagesize() {
		r.Host.PageSize = 4096
	}
	r.Capacity.Ephemeral = 29 << 30
	return r
}

func TestBoards(t *testing.T) {
	profiles, err := firmwareconfigs.Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ board, arch, name string }{
		{"raspberrypi-4", "arm64", "raspberrypi4"},
		{"raspberrypi-5", "arm64", "raspberrypi5"},
		{"raspberrypi-3", "arm64", "raspberrypi3"},
		{"raspberrypi-zero2w", "arm64", "raspberrypi-zero2w"},
		{"raspberrypi-armv6", "arm", "raspberrypi-zero-w"},
		{"beaglebone-black", "arm", "beaglebone-black"},
		{"generic-x86-64", "amd64", "x86-64"},
		{"generic-arm64", "arm64", "radxa-rock-5b"},
	} {
		t.Run(tt.board, func(t *testing.T) {
			r, err := Probe(t.Context(), Options{Root: filepath.Join(boards, tt.board, "root")})
			if err != nil {
				t.Fatal(err)
			}
			if r.Capacity.Ephemeral <= 0 {
				t.Errorf("storage for containers is %d bytes", r.Capacity.Ephemeral)
			}
			if r.Board.Name != tt.name {
				t.Errorf("short name is %q, want %q", r.Board.Name, tt.name)
			}
			r = fixed(r, tt.arch)
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, r.JSON(), "", "  "); err != nil {
				t.Fatal(err)
			}
			pretty.WriteByte('\n')
			golden(t, "testdata/"+tt.board+".json", pretty.Bytes())

			var text bytes.Buffer
			if err := r.Write(&text); err != nil {
				t.Fatal(err)
			}
			golden(t, "testdata/"+tt.board+".txt", text.Bytes())

			p, err := firmwareconfigs.Match(profiles,
				firmwareconfigs.BoardOf(NodeStatus(r, Limits{}, Software{Arch: tt.arch}), r.JSON()))
			if err != nil || p == nil || p.Name != tt.board {
				t.Errorf("the report matches the profile %v, %v; want %s", p, err, tt.board)
			}
		})
	}
}

func TestProbeOfThisMachine(t *testing.T) {
	r, err := Probe(t.Context(), Options{StateDir: "/var/lib/a/directory/that/is/not/there/yet", Periph: new(Periph)})
	if err != nil {
		t.Fatal(err)
	}
	c := r.Capacity
	if c.CPUs < 1 || c.Memory < 1<<20 || c.Ephemeral < 1<<20 || c.Pods != 110 {
		t.Errorf("a part of the capacity is missing: %+v; problems: %q", c, r.Problems)
	}
	if r.Host.BootID == "" || r.Host.Kernel == "" || r.Clock == nil {
		t.Errorf("boot id %q, kernel %q, clock %v: want all three", r.Host.BootID, r.Host.Kernel, r.Clock)
	}
	if n := len(r.JSON()); n > MaxReport {
		t.Errorf("the report has %d bytes, at most %d are allowed", n, MaxReport)
	}
}

func TestAnEmptyRootReportsNothingButProblems(t *testing.T) {
	r, err := Probe(t.Context(), Options{Root: t.TempDir(), StateDir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Capacity.CPUs != 0 || r.Capacity.Memory != 0 {
		t.Errorf("the capacity of an empty root is %+v, want 0", r.Capacity)
	}
	text := strings.Join(r.Problems, "\n")
	for _, want := range []string{"processors", "memory", "boot id", "identify this machine"} {
		if !strings.Contains(text, want) {
			t.Errorf("no problem names the %s:\n%s", want, text)
		}
	}
	status := NodeStatus(r, Limits{Hard: DefaultThresholds()}, Software{})
	for name, q := range status.Allocatable {
		if name != corev1.ResourcePods && name != corev1.ResourceEphemeralStorage && !q.IsZero() {
			t.Errorf("allocatable %s is %s, not 0", name, q.String())
		}
	}
}

func TestAProbeWithoutAReadableRootFails(t *testing.T) {
	_, err := Probe(t.Context(), Options{Root: "/does/not/exist"})
	if err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("a missing root: %v, want an error that names it", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	if _, err := Probe(t.Context(), Options{Root: file}); err == nil || !strings.Contains(err.Error(), "is a file") {
		t.Errorf("a file as the root: %v, want an error that says so", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Probe(ctx, Options{Root: t.TempDir()}); err == nil {
		t.Error("a cancelled probe has no error")
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rootOf returns a fake root with these files.
func rootOf(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		write(t, filepath.Join(root, name), text)
	}
	return root
}

func TestTheReportIsLimited(t *testing.T) {
	var r Report
	for i := range 64 {
		name := fmt.Sprintf("%d-%s", i, strings.Repeat("n", 120))
		r.Buses.GPIO = append(r.Buses.GPIO, name)
		r.Temperatures = append(r.Temperatures, Temperature{Name: name})
		r.Disks = append(r.Disks, Disk{Name: name, Model: name})
	}
	r.Board.Name = "raspberrypi4"
	b := r.JSON()
	var back Report
	if err := json.Unmarshal(b, &back); err != nil || len(b) > MaxReport {
		t.Fatalf("the report has %d bytes, at most %d are allowed: %v", len(b), MaxReport, err)
	}
	if back.Board.Name != "raspberrypi4" || len(back.Problems) != 1 {
		t.Errorf("the board is %q and the problems are %q, want the board and one problem", back.Board.Name, back.Problems)
	}
}

func TestSmallChangesOfReadingsDoNotCount(t *testing.T) {
	base := func() Report {
		three := 3.
		return Report{
			Temperatures: []Temperature{{"cpu", 48}}, Disks: []Disk{{Name: "mmcblk0", Written: 1}},
			Radios: []Radio{{"wlan0", "wifi", -50}}, Stalls: &Stalls{}, Power: &Power{},
			Fans: []Fan{{"pwmfan", 3000}}, Voltages: []Voltage{{"in1", 5.1}}, Clock: &Clock{RTC: true, Battery: &three},
		}
	}
	for name, tt := range map[string]struct {
		change func(*Report)
		same   bool
	}{
		"a slightly warmer processor is no change": {func(r *Report) { r.Temperatures[0].Celsius = 50 }, true},
		"a few written bytes are no change":        {func(r *Report) { r.Disks[0].Written = 99 }, true},
		"a written gigabyte is a change":           {func(r *Report) { r.Disks[0].Written = 1<<30 + 1 }, false},
		"a much warmer processor is a change":      {func(r *Report) { r.Temperatures[0].Celsius = 53 }, false},
		"a slightly weaker signal is no change":    {func(r *Report) { r.Radios[0].Signal = -59 }, true},
		"a weak signal is a change":                {func(r *Report) { r.Radios[0].Signal = -60 }, false},
		"another fan speed is no change":           {func(r *Report) { r.Fans[0].RPM = 2100 }, true},
		"a slightly higher voltage is no change":   {func(r *Report) { r.Voltages[0].Volts = 5.2; *r.Clock.Battery = 3.2 }, true},
		"a low battery is a change":                {func(r *Report) { *r.Clock.Battery = 2.7 }, false},
		"a removed fan is a change":                {func(r *Report) { r.Fans = nil }, false},
		"a removed battery is a change":            {func(r *Report) { r.Clock.Battery = nil }, false},
		"a disk error is a change":                 {func(r *Report) { r.Disks[0].Errors = 1 }, false},
		"stalls are no change":                     {func(r *Report) { r.Stalls.CPU.Some10 = 3 }, true},
		"a low voltage is a change":                {func(r *Report) { r.Power.UnderVoltage = true }, false},
		"a removed sensor is a change":             {func(r *Report) { r.Temperatures = nil }, false},
		"a disk that became read-only is a change": {func(r *Report) { r.Unwritable = []string{"/"} }, false},
		"another problem is a change":              {func(r *Report) { r.Problems = []string{"x"} }, false},
		"another address is a change":              {func(r *Report) { r.Addresses = []corev1.NodeAddress{{Address: "10.0.0.1"}} }, false},
		"another disk is a change":                 {func(r *Report) { r.Disks[0].Model = "other" }, false},
	} {
		a, b := base(), base()
		tt.change(&b)
		if fleet.HardwareChanged(a.JSON(), b.JSON()) == tt.same {
			t.Errorf("%s, but HardwareChanged is %v", name, tt.same)
		}
	}
}

func TestASmallBoardRunsFewerPods(t *testing.T) {
	for _, c := range []struct {
		board  string
		memory int64 // KiB, as in /proc/meminfo
		want   int64
	}{
		{"unknown", 0, 110}, {"Pi Zero W", 440_712, 18}, {"Pi Zero 2 W", 436_572, 18}, {"BeagleBone Black", 502_708, 22},
		{"Pi 3", 944_264, 49}, {"2 GiB", 2 << 20, 110}, {"Pi 4", 3_885_396, 110}, {"64 MiB", 64 << 10, 8},
	} {
		if got := podsOf(c.memory << 10); got != c.want {
			t.Errorf("%s: %d pods, want %d", c.board, got, c.want)
		}
	}
}
