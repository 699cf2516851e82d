package hardware

import (
	"bytes"
	"cmp"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// headerChips are the labels of the GPIO chips whose lines a board has on its pin header. All other
// chips are inside of the board, or were plugged in: they switch its regulators and LEDs, so pods
// get them only where a board profile names them.
var headerChips = regexp.MustCompile(`^(` +
	`pinctrl-(bcm2835|bcm2711|rp1)` + // Raspberry Pi up to 3, 4, 5
	`|gpio-\d+-\d+` + // BeagleBone
	`|gpio\d` + // Rockchip
	`|[0-9a-f]+\.pinctrl` + // Allwinner
	`|(periphs|aobus)-banks` + // Amlogic
	`|tegra\d+-gpio(-aon)?` + // Jetson
	`)$`)

// gpioChips are known by the labels that their drivers give them: the kernel numbers them as it
// finds them, and another kernel in another order. Chips of one kind, or without a label, are known
// by their places.
func (s *search) gpioChips() {
	siblings := map[string]int{}
	for _, dir := range s.t.glob("/sys/bus/gpio/devices/gpiochip*") {
		name, parent := path.Base(dir), filepath.Dir(s.t.resolve(dir))
		label := s.t.chipLabel(name, parent, siblings[parent])
		siblings[parent]++
		s.times[label]++
		d := s.add("gpiochip", label, "/dev/"+name, dir)
		d.Internal, d.found.was = !headerChips.MatchString(label), name
	}
	for _, d := range s.list {
		if s.times[d.ID] > 1 || d.ID == "" {
			d.ID = strings.TrimPrefix(d.ID+"@"+cmp.Or(s.t.place(d.found.sys), d.found.was), "@")
		}
	}
}

// chipLabel is the label of a GPIO chip, empty where nobody tells. The chip itself is asked or,
// where its node cannot be opened, the class in /sys. Kernels before 6.17 number the chips
// otherwise there: it is the nth of its parent.
func (t tree) chipLabel(name, parent string, nth int) string {
	const chipInfo = 0x8044b401 // GPIO_GET_CHIPINFO_IOCTL: name, label, number of lines
	if info := t.ioctl("/dev/"+name, chipInfo, 68); info != nil {
		label, _, _ := bytes.Cut(info[32:64], []byte{0})
		return clean(string(label))
	}
	if label := t.text("/sys/class/gpio/" + strings.TrimPrefix(name, "gpio") + "/label"); label != "" {
		return label
	}
	for _, c := range t.glob("/sys/class/gpio/gpiochip*") {
		if t.resolve(c+"/device") != parent {
			continue
		}
		if nth == 0 {
			return t.text(c + "/label")
		}
		nth--
	}
	return ""
}
