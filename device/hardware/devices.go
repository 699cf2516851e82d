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

// A Device is a piece of hardware that a container can be given: what a pod asks for, and the
// device nodes that come with it. A node belongs to one device, and a piece of hardware is one
// device, by whatever way it could be reached: so who has it has it alone.
type Device struct {
	// after flotilla.dev/: gpiochip, i2c-1, spi0, serial, video, codec, render, can0, usb-0bda-2838
	Resource string `json:"resource"`
	// which of them: by label, serial number or place; stays through a reboot and another kernel
	ID    string   `json:"id"`
	Nodes []string `json:"nodes,omitempty"` // such as /dev/i2c-1; none: a network interface of that name
	Title string   `json:"title,omitempty"`
	NUMA  *int     `json:"numa,omitempty"` // the NUMA node that it is near to, where there is more than one

	On    string `json:"on,omitempty"`    // the device on which a peripheral hangs: its nodes are those
	Plain bool   `json:"plain,omitempty"` // it has no node, and is read below /sys, as everybody may

	// a GPIO chip that is not the header's: only for who has a name for it in the board profile
	Internal bool `json:"internal,omitempty"`

	found *finding // nil: read from what was written down
}

// A finding is how a device was found.
type finding struct {
	root   tree
	sys    string // its directory in /sys
	was    string // the kernel's name for it, which was the ID in agents before: containers that they made run on
	periph bool   // periph alone knows it
}

func (d *Device) was() string {
	if d.found == nil {
		return ""
	}
	return d.found.was
}

// A Node is a device node as it is now.
type Node struct {
	Path  string // in the container
	Host  string // on the device
	Group int    // that may open it
}

// Same tells whether two are the same piece of hardware, be it elsewhere now.
func (d Device) Same(e Device) bool {
	return (d.ID == e.ID || d.was() == e.ID && e.ID != "" || e.was() == d.ID && d.ID != "") &&
		d.Nodes == nil == (e.Nodes == nil)
}

// SharesNode tells whether a container that has one of two different devices can open the other as
// well, because the kernel gave a device node of one to the other. A peripheral has the nodes of
// what it hangs on, and those who ask for them share them knowingly.
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

// Look looks for the device again and returns where it is now: what was plugged in elsewhere has
// other nodes, and another device may have those that it had. An error says that it is not there.
func (d Device) Look() (Device, []Node, error) {
	if d.Plain {
		return d, nil, nil
	}
	root := tree("/")
	if d.found != nil {
		root = d.found.root
	}
	there := devices(root)
	if d.found != nil && d.found.periph {
		there = root.withPeriph(there, []*Device{&d})
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
			if err := unix.Stat(root.path(p), &st); err != nil {
				return now, nil, fmt.Errorf("look at %s: %w", p, err)
			}
			nodes = append(nodes, Node{Path: p, Host: root.path(p), Group: int(st.Gid)})
		}
		now.Resource = d.Resource // it may have a name of its own
		return now, nodes, nil
	}
	return d, nil, fmt.Errorf("%s is unplugged, or its driver has gone", d.ID)
}

// devices is what containers can be given. /sys tells what there is; what has no node in /dev
// cannot be given.
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
		if s.times[d.ID]++; s.times[d.ID] > 1 { // such as the ports of one card: by their order
			d.ID += "." + strconv.Itoa(s.times[d.ID])
		}
		if several {
			d.NUMA = t.near(d.found.sys)
		}
		list = append(list, *d)
	}
	return inOrder(list)
}

// A search for devices is what it has found so far.
type search struct {
	t     tree
	list  []*Device
	times map[string]int // devices of an id
}

// add adds a device that was found at sys, whose node, if it is to have one, is there.
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

// join is add for what has several nodes.
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

// withPeriph is what containers can be given where periph knows the GPIO chips and buses: those are
// there whether /sys shows them or not. /sys says more of each, and fills in the rest. What periph
// found minutes ago may have gone since.
func (t tree) withPeriph(list []Device, found []*Device) []Device {
	for _, d := range found {
		unknown := len(d.Nodes) > 0 && t.node(d.Nodes[0])
		for i := range list {
			unknown = unknown && list[i].ID != d.ID && !slices.Equal(list[i].Nodes, d.Nodes)
		}
		if unknown {
			e := *d // what periph found is kept
			e.found, e.Internal = &finding{root: t, periph: true}, d.Resource == "gpiochip" && !headerChips.MatchString(d.ID)
			list = append(list, e)
		}
	}
	return inOrder(list)
}

// node tells whether a device node is there. A fake root may hold plain files in their place.
func (t tree) node(p string) bool {
	st, err := os.Stat(t.path(p))
	return err == nil && (st.Mode()&os.ModeCharDevice != 0 || !t.real() && st.Mode().IsRegular())
}

// buses have the numbers that pods ask for: what is connected to each differs. All chip selects of
// an SPI bus are one device, for they share its clock. CAN buses are network interfaces and have no
// node.
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

// spiBus is the bus of a chip select: spi0 of /dev/spidev0.1.
func spiBus(node string) string {
	bus, _, _ := strings.Cut(strings.TrimPrefix(node, "/dev/spidev"), ".")
	return "spi" + bus
}

// renderers are as good as another, and known by the place of their processor.
func (s *search) renderers() {
	for _, dir := range s.t.glob("/sys/class/drm/renderD*") {
		name := path.Base(dir)
		d := s.add("render", cmp.Or(s.t.place(dir+"/device"), name), "/dev/dri/"+name, dir)
		d.Title, d.found.was = s.t.link(dir+"/device/driver"), name
	}
}

// serialPorts are those with hardware behind them, but for the kernel's consoles. udev's name of
// what is plugged in says which of several it is; without one it is known by its place.
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
			continue // no chip behind it; the console of a virtual machine
		}
		d := s.add("serial", byID[name], "/dev/"+name, dir+"/device")
		d.Title = t.text(dir + "/device/../../product")
		if d.ID == "" {
			d.ID, d.found.was = cmp.Or(t.place(dir+"/device"), name), name
		}
	}
}

// usbDevices are those that no driver of the kernel has made into something else: a disk, a network
// card or a radio is the system's, and a serial port or a camera is given as such.
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

// near is the NUMA node that a directory of /sys names for what it stands for, or for the nearest
// above it: a bus has none of its own, its controller has.
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

// resolve is where a path leads to, below the directory of the tree as well; empty where it leads
// nowhere.
func (t tree) resolve(p string) string {
	full, err := filepath.EvalSymlinks(t.path(p))
	if err != nil {
		return ""
	}
	return full
}

// place is the name of the nearest piece of hardware at or above a directory of /sys: its address
// on a bus. The parts that the kernel makes of one, such as the ports of a serial chip, have names
// of the kernel's own. Empty: nobody says.
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

// ioctl asks a device node something that only reads, and returns the answer of so many bytes; nil
// where it cannot be asked.
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
