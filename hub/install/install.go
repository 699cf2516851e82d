// Package install hands out what a device needs that has nothing yet: the agent for its
// processor, as a program and as a Debian package, its unit, and the script that puts
// them in place. A device without internet is joined with them by one line.
//
// What it hands out is no secret, and is asked for before anybody could be known.
package install

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	firmwareconfigs "flotilla.dev/firmware-configs"
)

// An Agent is a program of the directory, for one kind of processor.
type Agent struct {
	Arch string // amd64, arm64, armv7 or armv6
	File string
	Size int64
	when time.Time
}

// arches are the processors that there are agents for, and Debian's names of them.
var arches = map[string]string{"amd64": "amd64", "arm64": "arm64", "armv7": "armhf", "armv6": "armhf"}

// maxAgent bounds what is looked at: an agent has 16 MB.
const maxAgent = 64 << 20

// A Depot is a directory of agents. What a file is is what the program in it says, whatever its
// name.
type Depot struct {
	Dir     string
	Version string // of the hub, which its agents share
	Now     func() time.Time
	Log     *slog.Logger

	mu    sync.Mutex
	known map[string]Agent // by file; Arch "": no agent

	packing sync.Mutex
	packs   map[string]pack // by processor

	gate gate
}

// Agents lists the agents that there are, by processor. A directory that is not there has none.
func (d *Depot) Agents() []Agent {
	var found []Agent
	files, err := os.ReadDir(d.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.Log.Warn("cannot read the directory of agents", "dir", d.Dir, "err", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := make(map[string]Agent, len(files))
	for _, f := range files {
		file := filepath.Join(d.Dir, f.Name())
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxAgent {
			continue
		}
		a, ok := d.known[file]
		if !ok || a.Size != info.Size() || !a.when.Equal(info.ModTime()) {
			a = Agent{archOf(file), file, info.Size(), info.ModTime()}
			if a.Arch == "" {
				d.Log.Warn("not offered to devices: not an agent for a supported processor", "file", file)
			}
		}
		known[file] = a
		if a.Arch != "" && !slices.ContainsFunc(found, func(b Agent) bool { return b.Arch == a.Arch }) {
			found = append(found, a)
		}
	}
	d.known = known
	sort.Slice(found, func(i, j int) bool { return found[i].Arch < found[j].Arch })
	return found
}

// Arches names the processors that there are agents for.
func (d *Depot) Arches() []string {
	agents := d.Agents()
	names := make([]string, len(agents))
	for i, a := range agents {
		names[i] = a.Arch
	}
	return names
}

// archOf is the processor that a file is an agent for, "" if it is none.
func archOf(file string) string {
	info := builtBy(file)
	if info == nil || info.Path != "flotilla.dev/device" {
		return ""
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	arch := set["GOARCH"]
	if arch == "arm" {
		arch += "v" + set["GOARM"][:min(1, len(set["GOARM"]))]
	}
	if _, ok := arches[arch]; !ok || set["GOOS"] != "linux" {
		return ""
	}
	return arch
}

// magic begins what Go's linker writes of a build: 32 bytes, aligned to 16, and after them the
// compiler's version and the modules, each with its length before it. Package debug/buildinfo
// reads the same, with everything that knows formats of programs: half a megabyte of the hub.
const magic = "\xff Go buildinf:"

// builtBy is what a Go program says of its build, nil if it is none.
func builtBy(file string) *debug.BuildInfo {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	if !whole(f) {
		return nil
	}
	const align, head, inline, mark, window, longest = 16, 32, 2, 16, 1 << 20, 256 << 10
	piece := make([]byte, window+head) // a window, and the head of what begins at its end
	said := make([]byte, longest)
	for off := int64(0); ; off += window {
		n, err := f.ReadAt(piece, off)
		for at, b := 0, piece[:n]; ; {
			i := bytes.Index(b[at:], []byte(magic))
			if i < 0 {
				break
			}
			begin := at + i
			at = begin + 1
			if begin%align != 0 || begin >= window || len(b) < begin+head || b[begin+15]&inline == 0 {
				continue // it stands in something else, such as in this program
			}
			n, _ := f.ReadAt(said, off+int64(begin+head))
			_, rest, ok := counted(said[:n])
			text, _, okText := counted(rest)
			if !ok || !okText || len(text) < 2*mark {
				continue
			}
			if info, err := debug.ParseBuildInfo(string(text[mark : len(text)-mark])); err == nil {
				return info
			}
		}
		if err != nil {
			return nil
		}
	}
}

// whole tells whether a program is not cut off, as by a disk that was full, or a copy that goes on:
// whether what it says of its segments and sections is in the file (elf(5)).
func whole(f *os.File) bool {
	const narrow, little, noBits = 1, 1, 8
	info, err := f.Stat()
	var head [64]byte
	if _, e := f.ReadAt(head[:], 0); err != nil || e != nil || string(head[:4]) != "\x7fELF" || head[5] != little {
		return false
	}
	size, short := uint64(info.Size()), binary.LittleEndian.Uint16
	number := func(b []byte, of32, of64 int) uint64 {
		if head[4] == narrow {
			return uint64(binary.LittleEndian.Uint32(b[of32:]))
		}
		return binary.LittleEndian.Uint64(b[of64:])
	}
	sizes := head[54:] // of an entry of the segments, their number, and the same of the sections
	if head[4] == narrow {
		sizes = head[42:]
	}
	in := func(table uint64, sizes []byte, begin32, begin64, size32, size64 int) bool {
		var entry [64]byte
		for i := range short(sizes[2:]) {
			at := table + uint64(i)*uint64(short(sizes))
			if n, _ := f.ReadAt(entry[:], int64(min(at, size))); n < int(short(sizes)) {
				return false
			}
			if begin64 == 24 && entry[4] == noBits { // a section of zeros, which has nothing in the file
				continue
			}
			if begin := number(entry[:], begin32, begin64); begin > size || number(entry[:], size32, size64) > size-begin {
				return false
			}
		}
		return true
	}
	return in(number(head[:], 28, 32), sizes, 4, 8, 16, 32) && in(number(head[:], 32, 40), sizes[4:], 16, 24, 20, 32)
}

// counted takes bytes that have their number before them.
func counted(b []byte) (text, rest []byte, ok bool) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, false
	}
	return b[used : used+int(n)], b[used+int(n):], true
}

//go:embed install.sh
var script string

// Script is what the line runs, for a device that knows the hub as hub.
func (d *Depot) Script(hub string) string {
	hub = strings.ReplaceAll(hub, "'", `'\''`) // it stands between single quotes
	return strings.NewReplacer("@HUB@", hub, "@AGENTS@", strings.Join(d.Arches(), " "), "@UNITS@",
		strings.Join(firmwareconfigs.Units(), " "), "@DATE@", d.Now().UTC().Format("2006-01-02 15:04Z")).Replace(script)
}

// Line is what to type on a device to install the agent and join with a token: the authority is
// fetched, compared with its hash, and nothing else is trusted. The token goes to the script as a
// line more of it: an argument would stand in sudo's log, and in the list of processes.
func Line(hub string, ca []byte, token string) string {
	hash := sha256.Sum256(ca)
	return fmt.Sprintf(`c=$(mktemp) && curl -sSkfo $c %[1]s/join/ca && { [ "$(sha256sum <$c)" = "%[2]s  -" ] || { echo "flotilla: what answers there is not the hub that made this line (another certificate authority): correct the address, or take a new line from the page of the hub" >&2; false; }; } && { curl -sSf --cacert $c %[1]s/install && echo join %[3]s; } | sudo sh -s -- $c -`,
		hub, hex.EncodeToString(hash[:]), token)
}
