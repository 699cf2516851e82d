package install

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	firmwareconfigs "flotilla.dev/firmware-configs"
)

// Maintainer scripts of the hub's package. A first installation starts the hub. An upgrade first
// backs up the old version's database. Removing and purging keep the data, which records the whole
// fleet.
const (
	hubPreinst = `#!/bin/sh
set -e
if [ "$1" = upgrade ] && [ -x /usr/bin/flotilla-hub ] && [ -e /var/lib/flotilla/hub/hub.db ]; then
	backup="/var/backups/flotilla-hub-before-upgrade-from-$2.db"
	rm -f "$backup"
	if /usr/bin/flotilla-hub backup "$backup" >&2; then
		echo "flotilla: a backup of version $2 is $backup" >&2
	else
		echo "flotilla: no backup was made before the upgrade" >&2
	fi
fi
`
	hubPostinst = `#!/bin/sh
set -e
unit=/etc/systemd/system/flotilla-hub.service
if [ -f $unit ] && grep -q "^ExecStart=/usr/local/bin/flotilla-hub serve$" $unit; then
	mv -f $unit $unit.replaced
	echo "flotilla: the package's unit takes the place of $unit, which is kept as $unit.replaced" >&2
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	if [ -z "$2" ]; then
		systemctl enable flotilla-hub.service
		systemctl restart flotilla-hub.service
		echo "flotilla: the link to the page is in: journalctl -u flotilla-hub" >&2
	else
		systemctl try-restart flotilla-hub.service
	fi
fi
`
	hubPrerm = `#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	systemctl disable --now flotilla-hub.service
fi
`
	hubPostrm = `#!/bin/sh
set -e
if [ "$1" = purge ]; then
	echo "flotilla: the hub's data is kept in /var/lib/flotilla/hub; remove it with: rm -r /var/lib/flotilla/hub /var/lib/private/flotilla/hub" >&2
fi
`
)

// HubPackage describes the hub's package for one of Debian's architectures. It includes the agents
// that the hub offers, and builds, the texts of the files that describe them: architecture → file.
func HubPackage(arch, version string, agents, builds map[string]string, when time.Time) Package {
	const agentsDir = "usr/lib/flotilla/agents"
	unit := strings.ReplaceAll(firmwareconfigs.HubUnit(), "/usr/local/bin", "/usr/bin")
	unit = strings.Replace(unit, "EnvironmentFile=", "Environment=FLOTILLA_AGENTS_DIR=/"+agentsDir+"\nEnvironmentFile=", 1)
	programs := map[string]string{}
	for arch, file := range agents {
		programs[agentsDir+"/flotilla-device-"+arch] = file
	}
	files := map[string]string{packageUnits + "flotilla-hub.service": unit}
	for arch, text := range builds {
		files[agentsDir+"/flotilla-device-"+arch+BuildSuffix] = text
	}
	return Package{
		Name: "flotilla-hub", Version: version, Arch: arch, When: when, Program: "usr/bin/flotilla-hub", Programs: programs,
		Files: files,
		Description: `Flotilla's hub: manages a fleet of devices and what runs on them
 It has the devices' MQTT broker, a Kubernetes-compatible API and a page, and
 hands the agent out to new devices.`,
		Scripts: map[string]string{"preinst": hubPreinst, "postinst": hubPostinst, "prerm": hubPrerm, "postrm": hubPostrm},
	}
}

// Write writes the compressed package with the program from a file.
func (p Package) Write(to io.Writer, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	l, err := p.layout(f, file, info.Size())
	if err != nil {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	var data bytes.Buffer
	z, _ := gzip.NewWriterLevel(&data, gzip.BestCompression)
	for _, part := range []io.Reader{bytes.NewReader(l.before), f, bytes.NewReader(l.after)} {
		if _, err := io.Copy(z, part); err != nil {
			return fmt.Errorf("pack %s: %w", file, err)
		}
	}
	if err := z.Close(); err != nil {
		return err
	}
	whole := p.archive(l.control)
	p.member(whole, "data.tar.gz", int64(data.Len()))
	whole.Write(data.Bytes())
	if data.Len()%2 == 1 {
		whole.WriteByte('\n')
	}
	_, err = whole.WriteTo(to)
	return err
}
