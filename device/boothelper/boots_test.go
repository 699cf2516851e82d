package boothelper

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"flotilla.dev/shared/fleet"
)

// machine returns a board with these files. A later text replaces an earlier one; an empty text
// leaves the file out.
func machine(t *testing.T, files ...map[string]string) Machine {
	t.Helper()
	all := map[string]string{}
	for _, f := range files {
		maps.Copy(all, f)
	}
	root := t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name] == "" {
			continue
		}
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(all[name]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Machine{Root: root}
}

const debianCfg = "load_env\nmenuentry x {\n\tlinux\t/vmlinuz root=UUID=1 ro quiet ${flotilla_args}\n}\nsource $prefix/custom.cfg\n"

var (
	pc = map[string]string{
		"boot/grub/grub.cfg": debianCfg, "boot/grub/grubenv": string(EmptyEnv()),
		"proc/cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet\n",
		"proc/mounts":  "/dev/sda1 / ext4 rw,relatime 0 0\nproc /proc proc rw 0 0\n",
	}
	bone = map[string]string{
		"boot/uEnv.txt": "uname_r=5.10.168-ti-r71\ncmdline=coherent_pool=1M quiet\n", "proc/mounts": "/dev/mmcblk0p1 / ext4 rw,noatime 0 0\n",
		restoreUnit: "x",
	}
	efi = map[string]string{
		"boot/grub/grub.cfg": debianCfg, "boot/grub/grubenv": string(EmptyEnv()),
		"proc/cmdline":                 "BOOT_IMAGE=/vmlinuz root=UUID=1 ro quiet\n",
		"proc/mounts":                  "/dev/sda2 / ext4 rw,relatime 0 0\n/dev/sda1 /boot/efi vfat rw,relatime 0 0\nefivarfs /sys/firmware/efi/efivars efivarfs rw 0 0\n",
		"boot/efi/EFI/debian/grub.cfg": "search.fs_uuid 1 root\nset prefix=($root)'/boot/grub'\nconfigfile $prefix/grub.cfg\n",
	}
	oldPi = map[string]string{
		"boot/firmware/config.txt": "arm_64bit=1\n", "boot/firmware/cmdline.txt": "root=/dev/mmcblk0p2\n",
		"proc/mounts": "/dev/mmcblk0p2 / ext4 rw 0 0\n/dev/mmcblk0p1 /boot/firmware vfat rw 0 0\n", restoreUnit: "x",
	}
)

