package plan

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

func TestWhoGetsWhichDevice(t *testing.T) {
	type has struct {
		pod     string
		state   engine.State
		devices []hardware.Device
	}
	two := []hardware.Device{chip("0"), chip("1")}
	lost := port("usb-pulled", "gpiochip0") // it was unplugged, and another has its node now
	camera := hardware.Device{Resource: "gpiochip", ID: "camera", Nodes: []string{"/dev/video0", "/dev/gpiochip0"}}
	line := hardware.Device{Resource: "button", ID: "gpiochip0/GPIO17", On: "gpiochip0", Nodes: []string{"/dev/gpiochip0"}}
	for _, c := range []struct {
		rule    string
		offers  []hardware.Device
		sharing int64
		others  []has
		want    string // how many are asked for
		get     string // ids, or "-" and what is lacking
	}{
		{"the first that is free", two, 1, nil, "1", "gpiochip0"},
		{"two are two different ones", two, 1, nil, "2", "gpiochip0 gpiochip1"},
		{"not the one that runs with another", two, 1, []has{{"other", engine.Running, two[:1]}}, "1", "gpiochip1"},
		{"nor that of a container that is paused", two, 1, []has{{"other", engine.Paused, two[:1]}}, "1", "gpiochip1"},
		{"rather not the one that another has had and may want again", two, 1, []has{{"other", engine.Exited, two[:1]}}, "1", "gpiochip1"},
		{"but that one if no other is free", two, 1, []has{{"other", engine.Exited, two[:1]}, {"third", engine.Running, two[1:]}}, "1", "gpiochip0"},
		{"the one that it has had itself", two, 1, []has{{"mine", engine.Exited, two[1:]}}, "1", "gpiochip1"},
		{"none where all are taken", two, 1, []has{{"other", engine.Running, two}}, "1", "-none of the 2 is free"},
		{"nothing rather than half", two, 1, []has{{"other", engine.Running, two[:1]}}, "2", "-none of the 2 is free"},
		{"a shared one, as often as it may be", two[:1], 2, []has{{"other", engine.Running, two[:1]}}, "1", "gpiochip0"},
		{"a shared one not more often", two[:1], 2, []has{{"other", engine.Running, two[:1]}, {"third", engine.Running, two[:1]}}, "1", "-none of the 2 is free"},
		{"of shared ones that which fewest have", two, 2, []has{{"other", engine.Running, two[:1]}}, "1", "gpiochip1"},
		{"two shares of one device are that device", two[:1], 2, nil, "2", "gpiochip0"},
		{"none where there is none", nil, 1, nil, "1", "-not found on this device"},
		{"not the node of one that was unplugged from a container that runs", two, 1, []has{{"other", engine.Running, []hardware.Device{lost}}}, "1", "gpiochip1"},
		{"nor from one that is paused, and waits where there is no other", two[:1], 1, []has{{"other", engine.Paused, []hardware.Device{lost}}}, "1", "-none of the 1 is free"},
		{"not even if it may be shared: these are two devices", two[:1], 3, []has{{"other", engine.Running, []hardware.Device{lost}}}, "1", "-none of the 3 is free"},
		{"that node once the container has ended", two[:1], 1, []has{{"other", engine.Exited, []hardware.Device{lost}}}, "1", "gpiochip0"},
		{"not one of whose nodes one is held", []hardware.Device{camera, chip("1")}, 1, []has{{"other", engine.Running, []hardware.Device{lost}}}, "1", "gpiochip1"},
		{"a bus that a peripheral's container has as well", two[:1], 1, []has{{"other", engine.Running, []hardware.Device{line}}}, "1", "gpiochip0"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			pod := requesting("mine", "gpiochip", c.want, "wait")
			w := newWorld(pod)
			w.o.Node.Offers = append(w.o.Node.Offers, hardware.Resources(c.offers, &fleet.BoardProfile{Spec: fleet.BoardProfileSpec{
				Resources: fleet.BoardResources{Sharing: map[string]int64{"gpiochip": c.sharing}}}})...)
			w.o.RecordOf(pod.UID).Admitted = true
			for _, o := range c.others {
				owner := makePod(o.pod, "wait")
				label, _ := json.Marshal(o.devices)
				w.o.Containers = append(w.o.Containers, Instance{Place: Place{owner.UID, "c0"}, Container: engine.Container{ID: o.pod, State: o.state, Labels: map[string]string{LabelDevices: string(label)}}})
				if o.pod != "mine" {
					w.d.Pods = append(w.d.Pods, owner)
				}
			}
			steps, _ := Steps(w.d, &w.o, w.now)
			i := slices.IndexFunc(steps, func(s Step) bool { return s.Action == Run && s.Place.Pod == pod.UID })
			if i < 0 {
				t.Fatalf("it is not run: %v", sentences(steps))
			}
			var got []string
			for _, d := range steps[i].Devices {
				got = append(got, d.ID)
			}
			lacks, none := strings.CutPrefix(c.get, "-")
			if none && (len(got) > 0 || !strings.Contains(steps[i].Missing, lacks)) || !none && strings.Join(got, " ") != c.get {
				t.Errorf("it gets %q, lacks %q; want %q", got, steps[i].Missing, c.get)
			}
		})
	}
}

