package boothelper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"flotilla.dev/shared/fleet"
)

// Boots returns the backend that boots the board, and the directory of the backend's files.
func (b Machine) Boots() (backend, dir string, err error) {
	if dir, err := b.configTxt(); dir != "" || err != nil {
		return fleet.BootConfigTxt, dir, err
	}
	if b.has("/boot/extlinux/extlinux.conf") {
		return "", "", errors.New("/boot/extlinux/extlinux.conf boots this board: backend extlinux is not supported")
	}
	if b.has("/boot/uEnv.txt") {
		dir, err := b.writable("/boot", "/boot/uEnv.txt")
		return fleet.BootUEnv, dir, err
	}
	if b.systemdBoot() {
		return "", "", errors.New("systemd-boot boots this board: backend systemd-boot is not supported")
	}
	if b.has("/boot/grub/grub.cfg") {
		dir, err := b.grub()
		return fleet.BootGrub, dir, err
	}
	if b.has("/boot/grub2/grub.cfg") {
		return "", "", errors.New("GRUB's files are in /boot/grub2, as on Fedora and openSUSE: only the layout of " +
			"Debian and Ubuntu is supported, /boot/grub")
	}
	return "", "", errors.New("cannot tell how this board boots: neither config.txt in /boot/firmware or " +
		"/boot nor /boot/uEnv.txt nor /boot/grub/grub.cfg exists, or the boot partition is not mounted")
}

func (b Machine) has(name string) bool {
	_, err := os.Lstat(b.path(name))
	return err == nil
}

// systemdBoot reports whether systemd-boot boots the board. It reads the variable of the Boot
// Loader Interface; without the variable, it looks for loader.conf on boards without GRUB.
func (b Machine) systemdBoot() bool {
	info, err := os.ReadFile(b.path("/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"))
	if err == nil && bytes.Contains(bytes.ReplaceAll(info, []byte{0}, nil), []byte("systemd-boot")) {
		return true
	}
	return !b.has("/boot/grub/grub.cfg") &&
		(b.has("/boot/loader/loader.conf") || b.has("/efi/loader/loader.conf") || b.has("/boot/efi/loader/loader.conf"))
}

// A mount is one line of /proc/mounts.
type mount struct {
	source, at, kind string
	options          []string
}

// mountOf returns the mount of a path: the mount with the longest mount point, and the last of
// several with the same mount point.
func (b Machine) mountOf(path string) (m mount) {
	for l := range strings.Lines(b.text("/proc/mounts")) {
		f := strings.Fields(l)
		if len(f) < 4 || len(f[1]) < len(m.at) {
			continue
		}
		if f[1] == "/" || path == f[1] || strings.HasPrefix(path, f[1]+"/") {
			m = mount{f[0], f[1], f[2], strings.Split(f[3], ",")}
		}
	}
	return m
}

// configTxt returns the directory from which a Raspberry Pi's firmware reads its files; "" on other
// boards.
func (b Machine) configTxt() (string, error) {
	for _, dir := range []string{"/boot/firmware", "/boot"} {
		at := b.path(dir)
		if info, err := os.Lstat(at); err != nil || !info.IsDir() {
			continue
		}
		info, err := os.Lstat(filepath.Join(at, configTxt))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil || !info.Mode().IsRegular() {
			return "", fmt.Errorf("%s/%s is not a regular file: the firmware may read another one", dir,
				configTxt)
		}
		m := b.mountOf(dir)
		switch {
		case m.at != dir || m.kind != "vfat" && m.kind != "msdos":
			return "", fmt.Errorf("%s is not a mounted FAT file system: the firmware reads its files from FAT, so "+
				"these may not be its files", dir)
		case slices.Contains(m.options, "ro"):
			return "", fmt.Errorf("%s is mounted read-only: mount it read-write for boot configurations", dir)
		}
		return at, nil
	}
	return "", nil
}

// writable returns dir if it is on a writable file system that boot loaders can read.
func (b Machine) writable(dir, file string) (string, error) {
	if info, err := os.Lstat(b.path(file)); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file: the boot loader may read another one", file)
	}
	m := b.mountOf(dir)
	switch {
	case m.at == "":
		return "", fmt.Errorf("no mount found for %s", dir)
	case slices.Contains(m.options, "ro"):
		return "", fmt.Errorf("%s is on %s, which is mounted read-only: mount it read-write for boot configurations", dir,
			m.at)
	case !slices.Contains([]string{"ext2", "ext3", "ext4", "vfat", "xfs"}, m.kind):
		return "", fmt.Errorf("%s is on file system %s, which is not supported: use ext4 for /boot", dir, m.kind)
	}
	return b.path(dir), nil
}

// grub returns GRUB's directory if GRUB can write its environment block there. It needs a plain
// disk and a file system that GRUB can write (GRUB manual, "Environment block").
func (b Machine) grub() (string, error) {
	const dir = "/boot/grub"
	m := b.mountOf(dir)
	switch {
	case m.kind == "btrfs" || m.kind == "zfs" || m.kind == "f2fs":
		return "", fmt.Errorf("/boot is on %s: GRUB cannot write to its environment block there, so it cannot try "+
			"anything "+
			"once; use ext4 for /boot", m.kind)
	case strings.HasPrefix(m.source, "/dev/mapper/") || strings.HasPrefix(m.source, "/dev/dm-") ||
		strings.HasPrefix(m.source, "/dev/md"):
		return "", fmt.Errorf("/boot is on %s: GRUB cannot write to its environment block on LVM, RAID or an encrypted "+
			"disk, so it cannot try anything once; use a plain partition for /boot", m.source)
	case !strings.Contains(b.Cmdline(), "BOOT_IMAGE="):
		return "", errors.New(
			"/boot/grub/grub.cfg exists, but GRUB has not booted this board: its kernel's command line has no BOOT_IMAGE")
	}
	return b.writable(dir, "/boot/grub/grub.cfg")
}
