package hardware

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const meminfo = "MemTotal: 4000000 kB\nMemFree: 1000000 kB\nMemAvailable: 3000000 kB\nCached: 500000 kB\n"

func TestMemoryRespectsTheLimitOfItsContainer(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for _, tt := range []struct {
		name                string
		files               map[string]string
		capacity, available int64
	}{
		{"outside of containers the kernel's estimate counts", nil, 4000000 * kib, 3000000 * kib},
		{"the control group of a service does not count", map[string]string{
			"proc/self/cgroup": "0::/system.slice/flotilla-device.service\n", "sys/fs/cgroup/system.slice/flotilla-device.service/memory.max": "67108864\n",
		}, 4000000 * kib, 3000000 * kib},
		{"in a container the limit minus the working set counts", map[string]string{
			"sys/fs/cgroup/memory.max": "536870912\n", "sys/fs/cgroup/memory.current": "314572800\n", "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 104857600\n",
		}, 512 * mib, 312 * mib},
		{"in a container without a limit", map[string]string{"sys/fs/cgroup/memory.max": "max\n"}, 4000000 * kib, 3000000 * kib},
		{"a container above its limit has no memory left", map[string]string{
			"sys/fs/cgroup/memory.max": "1048576\n", "sys/fs/cgroup/memory.current": "2097152\n",
		}, mib, 0},
		{"cgroup v1 without a limit", map[string]string{"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 4000000 * kib, 3000000 * kib},
		{"cgroup v1 with a limit", map[string]string{
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "314572800\n",
			"sys/fs/cgroup/memory/memory.stat": "total_inactive_file 104857600\n",
		}, 512 * mib, 312 * mib},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := map[string]string{"proc/meminfo": meminfo}
			for k, v := range tt.files {
				files[k] = v
			}
			got := Measure(t.Context(), Options{Root: rootOf(t, files)}).Memory
			if want := (Amount{Available: tt.available, Capacity: tt.capacity}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// A driver may wait for its chip or disk for minutes or for ever; in the test, pipes without a
// writer do. The other files are still read, and a pending read is not started again.
func TestAHangingDriverBlocksNothing(t *testing.T) {
	zone, monitor := "sys/class/thermal/thermal_zone", "sys/class/hwmon/hwmon0/"
	root := rootOf(t, map[string]string{
		"proc/meminfo": meminfo, "proc/sys/kernel/random/boot_id": "11111111-2222-3333-4444-555555555555\n",
		zone + "0/type": "cpu-thermal\n", zone + "1/type": "cpu-thermal\n", zone + "1/temp": "48000\n", monitor +
			"name": "drivetemp\n",
	})
	pipes := []string{zone + "0/temp", monitor + "temp1_input"}
	for _, pipe := range pipes {
		if err := unix.Mkfifo(filepath.Join(root, pipe), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		r, err := Probe(t.Context(), Options{Root: root})
		if err != nil || r.Host.BootID == "" {
			t.Errorf("the report has the host %+v, %v; want its boot id", r.Host, err)
		}
		Measure(t.Context(), Options{Root: root})
	}
	for _, pipe := range pipes { // let the pending reads return
		f, err := os.OpenFile(filepath.Join(root, pipe), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString("35000\n")
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestMeasure(t *testing.T) {
	files := map[string]string{
		"proc/meminfo": meminfo, "proc/loadavg": "0.1 0.2 0.3 1/131 4711\n",
		"proc/sys/kernel/pid_max": "32768\n", "proc/sys/kernel/threads-max": "30000\n", "var/lib/flotilla/x": "",
	}
	s := Measure(t.Context(),
		Options{Root: rootOf(t, files), StateDir: "/var/lib/flotilla/device", EngineRoot: "/var/lib/docker"})
	if s.PIDs != (Amount{Available: 30000 - 131, Capacity: 30000}) {
		t.Errorf("process ids: %+v, want 30000, less 131 in use", s.PIDs)
	}
	if s.NodeFs.Problem != "" || s.NodeFs.Capacity <= 0 || s.NodeFs.Available > s.NodeFs.Capacity ||
		s.ImageFs.Capacity != s.NodeFs.Capacity {
		t.Errorf("the file systems of agent and engine are %+v and %+v, want the same capacity", s.NodeFs, s.ImageFs)
	}
	files["sys/fs/cgroup/pids.max"], files["sys/fs/cgroup/pids.current"] = "100\n", "99\n"
	if got := Measure(t.Context(), Options{Root: rootOf(t, files)}).PIDs; got != (Amount{Available: 1, Capacity: 100}) {
		t.Errorf("process ids in a container: %+v, want 1 of 100", got)
	}
	bad := Measure(t.Context(), Options{Root: t.TempDir()})
	if bad.Memory.Problem == "" || bad.PIDs.Problem == "" || bad.Memory.Available != 0 {
		t.Errorf("an empty root has the stats %+v, want problems with memory and process ids", bad)
	}
}

func TestPowerOfTheBoardMakersKernel(t *testing.T) {
	for _, file := range []string{"sys/devices/platform/soc/soc:firmware/get_throttled",
		"sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled",
		"sys/bus/platform/drivers/raspberrypi-firmware/soc@107c000000:firmware/get_throttled"} {
		powerOf(t, file)
	}
}

func powerOf(t *testing.T, file string) {
	for text, want := range map[string]*Power{
		"0\n":     {},
		"50005\n": {UnderVoltage: true, Throttled: true, UnderVoltageSeen: true, ThrottledSeen: true},
		"a000a\n": {FrequencyCapped: true, SoftTemperature: true, FrequencyCappedSeen: true, SoftTemperatureSeen: true},
		"rubbish": nil,
	} {
		if got := power(tree(rootOf(t, map[string]string{file: text}))); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, want %+v", text, got, want)
		}
	}
}

// The firmware and the kernel's monitor may disagree about the voltage: the worse value counts, and
// the message names both.
func TestTheWorseVoltageReportCounts(t *testing.T) {
	for _, c := range []struct {
		rule, bits, alarm string // bits of get_throttled and alarm of the monitor; empty: the file is missing
		reason, message   string
	}{
		{"both report a sufficient voltage", "0", "0", "PowerSufficient", "sufficient power"},
		{"both report a low voltage", "10001", "1", "UnderVoltage", "too low now: use"},
		{"only the monitor reports a low voltage", "0", "1", "UnderVoltage", "too low now (in0_lcrit_alarm of rpi_volt reports low voltage, get_throttled does not): use"},
		{"only the firmware reports a low voltage", "50005", "0", "UnderVoltage", "too low now (get_throttled reports low voltage, in0_lcrit_alarm of rpi_volt does not): use"},
		{"the monitor is missing", "1", "", "UnderVoltage", "too low now: use"},
		{"the firmware's file is missing", "", "1", "UnderVoltage", "too low now: use"},
		{"the firmware's value cannot be parsed", "rubbish", "1", "UnderVoltage", "too low now: use"},
		{"the processor is throttled, and the voltage is too low", "20002", "1", "UnderVoltage", "in0_lcrit_alarm of rpi_volt reports low voltage"},
		{"both are missing", "", "", "", ""},
	} {
		files := map[string]string{"sys/class/hwmon/hwmon0/name": "cpu_thermal\n"}
		if c.bits != "" {
			files["sys/devices/platform/soc/soc:firmware/get_throttled"] = c.bits + "\n"
		}
		if c.alarm != "" {
			files["sys/class/hwmon/hwmon1/name"], files["sys/class/hwmon/hwmon1/in0_lcrit_alarm"] = "rpi_volt\n", c.alarm+"\n"
		}
		r := Report{MemoryLimits: true, Power: power(tree(rootOf(t, files)))}
		var reason, message string
		for _, x := range Health(r, nil, time.Now()) {
			if x.Type == ConditionPowerOK {
				reason, message = x.Reason, x.Message
			}
		}
		if reason != c.reason || !strings.Contains(message, c.message) {
			t.Errorf("%s: %s: %s; want %s: %s", c.rule, reason, message, c.reason, c.message)
		}
	}
}

func TestStorage(t *testing.T) {
	root := tree(rootOf(t, map[string]string{
		"sys/block/mmcblk0/size": "1000\n", "sys/block/mmcblk0/device/type": "MMC\n", "sys/block/mmcblk0/device/life_time": "0x03 0x0b\n",
		"sys/block/mmcblk0/device/pre_eol_info": "0x03\n", "sys/block/mmcblk0/ro": "1\n",
		"sys/block/mmcblk0boot0/size": "8192\n", "sys/block/zram0/size": "99\n", "sys/block/sda/size": "0\n",
		"proc/mounts": "/dev/mmcblk0p2 / ext4 ro,noatime 0 0\n/dev/mmcblk0p2 /var ext4 rw,errors=remount-ro 0 0\n/dev/sr0 /mnt iso9660 ro 0 0\ntmpfs /run tmpfs ro 0 0\n",
	}))
	got := disks(root)
	want := []Disk{{Name: "mmcblk0", Kind: "MMC", Bytes: 512000, LifeUsed: 110, EndOfLife: "urgent", ReadOnly: true}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("disks: got %+v, want %+v", got, want)
	}
	if got := readOnlyMounts(root); !reflect.DeepEqual(got, []string{"/"}) {
		t.Errorf("read-only: %q", got)
	}
}

func TestTemperaturesDropNonsense(t *testing.T) {
	root := tree(rootOf(t, map[string]string{
		"sys/class/thermal/thermal_zone0/type": "cpu\n", "sys/class/thermal/thermal_zone0/temp": "48199\n",
		"sys/class/thermal/thermal_zone1/temp": "not a number\n",
		"sys/class/hwmon/hwmon0/name":          "nct6775\n", "sys/class/hwmon/hwmon0/temp1_input": "-128000\n",
	}))
	if got := temperatures(root); !reflect.DeepEqual(got, []Temperature{{"cpu", 48.199}}) {
		t.Errorf("got %+v", got)
	}
}

func TestDefaultRoute(t *testing.T) {
	const head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
	const v6 = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 %s 00000001 00000000 00000003 %s\n"
	line := func(metric, name string) string {
		return strings.Replace(strings.Replace(v6, "%s", metric, 1), "%s", name, 1)
	}
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"the lowest metric wins, as a number", map[string]string{"proc/net/route": head +
			"wlan0 00000000 0101A8C0 0003 0 0 1000 00000000 0 0 0\neth0 00000000 0101A8C0 0003 0 0 202 00000000 0 0 0\neth1 0001A8C0 00000000 0001 0 0 0 00FFFFFF 0 0 0\n"}, "eth0"},
		{"without IPv4 the route of IPv6 counts", map[string]string{"proc/net/route": head, "proc/net/ipv6_route": line("ffffffff", "lo") + line("00000400", "eth0")}, "eth0"},
		{"an isolated site has no default route", map[string]string{"proc/net/route": head}, ""},
		{"a rejecting route does not count", map[string]string{"proc/net/route": head + "*\t00000000\t00000000\t0201\t0\t0\t4000\t00000000\t0\t0\t0\n",
			"proc/net/ipv6_route": line("00000400", "eth0")}, "eth0"},
	} {
		if got := defaultRoute(tree(rootOf(t, tt.files))); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestPickTakesOneAddressOfEachFamily(t *testing.T) {
	var ips []netip.Addr
	for _, s := range []string{"fe80::1", "169.254.3.4", "fd00::2", "192.168.1.7", "10.0.0.1", "2001:db8::1",
		"127.0.0.1"} {
		ips = append(ips, netip.MustParseAddr(s))
	}
	want := []netip.Addr{netip.MustParseAddr("192.168.1.7"), netip.MustParseAddr("fd00::2")}
	if got := pick(ips); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTextsFromFirmwareAreSanitized(t *testing.T) {
	got := clean("  Pi\x004\n\x1b[31m" + strings.Repeat("ü", 200) + "\xff")
	if strings.ContainsAny(got, "\x00\n\x1b") || len(got) > maxText || !strings.HasPrefix(got, "Pi4") {
		t.Errorf("got %q, want at most %d bytes without control characters that begin with Pi4", got, maxText)
	}
}

func TestBusy(t *testing.T) {
	for _, c := range []struct {
		name, stat string
		want       time.Duration
	}{
		{"all but idle, iowait and stolen time", "cpu  100 20 30 4000 500 6 7 800 90 10\ncpu0 1 1 1 1\n", 1630 * time.Millisecond},
		{"an old kernel", "cpu 1 2 3 4\n", 60 * time.Millisecond},
		{"a missing file", "", 0},
		{"something else", "intr 1 2 3 4 5\n", 0},
	} {
		if got := busy(c.stat); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestWhyTheBoardWasReset(t *testing.T) {
	const rsts, chip, dog = "proc/device-tree/chosen/bootloader/rsts", "proc/device-tree/chosen/power/power_reset",
		"sys/class/watchdog/watchdog0/bootstatus"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"no files", nil, ""},
		{"the power was switched on", map[string]string{rsts: "\x00\x00\x10\x00"}, "power-on"},
		{"a reboot looks like a watchdog reset: unknown", map[string]string{rsts: "\x00\x00\x00\x20"}, ""},
		{"the power chip overrides the bit", map[string]string{rsts: "\x00\x00\x10\x00", chip: "\x00\x00\x00\x06"}, "under-voltage,over-temperature"},
		{"the power chip reports no cause", map[string]string{chip: "\x00\x00\x00\x00"}, ""},
		{"the watchdog's driver", map[string]string{dog: "32\n"}, "watchdog"},
		{"a register of another length does not count", map[string]string{rsts: "\x10\x00"}, ""},
	} {
		if got := resetCause(tree(rootOf(t, c.files))); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAnUnknownBatteryIsReported(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"a measured battery", map[string]string{"sys/class/rtc/rtc0/name": "rpi-rtc soc:rpi_rtc\n", "sys/class/rtc/rtc0/battery_voltage": "3023544\n"}, "rpi-rtc soc:rpi_rtc, battery 3.0 V"},
		{"an unknown battery", map[string]string{"sys/class/rtc/rtc0/name": "ds1307\n"}, "ds1307, battery unknown"},
	} {
		got := rtc(tree(rootOf(t, c.files)))
		if !got.RTC || got.text() != c.want {
			t.Errorf("%s: %q, want %q", c.name, got.text(), c.want)
		}
	}
	if got := rtc(tree(t.TempDir())); got.RTC || got.Battery != nil {
		t.Errorf("a board without a real-time clock has %+v", got)
	}
}

func TestErrorsOfADiskAreCountedOnItsPartitions(t *testing.T) {
	root := rootOf(t, map[string]string{
		"sys/fs/ext4/mmcblk0p2/errors_count": "3\n", "sys/fs/ext4/mmcblk0p3/errors_count": "4\n", "sys/fs/ext4/mmcblk1p1/errors_count": "16\n",
		"sys/fs/ext4/sda1/errors_count": "32\n", "sys/fs/ext4/sdaa1/errors_count": "64\n", "sys/fs/ext4/features/meta_bg_resize": "supported\n",
	})
	for disk, want := range map[string]int64{"mmcblk0": 7, "mmcblk1": 16, "sda": 32, "sdb": 0} {
		if got := fileSystemErrors(tree(root), disk); got != want {
			t.Errorf("%s has %d errors, want %d", disk, got, want)
		}
	}
}
