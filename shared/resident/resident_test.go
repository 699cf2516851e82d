package resident

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestOnlyWhatCannotBeWrittenIsDropped(t *testing.T) {
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
		t.Errorf("it would drop %x, want %x", got, want)
	}
}

func TestTheProgramGoesOnWithFewerOfItsPages(t *testing.T) {
	before := fileRSS(t)
	DropProgram()
	if after := fileRSS(t); after >= before {
		t.Errorf("%d kB of files in memory before, %d kB after", before, after)
	}
}

// fileRSS is how much of this process's memory are pages of files, in kB.
func fileRSS(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatalf("/proc/self/status says RssFile %.30q", rest)
	}
	return n
}