// refusal returns the helper's status on a board.
func refusal(t *testing.T, m Machine) Status {
	t.Helper()
	h, err := New(Kernel{}, m, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return h.Status()
}

func TestUnsupportedBoardsAreRefusedWithAReason(t *testing.T) {
	for _, c := range []struct {
		name   string
		board  map[string]string
		but    map[string]string
		reason string // part of the refusal; empty: not refused
	}{
		{"Debian with GRUB", pc, nil, ""},
		{"a BeagleBone", bone, nil, ""},
		{"a Raspberry Pi without tryboot", oldPi, nil, ""},
		{"an unknown board", nil, map[string]string{"proc/mounts": "/dev/sda1 / ext4 rw 0 0\n"}, "cannot tell how this board boots"},

		{"extlinux", bone, map[string]string{"boot/extlinux/extlinux.conf": "default l0\n"}, "backend extlinux is not supported"},
		{"systemd-boot by its variable", pc, map[string]string{"sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f": "\x06\x00\x00\x00s\x00y\x00s\x00t\x00e\x00m\x00d\x00-\x00b\x00o\x00o\x00t\x00 \x002\x00"}, "backend systemd-boot is not supported"},
		{"systemd-boot by its file", nil, map[string]string{"boot/efi/loader/loader.conf": "timeout 3\n"}, "backend systemd-boot is not supported"},
		{"Fedora's GRUB", nil, map[string]string{"boot/grub2/grub.cfg": "x"}, "as on Fedora"},

		{"no grubenv", pc, map[string]string{"boot/grub/grubenv": ""}, "grub-editenv /boot/grub/grubenv create"},
		{"a grubenv that is not an environment block", pc, map[string]string{"boot/grub/grubenv": "x"}, "not a GRUB environment block"},
		{"/boot on LVM", pc, map[string]string{"proc/mounts": "/dev/mapper/vg-root / ext4 rw 0 0\n"}, "on LVM, RAID or an encrypted disk"},
		{"/boot on RAID", pc, map[string]string{"proc/mounts": "/dev/sda1 / ext4 rw 0 0\n/dev/md0 /boot ext4 rw 0 0\n"}, "/dev/md0"},
		{"/boot on btrfs", pc, map[string]string{"proc/mounts": "/dev/sda1 / btrfs rw 0 0\n"}, "/boot is on btrfs"},
		{"/boot on ZFS", pc, map[string]string{"proc/mounts": "rpool/x / ext4 rw 0 0\nbpool/BOOT /boot zfs rw 0 0\n"}, "/boot is on zfs"},
		{"/boot read-only", pc, map[string]string{"proc/mounts": "/dev/sda1 / ext4 ro,relatime 0 0\n"}, "mounted read-only"},
		{"an unknown /boot", pc, map[string]string{"proc/mounts": "overlay / overlay rw 0 0\n"}, "file system overlay"},
		{"/boot on a RAID by its number", pc, map[string]string{"proc/mounts": "/dev/md127p1 / ext4 rw 0 0\n"}, "/dev/md127p1"},
		{"/boot on f2fs", pc, map[string]string{"proc/mounts": "/dev/sda1 / f2fs rw 0 0\n"}, "/boot is on f2fs"},
		{"/boot/grub on a subvolume of its own", pc, map[string]string{"proc/mounts": "/dev/sda2 / ext4 rw 0 0\n/dev/sda3 /boot/grub btrfs rw,subvol=/@/grub 0 0\n"}, "/boot is on btrfs"},
		{"an encrypted /boot, by UEFI", pc, map[string]string{"proc/mounts": "/dev/mapper/luks-1 / ext4 rw 0 0\n/dev/sda1 /boot/efi vfat rw 0 0\n"}, "an encrypted disk"},
		{"UEFI, all on one ext4", efi, nil, ""},
		{"UEFI, / on LVM and a plain /boot", efi, map[string]string{"proc/mounts": "/dev/mapper/vg-root / ext4 rw 0 0\n/dev/sda2 /boot ext4 rw 0 0\n/dev/sda1 /boot/efi vfat rw 0 0\n"}, ""},
		{"UEFI, / on btrfs and a plain /boot", efi, map[string]string{"proc/mounts": "/dev/sda3 / btrfs rw 0 0\n/dev/sda2 /boot ext4 rw 0 0\n/dev/sda1 /boot/efi vfat rw 0 0\n"}, ""},
		{"UEFI, / on ZFS and /boot on xfs", efi, map[string]string{"proc/mounts": "rpool/root / zfs rw 0 0\n/dev/sda2 /boot xfs rw 0 0\n/dev/sda1 /boot/efi vfat rw 0 0\n"}, ""},
		{"UEFI, the system partition is /boot", efi, map[string]string{"proc/mounts": "/dev/sda2 / btrfs rw 0 0\n/dev/sda1 /boot vfat rw 0 0\n"}, ""},
		{"UEFI, the system partition is read-only, but not written", efi, map[string]string{"proc/mounts": "/dev/sda2 / ext4 rw 0 0\n/dev/sda1 /boot/efi vfat ro 0 0\n"}, ""},
		{"UEFI, a second /boot is mounted over the first", efi, map[string]string{"proc/mounts": "/dev/sda2 / ext4 rw 0 0\n/dev/sda3 /boot ext4 rw 0 0\n/dev/sda3 /boot ext4 ro 0 0\n"}, "mounted read-only"},
		{"UEFI, GRUB by its variable", efi, map[string]string{"sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f": "\x06\x00\x00\x00G\x00R\x00U\x00B\x00 \x002\x00"}, ""},
		{"UEFI, systemd-boot installed beside GRUB but not booted", efi, map[string]string{"boot/efi/loader/loader.conf": "timeout 3\n"}, ""},

		{"BLS", pc, map[string]string{"boot/grub/grub.cfg": debianCfg + "blscfg\n"}, "blscfg"},
		{"no drop-in", pc, map[string]string{"boot/grub/grub.cfg": strings.Replace(debianCfg, " ${flotilla_args}", "", 1)}, "90-flotilla.cfg"},
		{"no custom.cfg", pc, map[string]string{"boot/grub/grub.cfg": strings.Replace(debianCfg, "custom.cfg", "x", 1)}, "41_custom"},
		{"no load_env", pc, map[string]string{"boot/grub/grub.cfg": strings.Replace(debianCfg, "load_env", "", 1)}, "load_env"},
		{"GRUB has not booted the board", pc, map[string]string{"proc/cmdline": "root=/dev/sda1\n"}, "GRUB has not booted this board"},

		{"no early unit", bone, map[string]string{restoreUnit: ""}, "flotilla-boot-restore.service is not enabled"},
		{"no early unit on a Raspberry Pi", oldPi, map[string]string{restoreUnit: ""}, "flotilla-boot-restore.service is not enabled"},
		{"U-Boot's own script", bone, map[string]string{"boot/uEnv.txt": "uenvcmd=run x\n"}, "sets uenvcmd"},
		{"U-Boot's A/B", bone, map[string]string{"boot/uEnv.txt": "bootlimit=3\n"}, "sets bootlimit"},
		{"the eMMC flasher", bone, map[string]string{"boot/uEnv.txt": "cmdline=init=/usr/sbin/init-beagle-flasher\n"}, "instead of the system"},
		{"Windows line endings", bone, map[string]string{"boot/uEnv.txt": "cmdline=quiet\r\n"}, "Windows line endings"},

		{"another program's tryboot.txt", oldPi, map[string]string{"boot/firmware/tryboot.txt": "kernel=x\n"}, "tryboot.txt exists"},
		{"A/B by autoboot.txt", oldPi, map[string]string{"boot/firmware/autoboot.txt": "[all]\ntryboot_a_b=1\n"}, "autoboot.txt selects"},
		{"another command line", oldPi, map[string]string{"boot/firmware/config.txt": "[all]\ncmdline=other.txt\n"}, "selects what is booted"},
		{"another command line for some boards", oldPi, map[string]string{"boot/firmware/config.txt": "cmdline=cmdline.txt\n[pi4]\ncmdline=cmdline.txt2\n"}, "selects what is booted"},
		{"Ubuntu Server's A/B", oldPi, map[string]string{"boot/firmware/config.txt": "[all]\nos_prefix=current/\n"}, "selects what is booted"},
		{"Ubuntu Server", oldPi, map[string]string{"boot/firmware/config.txt": "[all]\nkernel=vmlinuz\ncmdline=cmdline.txt\ninitramfs initrd.img followkernel\n\n[pi4]\nmax_framebuffers=2\narm_boost=1\n\n[all]\ndtparam=audio=on\n"}, ""},
		{"RAUC", pc, map[string]string{"etc/rauc/system.conf": "x"}, "RAUC manages"},
		{"Mender", bone, map[string]string{"etc/mender/mender.conf": "x"}, "Mender manages"},
		{"Mender's data", bone, map[string]string{"var/lib/mender/x": "x"}, "Mender manages"},
		{"SWUpdate", bone, map[string]string{"etc/swupdate.cfg": "x"}, "SWUpdate manages"},
		{"OSTree", pc, map[string]string{"run/ostree-booted": "x"}, "OSTree manages"},
		{"Home Assistant OS", oldPi, map[string]string{"etc/hassos-release": "x"}, "Home Assistant OS manages"},
		{"Home Assistant OS by its name", pc, map[string]string{"etc/os-release": "NAME=x\nID=haos\n"}, "haos"},
		{"Ubuntu Core", pc, map[string]string{"writable/system-data/x": "x"}, "Ubuntu Core manages"},
		{"balenaOS", oldPi, map[string]string{"mnt/boot/device-type.json": "x"}, "balenaOS manages"},
		{"Torizon", oldPi, map[string]string{"etc/os-release": "ID=torizon\n"}, "torizon"},
		{"undervoltage", oldPi, map[string]string{"sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n"}, "voltage is too low now"},
		{"undervoltage in the past", oldPi, map[string]string{"sys/devices/platform/soc/soc:firmware/get_throttled": "50000\n"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := refusal(t, machine(t, c.board, c.but))
			if (s.Refused == "") != (c.reason == "") || !strings.Contains(s.Refused, c.reason) {
				t.Errorf("refused: %q, want %q", s.Refused, c.reason)
			}
		})
	}
}

func TestTheKindOfTrialIsReported(t *testing.T) {
	pi4 := maps.Clone(oldPi)
	pi4["proc/device-tree/chosen/bootloader/tryboot"] = "\x00\x00\x00\x00"
	for _, c := range []struct {
		board          map[string]string
		backend, trial string
	}{
		{pi4, fleet.BootConfigTxt, fleet.TrialTryboot}, {oldPi, fleet.BootConfigTxt, fleet.TrialDeadman},
		{bone, fleet.BootUEnv, fleet.TrialDeadman}, {pc, fleet.BootGrub, fleet.TrialGrub}, {nil, "", ""},
	} {
		if s := refusal(t, machine(t, c.board)); s.Backend != c.backend || s.Trial != c.trial {
			t.Errorf("backend %s with trial %s, want %s with %s", s.Backend, s.Trial, c.backend, c.trial)
		}
	}
}

func TestTooLittleSpaceIsRefused(t *testing.T) {
	m := machine(t, oldPi)
	if err := m.Refuses(1 << 20); err != nil {
		t.Errorf("a change of 1 MiB is refused: %v", err)
	}
	if err := m.Refuses(1 << 60); err == nil || !strings.Contains(err.Error(), "KiB are needed: remove old kernels") {
		t.Errorf("a change larger than the disk: %v, want it refused with the needed space", err)
	}
}

// grubenv or custom.cfg may be a link, as to Fedora's EFI system partition. The helper refuses such
// a board, because it would replace the link with a file.
func TestALinkInGRUBsDirectoryIsRefused(t *testing.T) {
	for _, name := range []string{"grubenv", "custom.cfg", "grub.cfg"} {
		m := machine(t, efi, map[string]string{"boot/efi/elsewhere": string(EmptyEnv())})
		link := filepath.Join(m.Root, "boot/grub", name)
		if err := os.Remove(link); err != nil && name != "custom.cfg" {
			t.Fatal(err)
		}
		if err := os.Symlink("../efi/elsewhere", link); err != nil {
			t.Fatal(err)
		}
		if s := refusal(t, m); !strings.Contains(s.Refused, "is a link") &&
			!strings.Contains(s.Refused, "is not a regular file") {
			t.Errorf("%s is a link, but the board is refused with %q", name, s.Refused)
		}
	}
}
