package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/md5" //nolint:gosec // what dpkg --verify compares
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	firmwareconfigs "flotilla.dev/firmware-configs"
)

// Paths of the Debian package, which must not use /usr/local.
const (
	packageBin   = "usr/bin/flotilla-device"
	packageUnits = "lib/systemd/system/"
)

// Maintainer scripts. Installing the package does not start an agent or a boot helper. The install
// line puts its files where they have priority over those of packages, so the scripts handle both
// orders: an installed package replaces the units of the line, and removing the package keeps what
// the line installed later. A unit that the owner has changed stays.
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

// debian is an agent as a Debian package, without the program: it is stored uncompressed between
// head and tail.
type debian struct{ head, tail []byte }

func (d debian) size(program int64) int64 { return int64(len(d.head)) + program + int64(len(d.tail)) }

// A pack is the package of one agent.
type pack struct {
	of Agent
	debian
}

// pack builds the package of an agent once. Anonymous clients can request it, and building reads
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

// packed builds the package of a program, which it reads once for the checksum. A package is an ar
// archive of two tars (deb(5)).
func packed(program io.Reader, a Agent, version string) (d debian, err error) {
	sum := md5.New() //nolint:gosec // see above
	if _, err := io.Copy(sum, program); err != nil {
		return d, fmt.Errorf("read %s: %w", a.File, err)
	}

	var data bytes.Buffer // everything before and after the program
	t := tar.NewWriter(&data)
	for _, dir := range []string{"./", "./lib/", "./lib/systemd/", "./lib/systemd/system/", "./usr/", "./usr/bin/"} {
		if err := t.WriteHeader(entry(a, dir, 0o755, 0)); err != nil {
			return d, err
		}
	}
	sums, installed := fmt.Sprintf("%x  %s\n", sum.Sum(nil), packageBin), a.Size
	for _, name := range firmwareconfigs.Units() {
		unit, _ := firmwareconfigs.Unit(name)
		unit = strings.ReplaceAll(unit, "/usr/local/bin", "/"+path.Dir(packageBin))
		if err := write(t, a, "./"+packageUnits+name, 0o644, unit); err != nil {
			return d, err
		}
		sums += fmt.Sprintf("%x  %s\n", md5.Sum([]byte(unit)), packageUnits+name) //nolint:gosec // see above
		installed += int64(len(unit))
	}
	if err := t.WriteHeader(entry(a, "./"+packageBin, 0o755, a.Size)); err != nil { // written now
		return d, err
	}
	const block = 512
	end := make([]byte, (block-a.Size%block)%block+2*block) // pads the program's last block, and ends the tar

	var control bytes.Buffer
	z := gzip.NewWriter(&control)
	t = tar.NewWriter(z)
	files := []struct {
		name, text string
		mode       int64
	}{
		{"./control", fmt.Sprintf(`Package: flotilla-device
Version: %s
Architecture: %s
Maintainer: Flotilla <root@localhost>
Installed-Size: %d
Section: admin
Priority: optional
Recommends: docker.io | podman | docker-ce
Description: Flotilla's agent for devices
 It runs the containers that a Flotilla hub wants on this device, and goes on
 without the hub.
`, debianVersion(version), arches[a.Arch], installed/1024+1), 0o644},
		{"./md5sums", sums, 0o644},
		{"./postinst", postinst, 0o755},
		{"./prerm", prerm, 0o755},
	}
	for _, f := range files {
		if err := write(t, a, f.name, f.mode, f.text); err != nil {
			return d, err
		}
	}
	if err := t.Close(); err != nil {
		return d, err
	}
	if err := z.Close(); err != nil {
		return d, err
	}

	var head bytes.Buffer
	head.WriteString("!<arch>\n")
	member(&head, a, "debian-binary", 4)
	head.WriteString("2.0\n")
	member(&head, a, "control.tar.gz", int64(control.Len()))
	head.Write(control.Bytes())
	if control.Len()%2 == 1 {
		head.WriteByte('\n')
	}
	member(&head, a, "data.tar", int64(data.Len())+a.Size+int64(len(end)))
	head.Write(data.Bytes())
	return debian{head.Bytes(), end}, nil // a tar has an even size
}

// member writes the header of a file in an ar archive.
func member(b *bytes.Buffer, a Agent, name string, size int64) {
	fmt.Fprintf(b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, a.when.Unix(), 0, 0, "100644", size)
}

func write(t *tar.Writer, a Agent, name string, mode int64, text string) error {
	if err := t.WriteHeader(entry(a, name, mode, int64(len(text)))); err != nil {
		return err
	}
	_, err := io.WriteString(t, text)
	return err
}

func entry(a Agent, name string, mode, size int64) *tar.Header {
	h := &tar.Header{Name: name, Mode: mode, Size: size, Uname: "root", Gname: "root",
		ModTime: a.when.Truncate(time.Second), Typeflag: tar.TypeReg, Format: tar.FormatGNU}
	if strings.HasSuffix(name, "/") {
		h.Typeflag = tar.TypeDir
	}
	return h
}

// debianVersion converts a version for dpkg: it begins with a digit, and - separates the revision.
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
