package hardware

import (
	"cmp"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Device is a piece of hardware that a container can be given: what a pod asks for, and the device nodes that come
// with it. A node belongs to one device, and a piece of hardware is one device, by whatever way it could be reached:
// so who has it has it alone.
type Device struct {
	Resource string   `json:"resource"`        // after flotilla.dev/: gpiochip, i2c-1, spi0, serial, video, codec, render, can0, usb-0bda-2838
	ID       string   `json:"id"`              // which of them: by label, serial number or place; stays through a reboot and another kernel
	Nodes    []string `json:"nodes,omitempty"` // such as /dev/i2c-1; none: a network interface of that name
	Title    string   `json:"title,omitempty"`
	NUMA     *int     `json:"numa,omitempty"` // the NUMA node that it is near to, where there is more than one

	On    string `json:"on,omitempty"`    // the device on which a peripheral hangs: its nodes are those
	Plain bool   `json:"plain,omitempty"` // it has no node, and is read below /sys, as everybody may

	Internal bool `json:"internal,omitempty"` // a GPIO chip that is not the header's: only for who has a name for it in the board profile

	found *finding // nil: read from what was written down
}

// A finding is how a device was found.
type finding struct {
	root   tree
	sys    string // its directory in /sys
	was    string // the kernel's name for it, which was the ID in agents before: containers that they made run on
	periph bool   // periph alone knows it
}

// how is how a device was found, of one that was written down on this machine.
func (d Device) how() finding {
	if d.found == nil {
		return finding{root: "/"}
	}
	return *d.found
}

// A Node is a device node as it is now.
type Node struct {
	Path  string // in the container
	Host  string // on the device
	Group int    // that may open it
}

// Same tells whether two are the same piece of hardware, be it elsewhere now.
func (d Device) Same(e Device) bool {
	return (d.ID == e.ID || d.how().was == e.ID && e.ID != "" || e.how().was == d.ID && d.ID != "") && d.Nodes == nil == (e.Nodes == nil)
}

// SharesNode tells whether a container that has one of two different devices can open the other as well, because the
// kernel gave a device node of one to the other. A peripheral has the nodes of what it hangs on, and those who ask for
// them share them knowingly.
func (d Device) SharesNode(e Device) bool {
	return !d.Same(e) && d.On == "" && e.On == "" && slices.ContainsFunc(d.Nodes, func(n string) bool { return slices.Contains(e.Nodes, n) })
}

// Look looks for the device again and returns where it is now: what was plugged in elsewhere has other nodes, and
// another device may have those that it had. An error says that it is not there.
func (d Device) Look() (Device, []Node, error) {
	if d.Plain {
		return d, nil, nil
	}
	how := d.how()
	there := devices(how.root)
	if how.periph {
		there = how.root.withPeriph(there, []Device{d})
	}
	for _, now := range there {
		if !now.Same(d) && (d.On == "" || now.ID != d.On && now.found.was != d.On) {
			continue
		}
		if d.On != "" {
			now.ID, now.On, now.Title = d.ID, d.On, d.Title
		}
		var nodes []Node
		for _, p := range now.Nodes {
			var st unix.Stat_t
			if err := unix.Stat(how.root.path(p), &st); err != nil {
				return now, nil, fmt.Errorf("look at %s: %w", p, err)
			}
			nodes = append(nodes, Node{Path: p, Host: how.root.path(p), Group: int(st.Gid)})
		}
		now.Resource = d.Resource // it may have a name of its own
		return now, nodes, nil
	}
	return d, nil, fmt.Errorf("%s is unplugged, or its driver has gone", d.ID)
}

// devices is what containers can be given. /sys tells what there is; what has no node in /dev cannot be given.
func devices(t tree) []Device {
	list := slices.Concat(gpioChips(t), i2cBuses(t), spiBuses(t), serialPorts(t), videoDevices(t), renderers(t), canBuses(t), usbDevices(t))
	several := len(numa(t)) > 1
	t.distinguish(list)
	for i := range list {
		if list[i].found.root = t; several {
			list[i].NUMA = t.near(list[i].found.sys)
		}
	}
	return inOrder(list)
}

func inOrder(list []Device) []Device {
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return cmp.Or(strings.Compare(a.Resource, b.Resource), strings.Compare(a.ID, b.ID)) < 0
	})
	return few(list)
}

