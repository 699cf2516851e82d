package boothelper

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"flotilla.dev/shared/fleet"
)

// bootSelectors are the settings of config.txt that select what is booted.
var bootSelectors = []string{"cmdline", "os_prefix", "overlay_prefix", "include", "boot_partition", "tryboot_a_b",
	"kernel_old", "boot_ramdisk"}

// refuses returns an error if this board's files must not be changed for a trial of that kind.
func (h *Helper) refuses(way string, need int64) error {
	backend, dir, err := h.Board.Boots()
	if err != nil {
		return err
	}
	switch backend {
	case fleet.BootUEnv:
		var f Files
		if f, err = h.liveFiles(); err == nil {
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
			"grubenv is missing, so GRUB cannot try anything once: create it with grub-editenv /boot/grub/grubenv create")
	}
	if err != nil {
		return err
	}
	return checkGrub(cfg, env)
}

// refusesPi checks the settings of a Raspberry Pi outside of Flotilla's section.
func (h *Helper) refusesPi(dir string) error {
	switch text, err := h.Disk.Read(h.path(dir, tryTxt)); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !bytes.HasPrefix(text, []byte(trialMark)):
		return fmt.Errorf(
			"%s exists and is not Flotilla's: another program may be trying a configuration; if not, remove the file",
			tryTxt)
	}
	if _, err := h.Disk.Read(h.path(dir, "autoboot.txt")); !errors.Is(err, fs.ErrNotExist) {
		return errors.New("autoboot.txt selects the partition to boot (A/B): another program manages the boot of this " +
			"board")
	}
	f, err := h.liveFiles()
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
			if strings.EqualFold(key, "cmdline") && value == cmdlineTxt { // Ubuntu writes this default
				continue
			}
			for _, k := range bootSelectors {
				if strings.EqualFold(key, k) {
					return fmt.Errorf(
						"config.txt has %.40q, which selects what is booted: another program manages the boot of this board", l)
				}
			}
			if strings.EqualFold(l, "[tryboot]") {
				return errors.New("config.txt has a section [tryboot]: another program manages the boot of this board")
			}
		}
	}
	return nil
}
