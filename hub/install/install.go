// Package install serves what a new device needs: the agent for its processor (as a program and as
// a Debian package), the agent's unit and the install script. One command line installs and joins a
// device without internet.
//
// It serves no secrets and needs no authentication, because a new device has no identity. Package
// serve mounts the handler.
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
	"flotilla.dev/shared/fleet"
)

// An Agent is a program in the directory, for one processor architecture.
type Agent struct {
	Arch string // amd64, arm64, armv7 or armv6
	File string
	Size int64
	when time.Time
}

// arches are the supported architectures with their Debian names.
var arches = map[string]string{"amd64": "amd64", "arm64": "arm64", "armv7": "armhf", "armv6": "armhf"}

// maxAgent is the size limit of an agent.
const maxAgent = fleet.MaxAgentSize

// A Depot is the directory of agents. It identifies a file by the build information in it, not by
// its name.
type Depot struct {
	Dir     string
	Version string // version of the hub and its agents
	Now     func() time.Time
	Log     *slog.Logger

	mu    sync.Mutex
	known map[string]Agent // by file; Arch is "" if the file is not an agent

	hashes map[Agent]string // SHA-256, hex

	packing sync.Mutex
	packs   map[string]pack // by architecture

	limiter downloadLimiter
}

// Agents lists the agents, sorted by architecture. A missing directory has no agents.
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
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxAgent || strings.HasSuffix(file, BuildSuffix) {
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

// Arches lists the architectures with an agent.
func (d *Depot) Arches() []string {
	agents := d.Agents()
	names := make([]string, len(agents))
	for i, a := range agents {
		names[i] = a.Arch
	}
	return names
}

// archOf returns the architecture of an agent's file, or "".
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

// magic begins the build information that Go's linker writes: 32 bytes, aligned to 16, then the
// compiler's version and the modules, each after its length. Package debug/buildinfo reads this
// too, but would add half a megabyte to the hub.
const magic = "\xff Go buildinf:"

// builtBy returns the build information of a Go program, or nil.
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
	piece := make([]byte, window+head) // room for a window, and for a header that begins at the window's end
	buildInfo := make([]byte, longest)
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
				continue // the match is not a header; the agent's own code has these bytes too
			}
			n, _ := f.ReadAt(buildInfo, off+int64(begin+head))
			_, rest, ok := counted(buildInfo[:n])
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

// whole reports whether a program is complete: the file has all segments and sections that its
// headers name (elf(5)). A full disk or an unfinished copy cuts a file short.
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
	sizes := head[54:] // entry size and number of the segments, then of the sections
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
			if begin64 == 24 && entry[4] == noBits { // a section of zeros has no bytes in the file
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

// counted splits b into the text whose length b begins with, and the rest.
func counted(b []byte) (text, rest []byte, ok bool) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) {
		return nil, nil, false
	}
	return b[used : used+int(n)], b[used+int(n):], true
}

//go:embed install.sh
var script string

// Script returns the install script for devices that reach the hub at this URL.
func (d *Depot) Script(hub string) string {
	hub = strings.ReplaceAll(hub, "'", `'\''`) // the script quotes the URL with '
	return strings.NewReplacer("@HUB@", hub, "@AGENTS@", strings.Join(d.Arches(), " "), "@UNITS@",
		strings.Join(firmwareconfigs.Units(), " "), "@DATE@", d.Now().UTC().Format("2006-01-02 15:04Z")).Replace(script)
}

// Line returns the command that installs the agent and joins. The command fetches the certificate
// authority, and trusts it because its hash is in the line. The script reads the token from
// standard input, because sudo's log and the process list show arguments.
func Line(hub string, ca []byte, token string) string {
	hash := sha256.Sum256(ca)
	return fmt.Sprintf(`c=$(mktemp) && curl -sSkfo $c %[1]s/join/ca && { [ "$(sha256sum <$c)" = "%[2]s  -" ] || { echo "flotilla: the server at this address is not the hub that made this line (another certificate authority): correct the address, or copy a new line from the page of the hub" >&2; false; }; } && { curl -sSf --cacert $c %[1]s/install && echo join %[3]s; } | sudo sh -s -- $c -`,
		hub, hex.EncodeToString(hash[:]), token)
}
