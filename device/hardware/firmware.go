package hardware

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

const bootloader = deviceTree + "chosen/bootloader/" // device-tree node of a Raspberry Pi's bootloader, about this boot

// bootModes are the modes of BOOT_ORDER in the Raspberry Pi documentation.
var bootModes = map[uint32]string{1: "sd", 2: "network", 3: "rpiboot", 4: "usb", 5: "usb", 6: "nvme", 7: "http"}

// firmware describes the firmware that started the kernel; nil if unknown.
func firmware(t tree) *Firmware {
	f := Firmware{Version: t.text(bootloader + "version")}
	for _, file := range []string{"/boot/firmware/issue.txt", "/boot/issue.txt"} {
		if b, err := t.read(file); err == nil && f.Image == "" {
			f.Image = firstLine(string(b))
		}
	}
	if built, ok := t.cell(bootloader + "build-timestamp"); ok {
		f.Built = time.Unix(int64(built), 0).UTC().Format(time.DateOnly)
	}
	if mode, ok := t.cell(bootloader + "boot-mode"); ok {
		f.BootMode = bootModes[mode]
	}
	partition, _ := t.cell(bootloader + "partition")
	tryboot, _ := t.cell(bootloader + "tryboot")
	f.Partition, f.Tryboot = int(partition), tryboot != 0
	if f.Version == "" { // a PC
		f.Version = clean(t.text("/sys/class/dmi/id/bios_vendor") + " " + t.text("/sys/class/dmi/id/bios_version"))
		f.Built = t.text("/sys/class/dmi/id/bios_date")
	}
	if status, ok := t.cell(bootloader + "rsts"); ok {
		f.ResetStatus = fmt.Sprintf("%#x", status)
	}
	f.Reset = resetCause(t)
	if f == (Firmware{}) {
		return nil
	}
	return &f
}

// resetCause returns why the board was reset, or "" if unknown. It reads the power chip of a
// Raspberry Pi 5 (chosen/power/power_reset), the watchdog driver (WDIOF_ in linux/watchdog.h), or
// the power-on bit of a Broadcom chip's PM_RSTS. The other bits of PM_RSTS do not distinguish a
// reboot from a watchdog reset.
func resetCause(t tree) string {
	var causes []string
	name := func(bits uint32, names ...string) {
		for i, n := range names {
			if n != "" && bits>>i&1 == 1 {
				causes = append(causes, n)
			}
		}
	}
	chip, _ := t.cell(deviceTree + "chosen/power/power_reset")
	name(chip, "over-voltage", "under-voltage", "over-temperature", "enable-signal", "watchdog")
	if len(causes) == 0 {
		name(uint32(t.integer("/sys/class/watchdog/watchdog0/bootstatus")), "over-temperature", "fan", "external",
			"external", "under-voltage", "watchdog", "over-voltage")
	}
	if status, ok := t.cell(bootloader + "rsts"); ok && status>>12&1 == 1 && len(causes) == 0 {
		return "power-on"
	}
	return strings.Join(causes, ",")
}

// supply returns what a Raspberry Pi 5's power supply can deliver; nil on other boards.
func supply(t tree) *Supply {
	most, ok := t.cell(deviceTree + "chosen/power/max_current")
	if !ok {
		return nil
	}
	over, _ := t.cell(deviceTree + "chosen/power/usb_over_current_detected")
	return &Supply{MaxMilliamps: int(most), USBOverCurrent: over != 0}
}

// cell reads a 32-bit number of the device tree.
func (t tree) cell(p string) (uint32, bool) {
	b, err := t.read(p)
	if err != nil || len(b) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}
