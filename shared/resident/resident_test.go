package resident

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnlyReadOnlyMappingsAreDropped(t *testing.T) {
	const maps = `00400000-0156a000 r-xp 00000000 08:01 131 /usr/bin/flotilla hub
0156a000-026f0000 r--p 0116a000 08:01 131 /usr/bin/flotilla hub
026f0000-0274b000 rw-p 022f0000 08:01 131 /usr/bin/flotilla hub
0274b000-027c8000 rw-p 00000000 00:00 0
c000000000-c000800000 rw-p 00000000 00:00 0
7f0000000000-7f0000021000 r-xp 00000000 08:01 140 /lib/libc.so.6
7ffd1b5f2000-7ffd1b5f4000 r-xp 00000000 00:00 0 [vdso]
no line
`
	got := program(maps, "/usr/bin/flotilla hub")
	want := []pages{{0x400000, 0x156a000}, {0x156a000, 0x26f0000}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("the dropped mappings are %x, want %x", got, want)
	}
}

func TestDropProgramReleasesPages(t *testing.T) {
	before := fileRSS(t)
	DropProgram()
	if after := fileRSS(t); after >= before {
		t.Errorf("%d kB of files in memory before, %d kB after", before, after)
	}
}

func TestSmallPagesDisablesHugePages(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	end()
	if err := GiveBack(over); err != nil {
		t.Error(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0) }()
	if on, found := status(t, "THP_enabled:"); found && on != 0 {
		t.Error("transparent huge pages are not disabled")
	}
}

// fileRSS returns the process's resident pages of files, in kB.
func fileRSS(t *testing.T) int {
	t.Helper()
	n, found := status(t, "RssFile:")
	if !found {
		t.Skip("the kernel does not report RssFile")
	}
	return n
}

// status returns a number from /proc/self/status.
func status(t *testing.T, name string) (n int, found bool) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	_, rest, found := strings.Cut(string(text), name)
	if !found {
		return 0, false
	}
	if n, err = strconv.Atoi(strings.Fields(rest)[0]); err != nil {
		t.Fatalf("/proc/self/status has %s %.30q", name, rest)
	}
	return n, true
}
