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

// A Device is hardware that a container can use: a resource that pods request, and its device
// nodes. Each piece of hardware is one device and each node belongs to one device, so a container
// that has the device has it alone.
type Device struct {
	// Resource is the name after flotilla.dev/: gpiochip, i2c-1, spi0, serial, video, codec,
	// render, can0, usb-0bda-2838.
	Resource string `json:"resource"`
	// ID is a label, serial number or place; it is stable across reboots and kernels.
	ID    string   `json:"id"`
	Nodes []string `json:"nodes,omitempty"` // such as /dev/i2c-1; empty for a network interface, whose name is Resource
	Title string   `json:"title,omitempty"`
	NUMA  *int     `json:"numa,omitempty"` // nearest NUMA node, if the machine has several

	On    string `json:"on,omitempty"`    // ID of the device to which a peripheral is connected and whose nodes it uses
	Plain bool   `json:"plain,omitempty"` // has no node: every container can read it below /sys

	// Internal marks a GPIO chip that does not drive the header: pods get it only as a peripheral
	// of the board profile.
	Internal bool `json:"internal,omitempty"`

	found *finding // nil: the device was decoded from JSON
}

// A finding says how a device was found.
type finding struct {
	root   tree
	sys    string // the device's directory in /sys
	was    string // the kernel's name, which older agents used as the ID
	periph bool   // only periph reports the device
}

func (d *Device) was() string {
	if d.found == nil {
		return ""
	}
	return d.found.was
}

// A Node is the present state of a device node.
type Node struct {
	Path  string // path in the container
	Host  string // path on the device
	Group int    // owning group
}

// Same reports whether d and e are the same hardware, even at another place.
func (d Device) Same(e Device) bool {
	return (d.ID == e.ID || d.was() == e.ID && e.ID != "" || e.was() == d.ID && d.ID != "") &&
		d.Nodes == nil == (e.Nodes == nil)
}

// SharesNode reports whether d and e are different devices with a common node. The kernel has then
// given a node of one device to the other, and a container with one device could open the other.
// Peripherals share nodes on purpose and do not count.
func (d Device) SharesNode(e Device) bool {
	if d.On != "" || e.On != "" || d.Same(e) {
		return false
	}
	for _, n := range d.Nodes {
		if slices.Contains(e.Nodes, n) {
			return true
		}
	}
	return false
}

// Look finds the device again and returns its present nodes. After the device was plugged in
// elsewhere it has other nodes, and another device may have the old ones. An error means that the
// device is missing.
func (d Device) Look() (Device, []Node, error) {
	if d.Plain {
		return d, nil, nil
	}
	root := tree("/")
	if d.found != nil {
		root = d.found.root
	}
	present := devices(root)
	if d.found != nil && d.found.periph {
		present = root.withPeriph(present, []*Device{&d})
	}
	for _, now := range present {
		if !now.Same(d) && (d.On == "" || now.ID != d.On && now.found.was != d.On) {
			continue
		}
		if d.On != "" {
			now.ID, now.On, now.Title = d.ID, d.On, d.Title
		}
		var nodes []Node
		for _, p := range now.Nodes {
			var st unix.Stat_t
			if err := unix.Stat(root.path(p), &st); err != nil {
				return now, nil, fmt.Errorf("look at %s: %w", p, err)
			}
			nodes = append(nodes, Node{Path: p, Host: root.path(p), Group: int(st.Gid)})
		}
		now.Resource = d.Resource // the resource may be a name of the board profile
		return now, nodes, nil
	}
	return d, nil, fmt.Errorf("%s is unplugged or its driver is unloaded", d.ID)
}

// devices returns the devices for containers, from /sys. It leaves out devices whose node is
// missing in /dev.
func devices(t tree) []Device {
	s := &search{t: t, times: map[string]int{}}
	s.gpioChips()
	s.buses()
	s.serialPorts()
	s.videoDevices()
	s.renderers()
	s.usbDevices()
	several := len(numa(t)) > 1
	list := make([]Device, 0, len(s.list))
	clear(s.times)
	for _, d := range s.list {
		if s.times[d.ID]++; s.times[d.ID] > 1 { // several with one ID, such as the ports of a card, are numbered in order
			d.ID += "." + strconv.Itoa(s.times[d.ID])
		}
		if several {
			d.NUMA = t.near(d.found.sys)
		}
		list = append(list, *d)
	}
	return inOrder(list)
}

// A search collects devices.
type search struct {
	t     tree
	list  []*Device
	times map[string]int // number of devices with an id
}

// add adds a device that was found at sys, unless its node is missing.
func (s *search) add(resource, id, node, sys string) *Device {
	d := &Device{Resource: resource, ID: id, found: &finding{root: s.t, sys: sys}}
	if node != "" {
		if !s.t.node(node) {
			return d
		}
		d.Nodes = []string{node}
	}
	s.list = append(s.list, d)
	return d
}

// join adds another node to the device with this id, or adds the device.
func (s *search) join(resource, id, node, sys string) *Device {
	for _, d := range s.list {
		if d.ID == id && (d.Resource == resource || d.Resource == "codec") && s.t.node(node) {
			d.Nodes = append(d.Nodes, node)
			return d
		}
	}
	return s.add(resource, id, node, sys)
}