// withPeriph is what containers can be given where periph knows the GPIO chips and buses: those are there whether /sys
// shows them or not. /sys says more of each, and fills in the rest. What periph found minutes ago may have gone since.
func (t tree) withPeriph(list, found []Device) []Device {
	for _, d := range found {
		has := slices.ContainsFunc(list, func(e Device) bool { return slices.Equal(e.Nodes, d.Nodes) || e.ID == d.ID })
		if !has && len(d.Nodes) > 0 && !slices.ContainsFunc(d.Nodes, func(n string) bool { return !t.node(n) }) {
			d.found, d.Internal = &finding{root: t, periph: true}, d.Resource == "gpiochip" && !headerChips.MatchString(d.ID)
			list = append(list, d)
		}
	}
	return inOrder(list)
}

// distinguish gives devices of one ID different ones: chips of one kind, or without a label, are known by their places,
// the ports of one card by their order.
func (t tree) distinguish(list []Device) {
	times := map[string]int{}
	for _, d := range list {
		times[d.ID]++
	}
	for i := range list {
		if d := &list[i]; d.Resource == "gpiochip" && (times[d.ID] > 1 || d.ID == "") {
			d.ID = strings.TrimPrefix(d.ID+"@"+cmp.Or(t.place(d.found.sys), d.found.was), "@")
		}
	}
	clear(times)
	for i := range list {
		if times[list[i].ID]++; times[list[i].ID] > 1 {
			list[i].ID += "." + strconv.Itoa(times[list[i].ID])
		}
	}
}

// node tells whether a device node is there. A fake root may hold plain files in their place.
func (t tree) node(p string) bool {
	st, err := os.Stat(t.path(p))
	return err == nil && (st.Mode()&os.ModeCharDevice != 0 || !t.real() && st.Mode().IsRegular())
}

// i2cBuses have the numbers that pods ask for: what is connected to each differs.
func i2cBuses(t tree) (list []Device) {
	for _, dir := range t.glob("/sys/class/i2c-dev/i2c-*") {
		name := path.Base(dir)
		if t.node("/dev/" + name) {
			list = append(list, Device{Resource: name, ID: name, Nodes: []string{"/dev/" + name}, Title: t.text(dir + "/name"), found: &finding{sys: dir}})
		}
	}
	return list
}

// renderers are as good as another, and known by the place of their processor.
func renderers(t tree) (list []Device) {
	for _, dir := range t.glob("/sys/class/drm/renderD*") {
		name := path.Base(dir)
		if node := "/dev/dri/" + name; t.node(node) {
			list = append(list, Device{Resource: "render", ID: cmp.Or(t.place(dir+"/device"), name), Nodes: []string{node}, Title: t.link(dir + "/device/driver"), found: &finding{sys: dir, was: name}})
		}
	}
	return list
}

// spiBuses are one device for each bus, whatever is on its chip selects: they share its clock.
func spiBuses(t tree) (list []Device) {
	for _, dir := range t.glob("/sys/class/spidev/spidev*.*") {
		if node := "/dev/" + path.Base(dir); t.node(node) {
			list = onBus(list, node, dir)
		}
	}
	return list
}

// onBus adds a chip select of an SPI bus, such as /dev/spidev0.1, to the bus.
func onBus(list []Device, node, dir string) []Device {
	bus, _, _ := strings.Cut(strings.TrimPrefix(node, "/dev/spidev"), ".")
	if i := slices.IndexFunc(list, func(d Device) bool { return d.ID == "spi"+bus }); i >= 0 {
		list[i].Nodes = append(list[i].Nodes, node)
		return list
	}
	return append(list, Device{Resource: "spi" + bus, ID: "spi" + bus, Nodes: []string{node}, found: &finding{sys: dir}})
}

// serialPorts are those with hardware behind them, but for the kernel's consoles. udev's name of what is plugged in
// says which of several it is; without one it is known by its place.
func serialPorts(t tree) (list []Device) {
	consoles := strings.Fields(t.text("/sys/class/tty/console/active"))
	byID := map[string]string{}
	for _, l := range t.glob("/dev/serial/by-id/*") {
		if target, err := os.Readlink(t.path(l)); err == nil {
			byID[path.Base(target)] = path.Base(l)
		}
	}
	for _, dir := range t.glob("/sys/class/tty/*") {
		name := path.Base(dir)
		if !t.exists(dir+"/device") || slices.Contains(consoles, name) {
			continue
		}
		if kind, err := t.number(dir + "/type"); err == nil && kind == 0 || strings.HasPrefix(name, "hvc") {
			continue // no chip behind it; the console of a virtual machine
		}
		if t.node("/dev/" + name) {
			d := Device{Resource: "serial", ID: byID[name], Nodes: []string{"/dev/" + name}, Title: t.text(dir + "/device/../../product"), found: &finding{sys: dir + "/device"}}
			if d.ID == "" {
				d.ID, d.found.was = cmp.Or(t.place(d.found.sys), name), name
			}
			list = append(list, d)
		}
	}
	return list
}

