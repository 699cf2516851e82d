package hardware

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"periph.io/x/conn/v3/gpio"
	"periph.io/x/conn/v3/i2c/i2creg"
	"periph.io/x/host/v3/gpioioctl"

	"flotilla.dev/shared/fleet"
)

// A Presence is the state of a peripheral of the board profile.
type Presence struct {
	Name    string
	Missing string // why it is missing and the next step; empty: it is connected
	Unasked bool   // not checked, because a container uses its node; the last known state stays
	Device  Device // device for pods; if it has no ID, as for a serial port, Resources finds it among the node's devices
}

// A question is the list of peripherals that the child checks.
type question struct {
	List []fleet.Peripheral `json:"list"`
	Held []string           `json:"held,omitempty"` // nodes that containers use, which the child must not open
}

// An answer is the child's result for one peripheral of the question.
type answer struct {
	Missing string `json:"missing,omitempty"`
	Unasked bool   `json:"unasked,omitempty"`
	Node    string `json:"node,omitempty"`
}

// Connected looks for the peripherals of a board profile and returns their states in the same
// order. It asks the kernel about peripherals that have a driver. For the others periph, in a child
// process, reads one byte from a chip on an I2C bus, or the pull of an input line. Connected never
// opens a node that a container uses, and never drives a line.
func Connected(ctx context.Context, o Options, list []fleet.Peripheral, held []string) []Presence {
	t := treeOf(o)
	out := make([]Presence, len(list))
	ask := question{Held: held}
	var of []int // for each entry of ask.List its index in out
	found := devices(t)
	if o.Periph != nil && t.real() {
		more, _ := o.Periph.Read(ctx) // Probe reports the error
		found = t.withPeriph(found, more.Devices)
	}
	for i, p := range list {
		sure := false
		if out[i], sure = presenceWithoutChild(t, found, p); !sure {
			ask.List, of = append(ask.List, p), append(of, i)
		}
	}
	if len(of) == 0 {
		return out
	}
	var answers []answer
	err := o.ask(ctx, t, ask, &answers)
	if err == nil && len(answers) != len(of) {
		err = fmt.Errorf("periph has answered %d of %d questions", len(answers), len(of))
	}
	for i, at := range of {
		switch p := &out[at]; {
		case err != nil:
			p.Missing = err.Error()
		default:
			a := answers[i]
			p.Missing, p.Unasked = a.Missing, a.Unasked
			if node := a.Node; node != "" {
				on, was, periph := path.Base(node), path.Base(node), false
				if i := slices.IndexFunc(found, func(d Device) bool { return slices.Contains(d.Nodes, node) }); i >= 0 {
					on, periph = found[i].ID, found[i].found.periph
				}
				p.Device = Device{Resource: p.Name, ID: on + "/" + idOn(list[at]), On: on, Nodes: []string{node},
					found: &finding{root: t, was: was + "/" + idOn(list[at]), periph: periph}}
			}
		}
	}
	return out
}

// idOn identifies a peripheral on its bus or chip.
func idOn(p fleet.Peripheral) string {
	if p.Type == fleet.PeripheralI2C {
		return fmt.Sprintf("%#02x", p.Address)
	}
	return p.Line
}

// presenceWithoutChild returns the state of a peripheral if the kernel knows it; otherwise sure is
// false and the child must check it.
func presenceWithoutChild(t tree, found []Device, p fleet.Peripheral) (out Presence, sure bool) {
	out.Name = p.Name
	switch p.Type {
	case fleet.PeripheralOneWire:
		chips := t.glob("/sys/bus/w1/devices/" + p.Family + "-*")
		if len(chips) == 0 {
			out.Missing = fmt.Sprintf("no 1-wire chip of family %s answers: check its wiring, and that the board has a "+
				"1-wire bus (on a Raspberry Pi dtoverlay=w1-gpio)", p.Family)
			return out, true
		}
		out.Device = Device{Resource: p.Name, ID: path.Base(chips[0]), Plain: true, found: &finding{root: t}}
	case fleet.PeripheralI2C:
		bus := fmt.Sprintf("i2c-%d", *p.Bus)
		if !slices.ContainsFunc(found, func(d Device) bool { return d.ID == bus }) {
			out.Missing = fmt.Sprintf(
				"bus %s not found: switch it on (on a Raspberry Pi dtparam=i2c_arm=on), and load i2c-dev", bus)
			return out, true
		}
		// A chip with a driver is connected, because the driver has found it.
		chip := fmt.Sprintf("/sys/bus/i2c/devices/%d-%04x", *p.Bus, p.Address)
		if !t.exists(chip + "/driver") {
			return out, false
		}
		out.Device = Device{Resource: p.Name, ID: bus + "/" + idOn(p), On: bus, Nodes: []string{"/dev/" + bus},
			found: &finding{root: t}}
	case fleet.PeripheralGPIOIn, fleet.PeripheralGPIOOut:
		return out, false
	default:
		if !slices.ContainsFunc(found, func(d Device) bool { return isOne(d, p) }) {
			out.Missing = fmt.Sprintf("%s device %s is not plugged in: see flotilla-device probe", p.Type, p.ByID)
		}
	}
	return out, true
}

