// Package resident makes small what a process keeps in memory for nothing.
// It knows nothing of Flotilla.
package resident

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// DropProgram lets go of the pages of the program itself, code and constants:
// most were needed once, at the start. Those in use come back by themselves from
// the page cache; the others the kernel may then take away. Without /proc it does
// nothing.
func DropProgram() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for _, p := range program(string(maps), exe) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, p.from, p.to-p.from, unix.MADV_DONTNEED) // no more than a hint
	}
}

type pages struct{ from, to uintptr }

// program are the pages of a file that nobody can write to.
func program(maps, exe string) (all []pages) {
	for line := range strings.Lines(maps) {
		var p pages
		var mode, offset, device, inode string
		n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %s", &p.from, &p.to, &mode, &offset, &device, &inode)
		if n == 6 && strings.HasPrefix(mode, "r-") && strings.HasSuffix(strings.TrimSpace(line), " "+exe) {
			all = append(all, p)
		}
	}
	return all
}
