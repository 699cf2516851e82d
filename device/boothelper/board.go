package boothelper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Machine is the board that the helper runs on. Root is empty, or the directory of a fake board's
// files. A fake board does not reboot: the argument is written to run/systemd/reboot-param, the
// file that systemd uses.
type Machine struct{ Root string }

const bootloader = "/proc/device-tree/chosen/bootloader/"

func (b Machine) path(name string) string { return filepath.Join(b.Root, name) }

func (b Machine) text(name string) string {
	text, err := os.ReadFile(b.path(name))
	if err != nil || len(text) > maxRead {
		return ""
	}
	return strings.TrimSpace(strings.TrimRight(string(text), "\x00\n"))
}

// Compatible returns the board's names in the device tree, the most specific first.
func (b Machine) Compatible() []string {
	list := strings.FieldsFunc(b.text("/proc/device-tree/compatible"), func(r rune) bool { return r == 0 })
	return list[:min(len(list), 16)]
}

// BootID returns the kernel's boot id.
func (b Machine) BootID() string { return b.text("/proc/sys/kernel/random/boot_id") }

// Uptime returns the time since the boot.
func (b Machine) Uptime() time.Duration {
	first, _, _ := strings.Cut(b.text("/proc/uptime"), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil || seconds < 0 || seconds > 1e9 {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}

// Tryboot reports whether the firmware marks this boot as a trial, and whether it offers trials.
// The device tree has a cell that is 1 in a trial.
func (b Machine) Tryboot() (now, offered bool) {
	cell, err := os.ReadFile(b.path(bootloader + "tryboot"))
	return err == nil && len(cell) == 4 && cell[3] == 1, err == nil && len(cell) == 4
}

// Cmdline returns the command line of the running kernel.
func (b Machine) Cmdline() string { return b.text("/proc/cmdline") }

// restoreUnit is the enabled systemd unit that restores the boot files early in each boot.
const restoreUnit = "/etc/systemd/system/sysinit.target.wants/flotilla-boot-restore.service"

// Restores returns an error unless restoreUnit is enabled.
func (b Machine) Restores() error {
	if _, err := os.Lstat(b.path(restoreUnit)); err != nil {
		return errors.New("flotilla-boot-restore.service is not enabled, so the old files would not be restored: install " +
			"it and run systemctl enable flotilla-boot-restore")
	}
	return nil
}

// owners are programs that update the whole system with its boot partition, and a file of each.
var owners = []struct{ name, mark string }{
	{"RAUC", "/etc/rauc/system.conf"}, {"Mender", "/etc/mender/mender.conf"}, {"Mender", "/var/lib/mender"},
	{"SWUpdate", "/etc/swupdate.cfg"}, {"OSTree", "/run/ostree-booted"}, {"Home Assistant OS", "/etc/hassos-release"},
	{"Ubuntu Core", "/writable/system-data"}, {"balenaOS", "/mnt/boot/device-type.json"},
}

// Refuses returns an error if the boot files must not be changed: another program owns them, or the
// disk or the power supply does not allow it now.
func (b Machine) Refuses(need int64) error {
	_, dir, err := b.Boots()
	if err != nil {
		return err
	}
	for _, o := range owners {
		if _, err := os.Lstat(b.path(o.mark)); err == nil {
			return fmt.Errorf("%s exists: %s manages the boot of this board", o.mark, o.name)
		}
	}
	for l := range strings.Lines(b.text("/etc/os-release")) {
		key, id, _ := strings.Cut(strings.TrimSpace(l), "=")
		if id = strings.Trim(id, `"'`); key == "ID" &&
			slices.Contains([]string{"balena-os", "ubuntu-core", "haos", "hassos", "torizon"}, id) {
			return fmt.Errorf("this board runs %s, which updates its boot partition itself", id)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("get the free space of the boot partition: %w", err)
	}
	if free := int64(fs.Bavail) * int64(fs.Bsize); free < need {
		return fmt.Errorf("the boot partition has %d KiB free, and %d KiB are needed: remove old kernels", free>>10, need>>10)
	}
	if b.undervoltage() {
		return errors.New("the supply voltage is too low now, and a board that loses power during a write may not " +
			"boot again")
	}
	return nil
}

func (b Machine) undervoltage() bool {
	if bits, err := strconv.ParseUint(strings.TrimPrefix(b.text("/sys/devices/platform/soc/soc:firmware/get_throttled"),
		"0x"), 16, 32); err == nil && bits&1 != 0 {
		return true
	}
	names, _ := filepath.Glob(b.path("/sys/class/hwmon/*/name")) // the pattern is valid, so Glob cannot fail
	for _, name := range names {
		if text, _ := os.ReadFile(name); strings.TrimSpace(string(text)) == "rpi_volt" {
			alarm, _ := os.ReadFile(filepath.Join(filepath.Dir(name), "in0_lcrit_alarm"))
			if strings.TrimSpace(string(alarm)) == "1" {
				return true
			}
		}
	}
	return false
}

// HasOverlay reports whether the board has an overlay of this name, which contains no path.
func (b Machine) HasOverlay(name string) bool {
	_, dir, err := b.Boots()
	if err != nil {
		return false
	}
	info, err := os.Lstat(filepath.Join(dir, "overlays", name+".dtbo"))
	return err == nil && info.Mode().IsRegular()
}

// Reboot asks systemd for a reboot and passes the argument to the firmware.
func (b Machine) Reboot(argument string) error {
	if b.Root != "" {
		name := b.path("/run/systemd/reboot-param")
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		return os.WriteFile(name, []byte(argument), 0o644)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	args := []string{"--no-block", "reboot"}
	if argument != "" {
		args = append(args, "--reboot-argument="+argument)
	}
	if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("reboot: systemctl %s: %w: %.200s", strings.Join(args, " "), err, out)
	}
	return nil
}
