package boothelper

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"flotilla.dev/shared/fleet"
)

// chooses are the settings by which config.txt chooses what is booted.
var chooses = []string{"cmdline", "os_prefix", "overlay_prefix", "include", "boot_partition", "tryboot_a_b",
	"kernel_old", "boot_ramdisk"}

// refuses says why this board is not Flotilla's to change in such a way.
func (h *Helper) refuses(way string, need int64) error {
	backend, dir, err := h.Board.Boots()
	if err != nil {
		return err
	}
	switch backend {
	case fleet.BootUEnv:
		var f Files
		if f, err = h.live(); err == nil {
			err = checkUEnv(f.Config)
		}
	case fleet.BootGrub:
		err = h.refusesGrub(dir)
	default:
		err = h.refusesPi(dir)
	}
	if err == nil && way == fleet.TrialDeadman {
		err = h.Board.Restores()
	}
	if err != nil {
		return err
	}
	return h.Board.Refuses(need)
}

func (h *Helper) refusesGrub(dir string) error {
	cfg, err := h.Disk.Read(h.path(dir, grubCfg))
	if err != nil {
		return err
	}
	env, err := h.Disk.Read(h.path(dir, grubEnv))
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New(
			"there is no grubenv, so GRUB can try nothing once: make it with grub-editenv /boot/grub/grubenv create")
	}
	if err != nil {
		return err
	}
	return checkGrub(cfg, env)
}

// refusesPi looks at what stands beside our section, on a Raspberry Pi.
func (h *Helper) refusesPi(dir string) error {
	switch text, err := h.Disk.Read(h.path(dir, tryTxt)); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !bytes.HasPrefix(text, []byte(trialMark)):
		return fmt.Errorf(
			"%s is there already and not Flotilla's: something else tries a configuration; remove the file if nothing does",
			tryTxt)
	}
	if _, err := h.Disk.Read(h.path(dir, "autoboot.txt")); !errors.Is(err, fs.ErrNotExist) {
		return errors.New("autoboot.txt chooses the partition to boot (A/B): whatever wrote it owns the boot of this board")
	}
	f, err := h.live()
	if err != nil {
		return err
	}
	c, err := split(f.Config)
	if err != nil {
		return err
	}
	if h.state.Phase == PhaseIdle || h.state.Phase == PhaseArmed {
		for l := range strings.Lines(string(c.before) + "\n" + string(c.after)) {
			l = strings.TrimSpace(l)
			key, value, _ := strings.Cut(strings.ReplaceAll(l, " ", "="), "=")
			if strings.EqualFold(key, "cmdline") && value == cmdlineTxt { // as Ubuntu writes what is so anyway
				continue
			}
			for _, k := range chooses {
				if strings.EqualFold(key, k) {
					return fmt.Errorf(
						"config.txt has %.40q, which chooses what is booted: whatever wrote it owns the boot of this board", l)
				}
			}
			if strings.EqualFold(l, "[tryboot]") {
				return errors.New("config.txt has a section [tryboot]: whatever wrote it owns the boot of this board")
			}
		}
	}
	return nil
}