// Two that start in one pass, and one whose start is under way, do not get the same.
func TestOneDeviceIsNotGivenTwiceAtOnce(t *testing.T) {
	a, b, under := requesting("a", "gpiochip", "1", "wait"), requesting("b", "gpiochip", "1", "wait"), requesting("under", "gpiochip", "1", "wait")
	w := newWorld(a, b, under)
	w.o.Node.Offers = hardware.Resources([]hardware.Device{chip("0"), chip("1"), chip("2")}, nil)
	for _, p := range w.d.Pods {
		w.o.RecordOf(p.UID).Admitted = true
	}
	w.o.Busy = []RunningStep{{Step: Step{Action: Run, Place: Place{under.UID, "c0"}, Devices: []hardware.Device{chip("1")}}, Since: w.now}}
	steps, _ := Steps(w.d, &w.o, w.now)
	var got []string
	for _, s := range steps {
		for _, d := range s.Devices {
			got = append(got, string(s.Place.Pod)+" "+d.ID)
		}
	}
	if want := []string{"uid-a gpiochip0", "uid-b gpiochip2"}; !slices.Equal(got, want) {
		t.Errorf("they get %q, want %q", got, want)
	}
}

// A node is not given to a container whose start is decided while another that starts has it by the name of another device.
func TestAStartingContainerHasItsNodesToo(t *testing.T) {
	a, under := requesting("a", "gpiochip", "1", "wait"), requesting("under", "serial", "1", "wait")
	w := newWorld(a, under)
	w.o.Node.Offers = hardware.Resources([]hardware.Device{chip("0"), port("usb-other", "ttyUSB7")}, nil)
	for _, p := range w.d.Pods {
		w.o.RecordOf(p.UID).Admitted = true
	}
	w.o.Busy = []RunningStep{{Step: Step{Action: Run, Place: Place{under.UID, "c0"}, Devices: []hardware.Device{port("usb-pulled", "gpiochip0")}}, Since: w.now}}
	steps, _ := Steps(w.d, &w.o, w.now)
	for _, s := range steps {
		if s.Action == Run && (len(s.Devices) > 0 || !strings.Contains(s.Missing, "none of the 1 is free")) {
			t.Errorf("it gets %v, lacks %q", s.Devices, s.Missing)
		}
	}
}

// What an administrator has added to the Node is the hub's to count; what is said to be a device's must be there.
func TestResourcesThatTheDeviceDoesNotKnow(t *testing.T) {
	ours, theirs := requesting("ours", "gpiochip", "1", "wait"), makePod("theirs", "wait")
	theirs.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/dongle": resource.MustParse("1")}
	w := newWorld(ours, theirs)
	steps, _ := Steps(w.d, &w.o, w.now)
	got := strings.Join(sentences(steps), "; ")
	if !strings.Contains(got, "admit default/theirs") || !strings.Contains(got, "reject default/ours: OutOfflotilla.dev/gpiochip") {
		t.Error(got)
	}
}

func TestACANBusNeedsTheHostsNetwork(t *testing.T) {
	p := requesting("bus", "can0", "1", "wait")
	w := newWorld(p)
	w.o.Node.Offers = hardware.Resources([]hardware.Device{{Resource: "can0", ID: "can0"}}, nil)
	steps, _ := Steps(wire.Desired{Pods: []corev1.Pod{p}}, &w.o, w.now)
	if got := strings.Join(sentences(steps), "; "); !strings.Contains(got, "set hostNetwork: true") {
		t.Error(got)
	}
}