func inOrder(list []Device) []Device {
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i], list[j]
		return cmp.Or(strings.Compare(a.Resource, b.Resource), strings.Compare(a.ID, b.ID)) < 0
	})
	return few(list)
}

// withPeriph adds the GPIO chips and buses that only periph has found, completed from /sys. It
// leaves out devices that have been removed since periph found them minutes ago.
func (t tree) withPeriph(list []Device, found []*Device) []Device {
	for _, d := range found {
		unknown := len(d.Nodes) > 0 && t.node(d.Nodes[0])
		for i := range list {
			unknown = unknown && list[i].ID != d.ID && !slices.Equal(list[i].Nodes, d.Nodes)
		}
		if unknown {
			e := *d // a copy, because periph's result is shared
			e.found, e.Internal = &finding{root: t, periph: true}, d.Resource == "gpiochip" && !headerChips.MatchString(d.ID)
			list = append(list, e)
		}
	}
	return inOrder(list)
}

// node reports whether a device node exists. In a fake root it may be a regular file.
func (t tree) node(p string) bool {
	st, err := os.Stat(t.path(p))
	return err == nil && (st.Mode()&os.ModeCharDevice != 0 || !t.real() && st.Mode().IsRegular())
}

// buses finds I2C, SPI and CAN buses. Pods request a bus by its number, since each connects other
// hardware. All chip selects of an SPI bus are one device, because they share its clock. CAN buses
// are network interfaces without a node.
func (s *search) buses() {
	for _, dir := range s.t.glob("/sys/class/i2c-dev/i2c-*") {
		name := path.Base(dir)
		s.add(name, name, "/dev/"+name, dir).Title = s.t.text(dir + "/name")
	}
	for _, dir := range s.t.glob("/sys/class/spidev/spidev*.*") {
		node := "/dev/" + path.Base(dir)
		s.join(spiBus(node), spiBus(node), node, dir)
	}
	for _, dir := range s.t.glob("/sys/class/net/*") {
		if kind, err := s.t.number(dir + "/type"); err == nil && kind == unix.ARPHRD_CAN {
			s.add(path.Base(dir), path.Base(dir), "", dir)
		}
	}
}

// spiBus returns the bus of a chip select: spi0 for /dev/spidev0.1.
func spiBus(node string) string {
	bus, _, _ := strings.Cut(strings.TrimPrefix(node, "/dev/spidev"), ".")
	return "spi" + bus
}

// renderers finds the graphics processors. They are interchangeable, and their place identifies
// them.
func (s *search) renderers() {
	for _, dir := range s.t.glob("/sys/class/drm/renderD*") {
		name := path.Base(dir)
		d := s.add("render", cmp.Or(s.t.place(dir+"/device"), name), "/dev/dri/"+name, dir)
		d.Title, d.found.was = s.t.link(dir+"/device/driver"), name
	}
}

// serialPorts finds the ports with hardware, except the kernel's consoles. A plugged-in port is
// identified by udev's name, or by its place if that is missing.
func (s *search) serialPorts() {
	t := s.t
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
			continue // without a chip, or the console of a virtual machine
		}
		d := s.add("serial", byID[name], "/dev/"+name, dir+"/device")
		d.Title = t.text(dir + "/device/../../product")
		if d.ID == "" {
			d.ID, d.found.was = cmp.Or(t.place(dir+"/device"), name), name
		}
	}
}

// usbDevices finds the USB devices without a kernel driver. Disks, network cards and radios belong
// to the system; serial ports and cameras are separate devices.
func (s *search) usbDevices() {
	const hub = "09"
	t := s.t
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
		if !taken && hex4(vendor) && hex4(product) {
			node := fmt.Sprintf("/dev/bus/usb/%03d/%03d", t.integer(dir+"/busnum"), t.integer(dir+"/devnum"))
			s.add("usb-"+vendor+"-"+product, name, node,
				dir).Title = strings.TrimSpace(t.text(dir+"/manufacturer") + " " + t.text(dir+"/product"))
		}
	}
}

func hex4(s string) bool {
	return len(s) == 4 && !strings.ContainsFunc(s, func(r rune) bool {
		return !strings.ContainsRune("0123456789abcdef", r)
	})
}

// near returns the NUMA node of a /sys directory or of its nearest parent that has one: a bus has
// none, but its controller does.
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
		return nil // the file contains -1
	}
	return nil
}

// link returns the name of a link's target, or "".
func (t tree) link(p string) string {
	if full := t.resolve(p); full != "" {
		return path.Base(full)
	}
	return ""
}

// resolve returns the target of a path relative to the tree's directory, or "".
func (t tree) resolve(p string) string {
	full, err := filepath.EvalSymlinks(t.path(p))
	if err != nil {
		return ""
	}
	return full
}

// place returns the bus address of the nearest hardware at or above a /sys directory, or "". It
// skips the kernel's own levels, such as the ports of a serial chip.
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

// ioctl makes a request that only reads from a device node, and returns size bytes; nil on an
// error.
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
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request,
			uintptr(unsafe.Pointer(&answer[0]))); errno != 0 {
			return nil, errno
		}
		return answer, nil
	})
	if err != nil {
		return nil
	}
	return answer.([]byte)
}
