package hardware

import (
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"testing"
)

func TestMachineID(t *testing.T) {
	of := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return hex.EncodeToString(sum[:])[:16]
	}
	const dt, etc = "proc/device-tree/serial-number", "etc/machine-id"
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string // text that MachineID hashes; empty: an error
	}{
		{"the serial number counts, without its closing zero byte", map[string]string{dt: "10000000a1b2c3d4\x00", etc: "abc\n"}, of("10000000a1b2c3d4")},
		{"without a serial number the machine-id counts", map[string]string{etc: "0123456789abcdef0123456789abcdef\n"}, of("0123456789abcdef0123456789abcdef")},
		{"a serial number of zeros does not count", map[string]string{dt: "0000000000000000\x00", etc: "abc\n"}, of("abc")},
		{"an empty serial number does not count", map[string]string{dt: "\x00", etc: "abc\n"}, of("abc")},
		{"an image that was never booted has no id", map[string]string{etc: "uninitialized\n"}, ""},
		{"no file at all", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := MachineID(rootOf(t, tt.files))
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestDecodeRevision(t *testing.T) {
	for _, tt := range []struct {
		name       string
		code, gbit uint32
		want       Revision
	}{
		{"Pi 4 with 4 GiB", 0xc03114, 0, Revision{"c03114", "4B", "BCM2711", "Sony UK", 4096, 4}},
		{"Pi 5 with 8 GiB", 0xd04170, 0, Revision{"d04170", "5", "BCM2712", "Sony UK", 8192, 0}},
		{"Zero 2 W", 0x902120, 0, Revision{"902120", "Zero 2 W", "BCM2837", "Sony UK", 512, 0}},
		{"Zero W", 0x9000c1, 0, Revision{"9000c1", "Zero W", "BCM2835", "Sony UK", 512, 1}},
		{"the warranty bit 25 is ignored", 0x2c03114, 0, Revision{"2c03114", "4B", "BCM2711", "Sony UK", 4096, 4}},
		{"with a memory field of 7 the gigabits count", 0xf04170, 24, Revision{"f04170", "5", "BCM2712", "Sony UK", 3072, 0}},
		{"a memory field of 7 without gigabits is unknown", 0xf04170, 0, Revision{"f04170", "5", "BCM2712", "Sony UK", 0, 0}},
		{"the gigabits override the field", 0xc03114, 64, Revision{"c03114", "4B", "BCM2711", "Sony UK", 8192, 4}},
		{"a board of the future keeps its code", 0xcff7f3, 0, Revision{Code: "cff7f3", MemoryMiB: 4096, Number: 3}},
		{"an old-style code is a number only", 0x0010, 0, Revision{Code: "10"}},
	} {
		if got := decodeRevision(tt.code, tt.gbit); !reflect.DeepEqual(*got, tt.want) {
			t.Errorf("%s: got %+v, want %+v", tt.name, *got, tt.want)
		}
	}
}

func TestOnlyRaspberryPisUseTheRevisionInCpuinfo(t *testing.T) {
	pi := rootOf(t, map[string]string{"proc/cpuinfo": "processor\t: 0\n\nHardware\t: BCM2835\nRevision\t: c03114\n"})
	if r := revision(tree(pi)); r == nil || r.Type != "4B" {
		t.Errorf("the revision of a Pi without a device tree is %+v, want type 4B", r)
	}
	other := rootOf(t,
		map[string]string{"proc/cpuinfo": "processor\t: 0\n\nHardware\t: Generic AM33XX\nRevision\t: 0020\n"})
	if r := revision(tree(other)); r != nil {
		t.Errorf("the revision of another board is %+v, want none", r)
	}
}

func TestShortNameIsALabelValue(t *testing.T) {
	for _, tt := range []struct {
		compatible []string
		arch, want string
	}{
		{[]string{"raspberrypi,4-model-b", "brcm,bcm2711"}, "arm64", "raspberrypi4"},
		{[]string{"friendlyarm,nanopi-r5s"}, "arm64", "friendlyarm-nanopi-r5s"},
		{[]string{"-we!rd name,ü-"}, "arm", "we-rd-name"},
		{nil, "amd64", "x86-64"},
		{nil, "arm64", "arm64"},
	} {
		if got := shortName(tt.compatible, tt.arch); got != tt.want {
			t.Errorf("%q on %s: got %q, want %q", tt.compatible, tt.arch, got, tt.want)
		}
	}
}
