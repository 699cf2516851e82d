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

// SmallPages has memory that this process is given from now on come in pages of their size, also
// where the system is for transparent huge pages, as Debian's is: khugepaged fills what lies free
// between what is used (max_ptes_none), as often as it has been given back. The price is a fault
// for each page. It holds for the process' children, too. A kernel that does not know it does as it
// did.
func SmallPages() { _ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) }

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