// ask runs the child. It returns an error for the root of another board.
func (o Options) ask(ctx context.Context, t tree, q question, answers *[]answer) error {
	if o.Periph == nil || !t.real() {
		return errors.New("this peripheral can be checked on the board itself only")
	}
	text, err := json.Marshal(q)
	if err != nil {
		return err
	}
	return o.Periph.child(ctx, answers, string(text))
}

// answerQuestion answers a question; it runs in the child.
func answerQuestion(w io.Writer, text string) error {
	var q question
	if err := json.Unmarshal([]byte(text), &q); err != nil {
		return fmt.Errorf("parse the question: %w", err)
	}
	b := buses{
		i2c: func(bus, address int64) error {
			b, err := i2creg.Open(strconv.FormatInt(bus, 10))
			if err != nil {
				return err
			}
			defer b.Close()
			return b.Tx(uint16(address), nil, make([]byte, 1))
		},
		line: func(name string) (chip string, l line) {
			for _, c := range gpioioctl.Chips {
				if l := c.ByName(name); l != nil {
					return c.Path(), l
				}
			}
			return "", nil
		},
	}
	answers := make([]answer, len(q.List))
	for i, p := range q.List {
		answers[i] = b.answer(p, q.Held)
	}
	return json.NewEncoder(w).Encode(answers)
}

// A line is one line of a GPIO chip.
type line interface {
	Consumer() string
	In(gpio.Pull, gpio.Edge) error
	Close()
}

// buses are the buses and lines that can be checked.
type buses struct {
	i2c  func(bus, address int64) error
	line func(name string) (chip string, l line)
}

var pulls = map[string]gpio.Pull{"": gpio.PullNoChange, "none": gpio.Float, "up": gpio.PullUp, "down": gpio.PullDown}

func (b buses) answer(p fleet.Peripheral, held []string) (a answer) {
	if p.Type == fleet.PeripheralI2C {
		a.Node = fmt.Sprintf("/dev/i2c-%d", *p.Bus)
		if slices.Contains(held, a.Node) {
			return answer{Unasked: true, Node: a.Node}
		}
		if err := b.i2c(*p.Bus, p.Address); err != nil {
			return answer{Missing: clean(fmt.Sprintf(
				"nothing answers at address %#02x of i2c-%d (%v): check wiring, power and address", p.Address, *p.Bus,
				err))}
		}
		return a
	}
	chip, l := b.line(p.Line)
	if chip == "" {
		return answer{Missing: clean(fmt.Sprintf("line %s not found: use a name that gpioinfo prints", p.Line))}
	}
	a.Node = chip
	if !strings.HasPrefix(chip, "/dev/") {
		a.Node = "/dev/" + chip
	}
	user := l.Consumer()
	switch {
	case slices.Contains(held, a.Node): // present, although perhaps not in use by the container that has its chip
	case user != "":
		return answer{Missing: clean(fmt.Sprintf("line %s is used by %s: stop its user, or use another line", p.Line,
			user))}
	case p.Type == fleet.PeripheralGPIOIn:
		defer l.Close()
		if err := l.In(pulls[p.Pull], gpio.NoEdge); err != nil {
			return answer{Missing: clean(fmt.Sprintf(
				"line %s cannot be an input with pull %q (%v): use a line and a pull that the chip supports", p.Line, p.Pull, err))}
		}
	}
	return a
}

// headerChips matches the labels of the GPIO chips that drive a board's pin header. All other chips
// are inside the board or plugged in: they switch regulators and LEDs, so pods can request them
// only by a name in the board profile.
var headerChips = regexp.MustCompile(`^(` +
	`pinctrl-(bcm2835|bcm2711|rp1)` + // Raspberry Pi up to 3, 4, 5
	`|gpio-\d+-\d+` + // BeagleBone
	`|gpio\d` + // Rockchip
	`|[0-9a-f]+\.pinctrl` + // Allwinner
	`|(periphs|aobus)-banks` + // Amlogic
	`|tegra\d+-gpio(-aon)?` + // Jetson
	`)$`)

// gpioChips identifies chips by their drivers' labels, because the kernel's numbers change between
// kernels. Chips with the same label, or without one, are identified by their places.
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

// chipLabel returns the label of a GPIO chip, or "". It asks the chip itself, or reads the class in
// /sys if the chip's node cannot be opened. Kernels before 6.17 use other numbers in that class, so
// it looks for the nth GPIO chip of the parent there.
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
