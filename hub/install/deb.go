package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/md5" //nolint:gosec // what dpkg --verify compares
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	firmwareconfigs "flotilla.dev/firmware-configs"
)

// Paths of the Debian package, which must not use /usr/local.
const (
	packageBin   = "usr/bin/flotilla-device"
	packageUnits = "lib/systemd/system/"
)

// Maintainer scripts. Installing the package does not start an agent or a boot helper. Files of the
// install line override those of packages, so the scripts handle both orders: installing the
// package moves the line's units away, and removing the package keeps what the line installed
// later. A unit that the owner has edited stays.
const (
	preamble = `#!/bin/sh
set -e
units=/etc/systemd/system
program=/usr/local/bin/flotilla-device
byline() { # UNIT
	grep -Eqs "^ExecStart=$program (run|boot-helper( --[a-z]+)?)\$" "$units/${1%.*}.service"
}
all="flotilla-device.service flotilla-boot-helper.socket flotilla-boot-helper.service flotilla-boot-deadman.service flotilla-boot-restore.service"
`
	postinst = preamble + `for unit in $all; do
	if [ -f $units/$unit ] && byline $unit; then
		mv -f $units/$unit $units/$unit.replaced
		echo "flotilla: the package's $unit takes the place of $units/$unit, which is kept as $unit.replaced" >&2
		if [ "$(systemctl is-enabled $unit)" = enabled ]; then
			systemctl reenable $unit
		fi
	fi
done
if [ -f $program ]; then
	ln -sfn /usr/bin/flotilla-device $program
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart flotilla-device.service
fi
`
	prerm = preamble + `if [ "$1" = remove ]; then
	[ "$(readlink $program)" != /usr/bin/flotilla-device ] || rm -f $program
	ours=
	for unit in $all; do
		byline $unit || ours="$ours $unit"
	done
	if [ -n "$ours" ] && [ -d /run/systemd/system ]; then
		systemctl disable --now $ours
	fi
fi
`
)

// debian is an agent's Debian package without the program, which is stored uncompressed between
// head and tail.
type debian struct{ head, tail []byte }

func (d debian) size(program int64) int64 { return int64(len(d.head)) + program + int64(len(d.tail)) }

// A pack is the package of one agent.
type pack struct {
	of Agent
	debian
}

// pack builds an agent's package once, because anonymous clients can request it and building reads
// the whole program for its checksums.
func (d *Depot) pack(program io.Reader, a Agent) (debian, error) {
	d.packing.Lock()
	defer d.packing.Unlock()
	if have, ok := d.packs[a.Arch]; ok && have.of == a {
		return have.debian, nil
	}
	made, err := packed(program, a, d.Version)
	if err != nil {
		return debian{}, err
	}
	if d.packs == nil {
		d.packs = map[string]pack{}
	}
	d.packs[a.Arch] = pack{a, made}
	return made, nil
}

// packed builds an agent's package. It reads the program once, for the checksum.
func packed(program io.Reader, a Agent, version string) (debian, error) {
	p := DevicePackage(a.Arch, version, a.when)
	l, err := p.layout(program, a.File, a.Size)
	if err != nil {
		return debian{}, err
	}
	head := p.archive(l.control)
	p.member(head, "data.tar", int64(len(l.before))+a.Size+int64(len(l.after)))
	head.Write(l.before)
	return debian{head.Bytes(), l.after}, nil // a tar has an even size
}

// A Package is a Debian package of one large program and small files.
type Package struct {
	Name, Version, Arch string // Debian's architecture
	Recommends          string
	Description         string
	Program             string            // path in the package
	Files               map[string]string // path in the package → content
	Programs            map[string]string // more programs: path in the package → file on this machine
	Scripts             map[string]string // maintainer scripts by name
	When                time.Time         // modification time of every file, so that the same input makes the same bytes
}

// DevicePackage describes the agent's package for one of our architectures.
func DevicePackage(arch, version string, when time.Time) Package {
	files := map[string]string{}
	for _, name := range firmwareconfigs.Units() {
		unit, _ := firmwareconfigs.Unit(name)
		files[packageUnits+name] = strings.ReplaceAll(unit, "/usr/local/bin", "/usr/bin")
	}
	return Package{
		Name: "flotilla-device", Version: version, Arch: arches[arch], When: when, Program: packageBin, Files: files,
		Recommends: "docker.io | podman | docker-ce",
		Description: `Flotilla's agent for devices
 It runs the containers that a Flotilla hub wants on this device, and goes on
 without the hub.`,
		Scripts: map[string]string{"postinst": postinst, "prerm": prerm},
	}
}

// A layout is the package's two tars; the program is written between before and after.
type layout struct{ control, before, after []byte }

