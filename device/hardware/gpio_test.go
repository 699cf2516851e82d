package hardware

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/fleet"
)

// A gpioChip is a chip of a fake root, with its files in /sys.
type gpioChip struct{ name, parent, label string }

// chipRoot returns a root with these chips. With sameNumbers the class in /sys has the numbers of
// the chips, as in kernels since 6.17.
func chipRoot(t *testing.T, sameNumbers bool, chips ...gpioChip) string {
	files := map[string]string{"sys/bus/gpio/x": "", "sys/bus/i2c/x": ""}
	for i, c := range chips {
		dir := "sys/devices/platform/" + c.parent + "/" + c.name
		files[dir+"/dev"], files["dev/"+c.name] = "254:"+strings.TrimPrefix(c.name, "gpiochip"), ""
		class := "sys/class/gpio/gpiochip" + strconv.Itoa(512+32*i)
		if sameNumbers {
			class = "sys/class/gpio/" + strings.TrimPrefix(c.name, "gpio")
		}
		files[class+"/label"] = c.label + "\n"
	}
	root := rootOf(t, files)
	for i, c := range chips {
		dir := filepath.Join(root, "sys/devices/platform", c.parent)
		link(t, filepath.Join(root, "sys/bus/gpio"), filepath.Join(dir, c.name, "subsystem"))
		link(t, filepath.Join(dir, c.name), filepath.Join(root, "sys/bus/gpio/devices", c.name))
		if !sameNumbers {
			link(t, dir, filepath.Join(root, "sys/class/gpio/gpiochip"+strconv.Itoa(512+32*i), "device"))
		}
	}
	return root
}

// The chips of a Raspberry Pi 5 in gpiodetect's order: before kernel 6.6.47 the header had the last
// number, since then the first.
var (
	oldPi5 = []gpioChip{
		{"gpiochip0", "soc/107d508500.gpio", "gpio-brcmstb@107d508500"}, {"gpiochip1", "soc/107d508500.gpio", "gpio-brcmstb@107d508520"},
		{"gpiochip2", "soc/107d517c00.gpio", "gpio-brcmstb@107d517c00"}, {"gpiochip3", "soc/107d517c00.gpio", "gpio-brcmstb@107d517c20"},
		{"gpiochip4", "axi/1000120000.pcie/1f000d0000.gpio", "pinctrl-rp1"},
	}
	newPi5 = []gpioChip{
		{"gpiochip0", "axi/1000120000.pcie/1f000d0000.gpio", "pinctrl-rp1"},
		{"gpiochip10", "soc/107d508500.gpio", "gpio-brcmstb@107d508500"}, {"gpiochip11", "soc/107d508500.gpio", "gpio-brcmstb@107d508520"},
		{"gpiochip12", "soc/107d517c00.gpio", "gpio-brcmstb@107d517c00"}, {"gpiochip13", "soc/107d517c00.gpio", "gpio-brcmstb@107d517c20"},
	}
)

// offered returns the devices of a resource.
func offered(list []Resource, name string) string {
	for _, r := range list {
		if r.Name == corev1.ResourceName("flotilla.dev/"+name) {
			return describe(r.Devices)
		}
	}
	return ""
}

func TestGPIOChipIsTheHeaders(t *testing.T) {
	for _, c := range []struct {
		rule string
		root string
		want string
	}{
		{"Pi 5 with an old kernel", chipRoot(t, false, oldPi5...), "gpiochip pinctrl-rp1 /dev/gpiochip4"},
		{"Pi 5 with a newer kernel", chipRoot(t, false, newPi5...), "gpiochip pinctrl-rp1 /dev/gpiochip0"},
		{"Pi 5 with a kernel that numbers the class as the nodes", chipRoot(t, true, newPi5...), "gpiochip pinctrl-rp1 /dev/gpiochip0"},
		{"Pi 4", chipRoot(t, false, gpioChip{"gpiochip0", "soc/soc:firmware:gpio", "raspberrypi-exp-gpio"}, gpioChip{"gpiochip1", "soc/fe200000.gpio", "pinctrl-bcm2711"}), "gpiochip pinctrl-bcm2711 /dev/gpiochip1"},
		{"Pi 3", chipRoot(t, false, gpioChip{"gpiochip0", "soc/3f200000.gpio", "pinctrl-bcm2835"}, gpioChip{"gpiochip1", "soc/soc:virtgpio", "brcmvirt-gpio"}, gpioChip{"gpiochip2", "soc/soc:firmware:gpio", "raspberrypi-exp-gpio"}), "gpiochip pinctrl-bcm2835 /dev/gpiochip0"},
		{"a PC with a serial adapter that has lines has no header", chipRoot(t, false, gpioChip{"gpiochip0", "INT34C6:00", "INT34C6:00"}, gpioChip{"gpiochip1", "usb1/1-1/1-1:1.0", "cp210x"}), ""},
		{"a chip without a label", chipRoot(t, false, gpioChip{"gpiochip0", "x.gpio", ""}), ""},
	} {
		if got := offered(Resources(devices(tree(c.root)), nil), "gpiochip"); got != c.want {
			t.Errorf("%s: %q, want %q", c.rule, got, c.want)
		}
	}
}

