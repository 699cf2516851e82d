// Package resident reduces the unused memory of a process. It knows nothing of Flotilla. Hub and
// device call it.
package resident

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// DropProgram releases the pages of the program's code and constants, most of which are needed only
// at the start. Pages that are still used return from the page cache, and the kernel may reclaim
// all others. Without /proc it does nothing.
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
		// an error does not matter: the call is a hint
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, p.from, p.to-p.from, unix.MADV_DONTNEED)
	}
}

// SmallPages switches transparent huge pages off for this process and its children. With them,
// khugepaged fills the free memory between used pages (max_ptes_none) whenever it is released.
// Without them, each page costs a page fault. An old kernel ignores the call.
func SmallPages() { _ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) }

type pages struct{ from, to uintptr }

// program returns the read-only mappings of a file.
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