// layout reads the program once, for the checksum.
func (p Package) layout(program io.Reader, file string, size int64) (l layout, err error) {
	sum := md5.New() //nolint:gosec // see above
	if _, err := io.Copy(sum, program); err != nil {
		return l, fmt.Errorf("read %s: %w", file, err)
	}
	sums, installed := fmt.Sprintf("%x  %s\n", sum.Sum(nil), p.Program), size
	var data bytes.Buffer // everything before the program
	t := tar.NewWriter(&data)
	for _, dir := range p.directories() {
		if err := t.WriteHeader(p.entry(dir, 0o755, 0)); err != nil {
			return l, err
		}
	}
	add := func(name, content string, mode int64) error {
		sums += fmt.Sprintf("%x  %s\n", md5.Sum([]byte(content)), name) //nolint:gosec // see above
		installed += int64(len(content))
		return p.write(t, "./"+name, mode, content)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Files)) {
		if err := add(name, p.Files[name], 0o644); err != nil {
			return l, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.Programs)) {
		content, err := os.ReadFile(p.Programs[name])
		if err == nil {
			err = add(name, string(content), 0o755)
		}
		if err != nil {
			return l, err
		}
	}
	if err := t.WriteHeader(p.entry("./"+p.Program, 0o755, size)); err != nil {
		return l, err
	}
	const block = 512
	l.before = data.Bytes()
	l.after = make([]byte, (block-size%block)%block+2*block) // pads the program's last block, and ends the tar
	l.control, err = p.control(sums, installed)
	return l, err
}

// archive begins a package, which is an ar archive of two tars (deb(5)).
func (p Package) archive(control []byte) *bytes.Buffer {
	head := bytes.NewBufferString("!<arch>\n")
	p.member(head, "debian-binary", 4)
	head.WriteString("2.0\n")
	p.member(head, "control.tar.gz", int64(len(control)))
	head.Write(control)
	if len(control)%2 == 1 {
		head.WriteByte('\n')
	}
	return head
}

// control returns the compressed tar that dpkg reads: description, checksums and scripts.
func (p Package) control(sums string, installed int64) ([]byte, error) {
	var control bytes.Buffer
	z := gzip.NewWriter(&control)
	t := tar.NewWriter(z)
	recommends := ""
	if p.Recommends != "" {
		recommends = "Recommends: " + p.Recommends + "\n"
	}
	err := errors.Join(
		p.write(t, "./control", 0o644, fmt.Sprintf(`Package: %s
Version: %s
Architecture: %s
Maintainer: Flotilla <root@localhost>
Installed-Size: %d
Section: admin
Priority: optional
%sDescription: %s
`, p.Name, debianVersion(p.Version), p.Arch, installed/1024+1, recommends, p.Description)),
		p.write(t, "./md5sums", 0o644, sums))
	for _, name := range slices.Sorted(maps.Keys(p.Scripts)) {
		err = errors.Join(err, p.write(t, "./"+name, 0o755, p.Scripts[name]))
	}
	err = errors.Join(err, t.Close(), z.Close())
	return control.Bytes(), err
}

// directories returns every directory of the package, parents first.
func (p Package) directories() []string {
	dirs := map[string]bool{}
	for _, names := range [][]string{{p.Program}, slices.Collect(maps.Keys(p.Files)),
		slices.Collect(maps.Keys(p.Programs))} {
		for _, name := range names {
			for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
				dirs["./"+dir+"/"] = true
			}
		}
	}
	dirs["./"] = true
	return slices.Sorted(maps.Keys(dirs))
}

// member writes the header of a file in an ar archive.
func (p Package) member(b *bytes.Buffer, name string, size int64) {
	fmt.Fprintf(b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, p.When.Unix(), 0, 0, "100644", size)
}

func (p Package) write(t *tar.Writer, name string, mode int64, text string) error {
	if err := t.WriteHeader(p.entry(name, mode, int64(len(text)))); err != nil {
		return err
	}
	_, err := io.WriteString(t, text)
	return err
}

func (p Package) entry(name string, mode, size int64) *tar.Header {
	h := &tar.Header{Name: name, Mode: mode, Size: size, Uname: "root", Gname: "root",
		ModTime: p.When.Truncate(time.Second), Typeflag: tar.TypeReg, Format: tar.FormatGNU}
	if strings.HasSuffix(name, "/") {
		h.Typeflag = tar.TypeDir
	}
	return h
}

// debianVersion converts a version for dpkg. Debian's versions begin with a digit, and have - only
// before the revision.
func debianVersion(v string) string {
	v = strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune(".+~", r) {
			return r
		}
		return '.'
	}, strings.TrimPrefix(v, "v"))
	if v == "" || v[0] < '0' || v[0] > '9' {
		v = "0~" + v
	}
	return v
}