// canBuses are network interfaces and have no node.
func canBuses(t tree) (list []Device) {
	for _, dir := range t.glob("/sys/class/net/*") {
		if kind, err := t.number(dir + "/type"); err == nil && kind == unix.ARPHRD_CAN {
			list = append(list, Device{Resource: path.Base(dir), ID: path.Base(dir), found: &finding{sys: dir}})
		}
	}
	return list
}

// usbDevices are those that no driver of the kernel has made into something else: a disk, a network card or a radio is
// the system's, and a serial port or a camera is given as such.
func usbDevices(t tree) (list []Device) {
	const hub = "09"
	for _, dir := range t.glob("/sys/bus/usb/devices/*") {
		name := path.Base(dir)
		if strings.HasPrefix(name, "usb") || strings.Contains(name, ":") || t.text(dir+"/bDeviceClass") == hub {
			continue
		}
		taken := false
		for _, below := range []string{"host*", "net", "bluetooth", "tty", "tty*", "video4linux", "ieee80211"} {
			taken = taken || len(t.glob(dir+"/"+name+":*/"+below)) > 0
		}
		vendor, product := t.text(dir+"/idVendor"), t.text(dir+"/idProduct")
		node := fmt.Sprintf("/dev/bus/usb/%03d/%03d", t.integer(dir+"/busnum"), t.integer(dir+"/devnum"))
		if taken || !hex4(vendor) || !hex4(product) || !t.node(node) {
			continue
		}
		list = append(list, Device{Resource: "usb-" + vendor + "-" + product, ID: name, Nodes: []string{node},
			Title: strings.TrimSpace(t.text(dir+"/manufacturer") + " " + t.text(dir+"/product")), found: &finding{sys: dir}})
	}
	return list
}

func hex4(s string) bool {
	return len(s) == 4 && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
}

// near is the NUMA node that a directory of /sys names for what it stands for, or for the nearest above it: a bus has
// none of its own, its controller has.
func (t tree) near(dir string) *int {
	full, err := filepath.EvalSymlinks(t.path(dir))
	if err != nil {
		return nil
	}
	for ; strings.HasPrefix(full, t.path("/sys/")); full = filepath.Dir(full) {
		b, err := os.ReadFile(filepath.Join(full, "numa_node"))
		if err != nil {
			continue
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n >= 0 {
			return &n
		}
		return nil // it says -1
	}
	return nil
}

// link is the name of what a path leads to; empty where it leads nowhere.
func (t tree) link(p string) string {
	if full := t.resolve(p); full != "" {
		return path.Base(full)
	}
	return ""
}

// resolve is where a path leads to, below the directory of the tree as well; empty where it leads nowhere.
func (t tree) resolve(p string) string {
	full, err := filepath.EvalSymlinks(t.path(p))
	if err != nil {
		return ""
	}
	return full
}

// place is the name of the nearest piece of hardware at or above a directory of /sys: its address on a bus. The parts
// that the kernel makes of one, such as the ports of a serial chip, have names of the kernel's own. Empty: nobody says.
func (t tree) place(dir string) string {
	full := t.resolve(dir)
	for ; strings.HasPrefix(full, t.path("/sys/devices/")); full = filepath.Dir(full) {
		switch subsystem, _ := filepath.EvalSymlinks(filepath.Join(full, "subsystem")); path.Base(subsystem) {
		case "serial-base", "usb-serial", "tty", "gpio":
		default:
			return path.Base(full)
		}
	}
	return ""
}

// ioctl asks a device node something that only reads, and returns the answer of so many bytes; nil where it cannot be
// asked.
func (t tree) ioctl(node string, request uintptr, size int) []byte {
	if !t.real() {
		return nil
	}
	answer, err := patiently(fmt.Sprintf("ioctl %x %s", request, node), func() (any, error) {
		fd, err := unix.Open(node, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer func() { _ = unix.Close(fd) }()
		answer := make([]byte, size)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&answer[0]))); errno != 0 {
			return nil, errno
		}
		return answer, nil
	})
	if err != nil {
		return nil
	}
	return answer.([]byte)
}
