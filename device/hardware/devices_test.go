package hardware

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"flotilla.dev/shared/fleet"
)

// serialRoot has a UART, a console, a port without a chip and two adapters, one with a udev name.
func serialRoot(t *testing.T) string {
	root := rootOf(t, map[string]string{
		"sys/class/tty/console/active": "tty0 ttyS0\n", "sys/class/tty/ptmx/dev": "5:2",
		"sys/class/tty/ttyS0/device/x": "", "sys/class/tty/ttyS0/type": "4", "dev/ttyS0": "",
		"sys/class/tty/ttyS1/device/x": "", "sys/class/tty/ttyS1/type": "0", "dev/ttyS1": "",
		"sys/class/tty/ttyS2/device/x": "", "sys/class/tty/ttyS2/type": "4", "dev/ttyS2": "",
		"sys/class/tty/hvc0/device/x": "", "dev/hvc0": "",
		"sys/class/tty/ttyUSB0/device/x": "", "dev/ttyUSB0": "",
		"sys/class/tty/ttyUSB1/device/x": "", "dev/ttyUSB1": "",
		"sys/class/tty/ttyUSB7/device/x": "", // its node is missing
	})
	link(t, "../../ttyUSB1", filepath.Join(root, "dev/serial/by-id/usb-RAK_1"))
	return root
}

func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

// describe lists the resource, ID and nodes of each device.
func describe(list []Device) string {
	var out []string
	for _, d := range list {
		out = append(out, strings.Join(append([]string{d.Resource, d.ID}, d.Nodes...), " "))
	}
	return strings.Join(out, "; ")
}

func TestDevicesForContainers(t *testing.T) {
	usb := map[string]string{}
	for _, d := range []struct{ name, class, product, has string }{
		{"1-1", "09", "0001", ""}, {"1-1.1", "00", "0002", "net/eth0/x"}, {"1-1.2", "00", "0003", "host0/x"}, {"1-1.3", "00", "0004", "ttyUSB0/x"},
		{"1-1.4", "ef", "0005", "video4linux/video0/x"}, {"1-2", "e0", "0006", "bluetooth/hci0/x"}, {"1-3", "00", "0007", "ep_81/x"}, {"1-4", "00", "x", ""},
	} {
		dir := "sys/bus/usb/devices/" + d.name
		usb[dir+"/bDeviceClass"], usb[dir+"/idVendor"], usb[dir+"/idProduct"], usb[dir+"/busnum"],
			usb[dir+"/devnum"] = d.class, "1d50", d.product, "1", "9"
		if d.has != "" {
			usb[dir+"/"+d.name+":1.0/"+d.has] = ""
		}
	}
	usb["dev/bus/usb/001/009"] = ""
	camera := rootOf(
		t,
		map[string]string{
			"sys/devices/cam/x":                 "",
			"dev/video0":                        "",
			"dev/video1":                        "",
			"dev/video2":                        "",
			"sys/class/video4linux/video2/name": "codec",
		},
	)
	link(t, "../../../devices/cam", filepath.Join(camera, "sys/class/video4linux/video0/device"))
	link(t, "../../../devices/cam", filepath.Join(camera, "sys/class/video4linux/video1/device"))
	for _, c := range []struct{ rule, root, want string }{
		{"serial ports without consoles and ports that lack a chip or a node", serialRoot(t), "serial ttyS2 /dev/ttyS2; serial ttyUSB0 /dev/ttyUSB0; serial usb-RAK_1 /dev/ttyUSB1"},
		{"USB devices without hubs and those of the system or another resource", rootOf(t, usb), "usb-1d50-0007 1-3 /dev/bus/usb/001/009"},
		{"a camera with all of its nodes", camera, "codec video2 /dev/video2; video cam /dev/video0 /dev/video1"},
		{"a bus with all of its chip selects", rootOf(t, map[string]string{"sys/class/spidev/spidev0.0/x": "", "sys/class/spidev/spidev0.1/x": "", "sys/class/spidev/spidev10.0/x": "", "dev/spidev0.0": "", "dev/spidev0.1": "", "dev/spidev10.0": ""}),
			"spi0 spi0 /dev/spidev0.0 /dev/spidev0.1; spi10 spi10 /dev/spidev10.0"},
		{"hardware without a node is left out", rootOf(t, map[string]string{"sys/class/i2c-dev/i2c-1/name": "x", "sys/bus/gpio/devices/gpiochip0/x": ""}), ""},
		{"CAN buses among the network interfaces", rootOf(t, map[string]string{"sys/class/net/can0/type": "280", "sys/class/net/eth0/type": "1"}), "can0 can0"},
	} {
		if got := describe(devices(tree(c.root))); got != c.want {
			t.Errorf("%s: %s; want %s", c.rule, got, c.want)
		}
	}
}

