package hardware

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"runtime"
	"strings"
)

const deviceTree = "/proc/device-tree/"

// shortNames are the boards whose short name differs from the device-tree name.
var shortNames = map[string]string{
	"raspberrypi,model-zero":         "raspberrypi-zero",
	"raspberrypi,model-zero-w":       "raspberrypi-zero-w",
	"raspberrypi,model-zero-2":       "raspberrypi-zero2w",
	"raspberrypi,model-zero-2-w":     "raspberrypi-zero2w",
	"raspberrypi,2-model-b":          "raspberrypi2",
	"raspberrypi,2-model-b-rev2":     "raspberrypi2",
	"raspberrypi,3-model-a-plus":     "raspberrypi3",
	"raspberrypi,3-model-b":          "raspberrypi3",
	"raspberrypi,3-model-b-plus":     "raspberrypi3",
	"raspberrypi,4-model-b":          "raspberrypi4",
	"raspberrypi,400":                "raspberrypi400",
	"raspberrypi,4-compute-module":   "raspberrypi-cm4",
	"raspberrypi,4-compute-module-s": "raspberrypi-cm4s",
	"raspberrypi,5-model-b":          "raspberrypi5",
	"raspberrypi,500":                "raspberrypi500",
	"raspberrypi,5-compute-module":   "raspberrypi-cm5",
	"ti,am335x-bone-black":           "beaglebone-black",
	"ti,am335x-bone-black-wireless":  "beaglebone-black",
}

// MachineID identifies a machine: the first 16 hex digits of the SHA-256 of the board's serial
// number. Without a serial number it hashes /etc/machine-id, which cloned SD cards share; without
// both it fails.
func MachineID(root string) (string, error) {
	t := treeOf(Options{Root: root})
	id := serial(t)
	if id == "" {
		id = t.text("/etc/machine-id")
	}
	if id == "" || id == "uninitialized" {
		return "", fmt.Errorf(
			"identify this machine: found no serial number in %s and no %s: run systemd-machine-id-setup",
			t.path(deviceTree+"serial-number"), t.path("/etc/machine-id"))
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8]), nil
}

// Serial returns the board's serial number in its maker's form, or "". Users compare it with the
// label on the device.
func Serial(root string) string { return serial(treeOf(Options{Root: root})) }

// serial returns the board's serial number. All zeros count as missing.
func serial(t tree) string {
	s := t.text(deviceTree + "serial-number")
	if strings.Trim(s, "0") == "" {
		return ""
	}
	return s
}

func board(t tree) Board {
	b := Board{Model: t.text(deviceTree + "model"), Serial: serial(t), Revision: revision(t)}
	if names, err := t.read(deviceTree + "compatible"); err == nil {
		for name := range strings.SplitSeq(string(names), "\x00") {
			if name = clean(name); name != "" {
				b.Compatible = append(b.Compatible, name)
			}
		}
		b.Compatible = few(b.Compatible)
	}
	if b.Model == "" { // a PC
		vendor, product := t.text("/sys/class/dmi/id/sys_vendor"), t.text("/sys/class/dmi/id/product_name")
		b.Model = clean(vendor + " " + product)
	}
	b.Name = shortName(b.Compatible, runtime.GOARCH)
	return b
}

// shortName returns a name for a board that is valid as a label value.
func shortName(compatible []string, arch string) string {
	if len(compatible) == 0 {
		if arch == "amd64" {
			return "x86-64"
		}
		return arch
	}
	if name, ok := shortNames[compatible[0]]; ok {
		return name
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '_', r == '-':
			return r
		}
		return '-'
	}, compatible[0])
	return strings.Trim(name[:min(len(name), 63)], "._-")
}

// A Revision is a decoded Raspberry Pi revision code.
type Revision struct {
	Code         string `json:"code"`           // hex
	Type         string `json:"type,omitempty"` // such as 4B; empty: unknown or an old-style code
	Processor    string `json:"processor,omitempty"`
	Manufacturer string `json:"manufacturer,omitempty"`
	MemoryMiB    int    `json:"memoryMiB,omitempty"`
	Number       int    `json:"number"` // revision of the board: the 4 of Rev 1.4
}

var (
	revisionTypes = map[uint32]string{
		0x00: "A", 0x01: "B", 0x02: "A+", 0x03: "B+", 0x04: "2B", 0x06: "CM1", 0x08: "3B", 0x09: "Zero", 0x0a: "CM3",
		0x0c: "Zero W", 0x0d: "3B+", 0x0e: "3A+", 0x10: "CM3+", 0x11: "4B", 0x12: "Zero 2 W", 0x13: "400", 0x14: "CM4",
		0x15: "CM4S", 0x17: "5", 0x18: "CM5", 0x19: "500", 0x1a: "CM5 Lite",
	}
	revisionProcessors    = []string{"BCM2835", "BCM2836", "BCM2837", "BCM2711", "BCM2712"}
	revisionManufacturers = []string{"Sony UK", "Egoman", "Embest", "Sony Japan", "Embest", "Stadium"}
)

func revision(t tree) *Revision {
	var code uint32
	if b, err := t.read(deviceTree + "system/linux,revision"); err == nil && len(b) == 4 {
		code = binary.BigEndian.Uint32(b)
	} else if text := cpuinfo(t)["Revision"]; text != "" {
		if _, err := fmt.Sscanf(text, "%x", &code); err != nil {
			return nil
		}
		if !strings.HasPrefix(t.text(deviceTree+"compatible"), "raspberrypi,") && cpuinfo(t)["Hardware"] != "BCM2835" {
			return nil // other boards use other codes
		}
	}
	if code == 0 {
		return nil
	}
	gbit := uint32(0)
	if b, err := t.read(deviceTree + "chosen/rpi-sdram-size-gbit"); err == nil && len(b) == 4 {
		gbit = binary.BigEndian.Uint32(b)
	}
	return decodeRevision(code, gbit)
}

// decodeRevision decodes a new-style code: NOQuuuWuFMMMCCCCPPPPTTTTTTTTRRRR (Raspberry Pi
// documentation, "New-style revision codes"). With 7 in the memory field, gbit is the size in
// gigabits.
func decodeRevision(code, gbit uint32) *Revision {
	r := &Revision{Code: fmt.Sprintf("%x", code)}
	if code>>23&1 == 0 {
		return r // old style: a plain number
	}
	r.Type = revisionTypes[code>>4&0xff]
	r.Number = int(code & 0xf)
	if p := code >> 12 & 0xf; int(p) < len(revisionProcessors) {
		r.Processor = revisionProcessors[p]
	}
	if m := code >> 16 & 0xf; int(m) < len(revisionManufacturers) {
		r.Manufacturer = revisionManufacturers[m]
	}
	r.MemoryMiB = 256 << (code >> 20 & 7)
	if gbit > 0 || code>>20&7 == 7 {
		r.MemoryMiB = int(gbit) * 128
	}
	return r
}