// Another kernel numbers the chips differently. A chip keeps its label as its ID, and a container
// does not get another chip under the old number.
func TestAChipKeepsItsIDUnderAnotherNumber(t *testing.T) {
	root := chipRoot(t, false, newPi5...)
	older, newer := devices(tree(chipRoot(t, false, oldPi5...))), devices(tree(root))
	for _, d := range older {
		var same []string
		for _, e := range newer {
			if e.Same(d) {
				same = append(same, e.ID)
			}
		}
		if !slices.Equal(same, []string{d.ID}) {
			t.Errorf("chip %s (%s) has the IDs %q under the newer kernel, want the same ID", d.ID, d.Nodes[0], same)
		}
	}
	header := older[slices.IndexFunc(older, func(d Device) bool { return d.ID == "pinctrl-rp1" })]
	header.found.root = tree(root)
	if now, _, err := header.Look(); err != nil || now.Nodes[0] != "/dev/gpiochip0" {
		t.Errorf("Look returns %v, %v for the header's chip, want /dev/gpiochip0", now, err)
	}
}

// Older agents used the kernel's chip names as IDs, and their containers must keep their chips.
func TestChipIDsOfOlderAgentsAreRecognized(t *testing.T) {
	list := devices(tree(chipRoot(t, false, newPi5...)))
	var before Device
	if err := json.Unmarshal([]byte(
		`{"resource":"gpiochip","id":"gpiochip0","nodes":["/dev/gpiochip0"],"title":"gpio"}`), &before); err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.Same(before) != (d.ID == "pinctrl-rp1") || before.Same(d) != d.Same(before) ||
			d.Same(before) && d.SharesNode(before) {
			t.Errorf("Same(%s, an older agent's gpiochip0) is %v", d.ID, d.Same(before))
		}
	}
}

func TestChipsWithOneLabelAreIdentifiedByTheirPlaces(t *testing.T) {
	root := chipRoot(
		t,
		false,
		gpioChip{"gpiochip0", "soc/fe200000.gpio", "pinctrl-bcm2711"},
		gpioChip{
			"gpiochip1",
			"soc/fe804000.i2c/i2c-1/1-0020",
			"mcp23017",
		},
		gpioChip{"gpiochip2", "soc/fe804000.i2c/i2c-1/1-0021", "mcp23017"},
	)
	list := devices(tree(root))
	if got, want := describe(list),
		"gpiochip mcp23017@1-0020 /dev/gpiochip1; gpiochip mcp23017@1-0021 /dev/gpiochip2; gpiochip pinctrl-bcm2711 /dev/gpiochip0"; got != want {
		t.Errorf("the devices are %s, want %s", got, want)
	}
	// A board profile selects a chip by its label and place.
	p := &fleet.BoardProfile{
		Spec: fleet.BoardProfileSpec{
			Peripherals: []fleet.Peripheral{{Name: "relays", Type: "gpiochip", ByID: "mcp23017@1-0020"}},
		},
	}
	if got, want := offered(Resources(list, p), "relays"), "relays mcp23017@1-0020 /dev/gpiochip1"; got != want {
		t.Errorf("relays: %q, want %q", got, want)
	}
	if got, want := offered(Resources(list, p), "gpiochip"), "gpiochip pinctrl-bcm2711 /dev/gpiochip0"; got != want {
		t.Errorf("gpiochip: %q, want %q", got, want)
	}
}

// Each port of a multi-port card has its own ID. Without a udev name the ID is the port's place.
func TestSerialPortsAreIdentifiedByTheirPlaces(t *testing.T) {
	root := rootOf(t, map[string]string{
		"sys/bus/usb-serial/x": "", "sys/bus/usb/x": "", "sys/bus/serial-base/x": "", "sys/devices/usb1/1-1/1-1:1.0/ttyUSB3/x": "", "sys/devices/usb1/1-2/1-2:1.0/ttyUSB0/x": "", "sys/devices/usb1/1-2/1-2:1.0/ttyUSB1/x": "",
		"sys/devices/platform/fe201000.serial/fe201000.serial:0/fe201000.serial:0.0/x": "", "sys/class/tty/ttyAMA0/type": "32",
		"dev/ttyUSB3": "", "dev/ttyUSB0": "", "dev/ttyUSB1": "", "dev/ttyAMA0": "",
	})
	for tty, dir := range map[string]string{"ttyUSB3": "usb1/1-1/1-1:1.0/ttyUSB3",
		"ttyUSB0": "usb1/1-2/1-2:1.0/ttyUSB0", "ttyUSB1": "usb1/1-2/1-2:1.0/ttyUSB1",
		"ttyAMA0": "platform/fe201000.serial/fe201000.serial:0/fe201000.serial:0.0"} {
		link(t, filepath.Join(root, "sys/devices", dir), filepath.Join(root, "sys/class/tty", tty, "device"))
		if strings.HasPrefix(tty, "ttyUSB") {
			link(t, filepath.Join(root, "sys/bus/usb-serial"), filepath.Join(root, "sys/devices", dir, "subsystem"))
		}
	}
	for _, part := range []string{"fe201000.serial:0", "fe201000.serial:0/fe201000.serial:0.0"} {
		link(t, filepath.Join(root, "sys/bus/serial-base"),
			filepath.Join(root, "sys/devices/platform/fe201000.serial", part, "subsystem"))
	}
	list := devices(tree(root))
	if got, want := describe(list),
		"serial 1-1:1.0 /dev/ttyUSB3; serial 1-2:1.0 /dev/ttyUSB0; serial 1-2:1.0.2 /dev/ttyUSB1; serial fe201000.serial /dev/ttyAMA0"; got != want {
		t.Errorf("the devices are %s, want %s", got, want)
	}
	if p := (fleet.Peripheral{Name: "radio", Type: "serial", ByID: "ttyAMA0"}); !isOne(list[3], p) || isOne(list[0], p) {
		t.Error("a profile cannot name a port of the board by the kernel's name")
	}
}
