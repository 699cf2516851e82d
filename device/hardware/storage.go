package hardware

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const sector = 512 // /sys/block counts in sectors of 512 bytes for every disk

// Memory disks, disks made of other disks and read-only file systems are left out: they say nothing
// about the storage's health.
var (
	virtualDisks = []string{"loop", "ram", "zram", "dm-", "md", "nbd", "sr", "fd"}
	readOnlyFS   = []string{"squashfs", "iso9660", "erofs", "cramfs", "romfs", "udf"}
)

func disks(t tree) []Disk {
	var list []Disk
	for _, dir := range t.glob("/sys/block/*") {
		name := path.Base(dir)
		isVirtual := slices.ContainsFunc(virtualDisks, func(p string) bool { return strings.HasPrefix(name, p) })
		size := t.integer(dir + "/size")
		if isVirtual || size == 0 || strings.Contains(name, "boot") || strings.Contains(name, "rpmb") {
			continue
		}
		d := Disk{
			Name:     name,
			Kind:     t.text(dir + "/device/type"),
			Model:    t.text(dir + "/device/model"),
			Made:     t.text(dir + "/device/date"),
			Bytes:    size * sector,
			Written:  written(t, dir),
			ReadOnly: t.integer(dir+"/ro") == 1,
		}
		if d.Kind != "SD" && d.Kind != "MMC" { // for SCSI devices type is a number
			d.Kind = ""
		}
		if d.Kind != "" {
			d.Model = t.text(dir + "/device/name")
			d.Maker = clean(t.text(dir+"/device/manfid") + " " + t.text(dir+"/device/oemid"))
		}
		d.LifeUsed = lifeUsed(t.text(dir + "/device/life_time"))
		d.EndOfLife = map[int64]string{1: "normal", 2: "warning", 3: "urgent"}[t.integer(dir+"/device/pre_eol_info")]
		d.Errors = fileSystemErrors(t, name)
		list = append(list, d)
	}
	return few(list)
}

// fileSystemErrors counts the ext4 errors on a disk since the last check of its file systems. SD
// cards themselves report no errors.
func fileSystemErrors(t tree, disk string) (n int64) {
	for _, dir := range t.glob("/sys/fs/ext4/" + disk + "*") {
		if part := strings.TrimPrefix(strings.TrimPrefix(path.Base(dir), disk), "p"); strings.Trim(part, "0123456789") == "" {
			n += t.integer(dir + "/errors_count")
		}
	}
	return n
}

// written returns the bytes written to a disk: the seventh field of its statistics, in sectors.
func written(t tree, dir string) int64 {
	f := strings.Fields(t.text(dir + "/stat"))
	if len(f) < 7 {
		return 0
	}
	n, _ := strconv.ParseInt(f[6], 10, 64)
	return n * sector
}

// lifeUsed parses "0x02 0x01", tenths of the life of an eMMC's two kinds of cells (JEDEC
// JESD84-B51, DEVICE_LIFE_TIME_EST), and returns the worse one. 0x0b means past its life.
func lifeUsed(text string) int {
	worst := 0
	for f := range strings.FieldsSeq(text) {
		if n, err := strconv.ParseInt(f, 0, 32); err == nil && n <= 0x0b {
			worst = max(worst, int(n)*10)
		}
	}
	return worst
}

// readOnlyMounts returns the read-only mounts of disks whose file system is normally writable.
func readOnlyMounts(t tree) []string {
	b, err := t.read("/proc/mounts")
	if err != nil {
		return nil
	}
	var list []string
	for line := range strings.Lines(string(b)) { // device, place, type, options
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasPrefix(f[0], "/dev/") || strings.HasPrefix(f[0], "/dev/loop") ||
			slices.Contains(readOnlyFS, f[2]) {
			continue
		}
		if slices.Contains(strings.Split(f[3], ","), "ro") && !slices.Contains(list, f[1]) {
			list = append(list, clean(f[1]))
		}
	}
	return few(list)
}

// unwritable returns the directories of agent and engine whose file system is read-only now.
func unwritable(t tree, o Options) []string {
	var list []string
	for _, dir := range slices.Compact([]string{stateDir(o), imageDir(o)}) {
		if st, err := t.statfs(dir); err == nil && st.Flags&unix.ST_RDONLY != 0 {
			list = append(list, dir)
		}
	}
	return list
}