// A device on a bus belongs to the NUMA node of the bus's controller. With a single NUMA node, or
// without information, the field is unset.
func TestTheNUMANodeOfADevice(t *testing.T) {
	files := map[string]string{
		"sys/devices/system/node/node0/cpulist": "0-1,4\n", "sys/devices/system/node/node1/cpulist": "2-3\n",
		"sys/devices/pci0000:00/0000:00:1f.0/numa_node": "1\n", "sys/devices/pci0000:00/0000:00:1f.0/i2c-1/i2c-dev/i2c-1/name": "x", "dev/i2c-1": "",
		"sys/devices/platform/spi0/numa_node": "0\n", "sys/devices/platform/spi0/spidev/spidev0.0/dev": "", "dev/spidev0.0": "",
		"sys/devices/pci0000:00/0000:00:02.0/numa_node": "-1\n", "sys/devices/pci0000:00/0000:00:02.0/drm/renderD128/x": "", "dev/dri/renderD128": "",
		"sys/devices/platform/gpio/gpiochip0/x": "", "dev/gpiochip0": "",
		"sys/class/tty/ttyS4/type": "4", "sys/devices/pci0000:00/0000:00:1f.0/tty/x": "", "dev/ttyS4": "",
	}
	rooted := func(files map[string]string) string {
		root := rootOf(t, files)
		link(t, "../../devices/pci0000:00/0000:00:1f.0/i2c-1/i2c-dev/i2c-1", filepath.Join(root, "sys/class/i2c-dev/i2c-1"))
		link(t, "../../devices/platform/spi0/spidev/spidev0.0", filepath.Join(root, "sys/class/spidev/spidev0.0"))
		link(t, "../../devices/pci0000:00/0000:00:02.0/drm/renderD128", filepath.Join(root, "sys/class/drm/renderD128"))
		link(t, "../../../devices/platform/gpio/gpiochip0", filepath.Join(root, "sys/bus/gpio/devices/gpiochip0"))
		link(t, "../../../devices/pci0000:00/0000:00:1f.0", filepath.Join(root, "sys/class/tty/ttyS4/device"))
		return root
	}
	near := func(root string) string {
		var out []string
		for _, d := range devices(tree(root)) {
			n := "-"
			if d.NUMA != nil {
				n = strconv.Itoa(*d.NUMA)
			}
			out = append(out, d.ID+" "+n)
		}
		return strings.Join(out, "; ")
	}
	root := rooted(files)
	if got, want := near(root), "gpiochip0 -; i2c-1 1; renderD128 -; 0000:00:1f.0 1; spi0 0"; got != want {
		t.Errorf("NUMA nodes of the devices: %s; want %s", got, want)
	}
	if n := NUMA(root); len(n) != 2 || n[0].Count() != 3 || n[1].Count() != 2 {
		t.Errorf("the NUMA nodes are %+v, want two with 3 and 2 processors", n)
	}
	delete(files, "sys/devices/system/node/node1/cpulist")
	if got, want := near(rooted(files)), "gpiochip0 -; i2c-1 -; renderD128 -; 0000:00:1f.0 -; spi0 -"; got != want {
		t.Errorf("with one NUMA node: %s; want %s", got, want)
	}
}

// Look finds a device by its ID, even if it has other nodes.
func TestLookAgain(t *testing.T) {
	root := serialRoot(t)
	var rak Device
	for _, d := range devices(tree(root)) {
		if d.ID == "usb-RAK_1" {
			rak = d
		}
	}
	rak.Resource = "lorawan-gateway"
	if now, nodes, err := rak.Look(); err != nil || now.Resource != rak.Resource || len(nodes) != 1 ||
		nodes[0].Path != "/dev/ttyUSB1" || nodes[0].Host != root+"/dev/ttyUSB1" {
		t.Errorf("Look returns %+v, %+v, %v; want the adapter at /dev/ttyUSB1", now, nodes, err)
	}
	by := filepath.Join(root, "dev/serial/by-id/usb-RAK_1")
	if err := os.Remove(by); err != nil {
		t.Fatal(err)
	}
	if _, _, err := rak.Look(); err == nil || !strings.Contains(err.Error(), "unplugged") {
		t.Errorf("Look returns another adapter: %v", err)
	}
	link(t, "../../ttyUSB0", by)
	if now, _, err := rak.Look(); err != nil || now.Nodes[0] != "/dev/ttyUSB0" {
		t.Errorf("after the adapter was plugged in elsewhere Look returns %+v, %v; want /dev/ttyUSB0", now, err)
	}
}

func TestNamesAndSharingOfTheBoardProfile(t *testing.T) {
	found := devices(tree(serialRoot(t)))
	p := &fleet.BoardProfile{Spec: fleet.BoardProfileSpec{
		Peripherals: []fleet.Peripheral{
			{Name: "lorawan-gateway", Type: "serial", ByID: "usb-RAK_*"},
			{Name: "modem", Type: "serial", ByID: "usb-Quectel*"},
			{Name: "eye", Type: "video", ByID: "*"},
		},
		Resources: fleet.BoardResources{Sharing: map[string]int64{"serial": 3}},
	}}
	amounts := NodeStatus(Report{}, Limits{}, Software{}, Resources(found, p)...).Allocatable
	for name, want := range map[string]int64{"serial": 6, "lorawan-gateway": 1, "modem": 0, "eye": 0} {
		if q, has := amounts[fleet.ResourceName(name)]; !has || q.Value() != want {
			t.Errorf("resource %s has the amount %s, want %d", name, q.String(), want)
		}
	}
	if q := NodeStatus(Report{}, Limits{}, Software{}, Resources(found,
		nil)...).Capacity["flotilla.dev/serial"]; q.Value() != 3 {
		t.Errorf("without a profile there are %s serial ports, want 3", q.String())
	}
}
