package install

import (
	_ "embed"
	"fmt"
	"strings"
	"time"
)

// A FirstBoot writes the file for SD cards whose devices join at their first boot.
type FirstBoot struct {
	Hub    string // URL, such as https://gateway:8443
	CA     []byte // PEM
	Token  string
	Engine string    // Debian package of the container engine; "": the card has one
	Now    time.Time // a device whose clock is behind sets it to this time
}

// Formats of the file.
const (
	CloudInit = "cloud-init" // user-data, for Raspberry Pi OS since Trixie, Ubuntu and other images with cloud-init
	Script    = "script"     // a shell script that root runs on the device or in its image
)

// directory is deleted once the device has joined: it has the token.
const directory = "/var/lib/flotilla-firstboot"

//go:embed firstboot.sh
var joinScript string

const joinUnit = `[Unit]
Description=Install Flotilla's agent and join its hub
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
ExecStart=` + directory + `/join
Restart=on-failure
RestartSec=15

[Install]
WantedBy=multi-user.target
`

// A cardFile is a file that the first boot needs.
type cardFile struct{ path, mode, text string }

func (f FirstBoot) files() []cardFile {
	values := strings.NewReplacer("@HUB@", strings.ReplaceAll(f.Hub, "'", `'\''`), "@TOKEN@", f.Token,
		"@NOW@", fmt.Sprint(f.Now.Unix()), "@DIR@", directory)
	return []cardFile{
		{directory + "/ca.crt", "0644", string(f.CA)},
		{directory + "/join", "0700", values.Replace(joinScript)},
		{"/etc/systemd/system/flotilla-firstboot.service", "0644", joinUnit},
	}
}

// Write returns the file in a format.
func (f FirstBoot) Write(format string) (string, error) {
	var b strings.Builder
	if strings.Trim(f.Engine, "abcdefghijklmnopqrstuvwxyz0123456789.+-") != "" {
		return "", fmt.Errorf("%q is not the name of a Debian package", f.Engine)
	}
	switch format {
	case CloudInit:
		b.WriteString("#cloud-config\n# Joins " + f.Hub + ". Keep it secret: it has a join token.\n")
		if f.Engine != "" {
			b.WriteString("package_update: true\npackages: [" + f.Engine + "]\n")
		}
		b.WriteString("write_files:\n")
		for _, c := range f.files() {
			fmt.Fprintf(&b, "- path: %s\n  permissions: '%s'\n  content: |\n", c.path, c.mode)
			for line := range strings.Lines(c.text) {
				b.WriteString("    " + line)
			}
		}
		b.WriteString("runcmd:\n- [systemctl, daemon-reload]\n- [systemctl, enable, flotilla-firstboot]\n" +
			"- [systemctl, start, --no-block, flotilla-firstboot]\n")
	case Script:
		b.WriteString("#!/bin/sh\n# Joins " + f.Hub + " at the next boot. Keep it secret: it has a join token.\nset -eu\n" +
			"mkdir -p " + directory + "\n")
		for _, c := range f.files() {
			fmt.Fprintf(&b, "cat >%s <<'FLOTILLA-END'\n%sFLOTILLA-END\nchmod %s %[1]s\n", c.path, c.text, c.mode)
		}
		if f.Engine != "" {
			b.WriteString("apt-get update && apt-get install -y " + f.Engine + " ||\n" +
				"\techo 'flotilla: cannot install " + f.Engine + "; install a container engine later' >&2\n")
		}
		b.WriteString("systemctl enable flotilla-firstboot\n")
		b.WriteString("[ ! -d /run/systemd/system ] || systemctl start --no-block flotilla-firstboot\n")
	default:
		return "", fmt.Errorf("unknown format %q; use %s or %s", format, CloudInit, Script)
	}
	return b.String(), nil
}
