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

func TestAssignmentOfDevices(t *testing.T) {
	type has struct {
		pod     string
		state   engine.State
		devices []hardware.Device
	}
	two := []hardware.Device{chip("0"), chip("1")}
	unplugged := port("usb-pulled", "gpiochip0") // unplugged; another device has its node now
	camera := hardware.Device{Resource: "gpiochip", ID: "camera", Nodes: []string{"/dev/video0", "/dev/gpiochip0"}}
	line := hardware.Device{Resource: "button", ID: "gpiochip0/GPIO17", On: "gpiochip0",
		Nodes: []string{"/dev/gpiochip0"}}
	for _, c := range []struct {
		rule    string
		offers  []hardware.Device
		sharing int64
		others  []has
		want    string // requested devices
		get     string // ids of the devices, or "-" and the error
	}{
		{"the first free device", two, 1, nil, "1", "gpiochip0"},
		{"two different devices for one container", two, 1, nil, "2", "gpiochip0 gpiochip1"},
		{"a running container keeps its device", two, 1, []has{{"other", engine.Running, two[:1]}}, "1", "gpiochip1"},
		{"a paused container keeps its device", two, 1, []has{{"other", engine.Paused, two[:1]}}, "1", "gpiochip1"},
		{"another container's earlier device is used last", two, 1, []has{{"other", engine.Exited, two[:1]}}, "1", "gpiochip1"},
		{"another container's earlier device if it is the last free one", two, 1, []has{{"other", engine.Exited, two[:1]}, {"third", engine.Running, two[1:]}}, "1", "gpiochip0"},
		{"the container's own earlier device", two, 1, []has{{"mine", engine.Exited, two[1:]}}, "1", "gpiochip1"},
		{"all devices are in use", two, 1, []has{{"other", engine.Running, two}}, "1", "-none of the 2 is free"},
		{"too few devices for the request", two, 1, []has{{"other", engine.Running, two[:1]}}, "2", "-none of the 2 is free"},
		{"a shared device up to its limit", two[:1], 2, []has{{"other", engine.Running, two[:1]}}, "1", "gpiochip0"},
		{"a shared device beyond its limit", two[:1], 2, []has{{"other", engine.Running, two[:1]}, {"third", engine.Running, two[:1]}}, "1", "-none of the 2 is free"},
		{"the shared device with the fewest containers", two, 2, []has{{"other", engine.Running, two[:1]}}, "1", "gpiochip1"},
		{"two shares of one device", two[:1], 2, nil, "2", "gpiochip0"},
		{"a device that the board does not have", nil, 1, nil, "1", "-not found on this device"},
		{"the node of a running container's unplugged device is not used", two, 1, []has{{"other", engine.Running, []hardware.Device{unplugged}}}, "1", "gpiochip1"},
		{"the node of a paused container's unplugged device is not used", two[:1], 1, []has{{"other", engine.Paused, []hardware.Device{unplugged}}}, "1", "-none of the 1 is free"},
		{"the node of an unplugged device is not used, even if the device is shared", two[:1], 3, []has{{"other", engine.Running, []hardware.Device{unplugged}}}, "1", "-none of the 3 is free"},
		{"the node of an unplugged device is used after the end of the container", two[:1], 1, []has{{"other", engine.Exited, []hardware.Device{unplugged}}}, "1", "gpiochip0"},
		{"a device with one node in use is not used", []hardware.Device{camera, chip("1")}, 1, []has{{"other", engine.Running, []hardware.Device{unplugged}}}, "1", "gpiochip1"},
		{"a bus that a peripheral's container also uses", two[:1], 1, []has{{"other", engine.Running, []hardware.Device{line}}}, "1", "gpiochip0"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			pod := requesting("mine", "gpiochip", c.want, "wait")
			w := newWorld(pod)
			w.o.Node.Offers = append(w.o.Node.Offers, hardware.Resources(c.offers,
				&fleet.BoardProfile{Spec: fleet.BoardProfileSpec{
					Resources: fleet.BoardResources{Sharing: map[string]int64{"gpiochip": c.sharing}}}})...)
			w.o.RecordOf(pod.UID).Admitted = true
			for _, o := range c.others {
				owner := makePod(o.pod, "wait")
				label, _ := json.Marshal(o.devices)
				w.o.Containers = append(w.o.Containers, Instance{Place: Place{owner.UID, "c0"},
					Container: engine.Container{ID: o.pod, State: o.state,
						Labels: map[string]string{LabelDevices: string(label)}}})
				if o.pod != "mine" {
					w.d.Pods = append(w.d.Pods, owner)
				}
			}
			steps, _ := Steps(w.d, &w.o, w.now)
			i := slices.IndexFunc(steps, func(s Step) bool { return s.Action == Run && s.Place.Pod == pod.UID })
			if i < 0 {
				t.Fatalf("the container is not run: %v", sentences(steps))
			}
			var got []string
			for _, d := range steps[i].Devices {
				got = append(got, d.ID)
			}
			lacks, none := strings.CutPrefix(c.get, "-")
			if none && (len(got) > 0 || !strings.Contains(steps[i].Missing, lacks)) ||
				!none && strings.Join(got, " ") != c.get {
				t.Errorf("the container gets %q, missing %q; want %q", got, steps[i].Missing, c.get)
			}
		})
	}
}

// Two containers that start at the same time do not get the same device.
func TestContainersThatStartTogetherGetDifferentDevices(t *testing.T) {
	a, b, under := requesting("a", "gpiochip", "1", "wait"), requesting("b", "gpiochip", "1", "wait"),
		requesting("under", "gpiochip", "1", "wait")
	w := newWorld(a, b, under)
	w.o.Node.Offers = hardware.Resources([]hardware.Device{chip("0"), chip("1"), chip("2")}, nil)
	for _, p := range w.d.Pods {
		w.o.RecordOf(p.UID).Admitted = true
	}
	w.o.Busy = []RunningStep{{Step: Step{Action: Run, Place: Place{under.UID, "c0"},
		Devices: []hardware.Device{chip("1")}}, Since: w.now}}
	steps, _ := Steps(w.d, &w.o, w.now)
	var got []string
	for _, s := range steps {
		for _, d := range s.Devices {
			got = append(got, string(s.Place.Pod)+" "+d.ID)
		}
	}
	if want := []string{"uid-a gpiochip0", "uid-b gpiochip2"}; !slices.Equal(got, want) {
		t.Errorf("the containers get %q, want %q", got, want)
	}
}

// A starting container does not get a device node that another starting container has under another
// device's name.
func TestAStartingContainerHoldsItsDeviceNodes(t *testing.T) {
	a, under := requesting("a", "gpiochip", "1", "wait"), requesting("under", "serial", "1", "wait")
	w := newWorld(a, under)
	w.o.Node.Offers = hardware.Resources([]hardware.Device{chip("0"), port("usb-other", "ttyUSB7")}, nil)
	for _, p := range w.d.Pods {
		w.o.RecordOf(p.UID).Admitted = true
	}
	w.o.Busy = []RunningStep{{Step: Step{Action: Run, Place: Place{under.UID, "c0"},
		Devices: []hardware.Device{port("usb-pulled", "gpiochip0")}}, Since: w.now}}
	steps, _ := Steps(w.d, &w.o, w.now)
	for _, s := range steps {
		if s.Action == Run && (len(s.Devices) > 0 || !strings.Contains(s.Missing, "none of the 1 is free")) {
			t.Errorf("the container gets %v, missing %q", s.Devices, s.Missing)
		}
	}
}

// The hub counts a resource that an administrator added to the Node. A device's resource must be
// present on the device.
func TestResourcesThatOnlyTheHubCounts(t *testing.T) {
	ours, theirs := requesting("ours", "gpiochip", "1", "wait"), makePod("theirs", "wait")
	theirs.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/dongle": resource.MustParse("1")}
	w := newWorld(ours, theirs)
	steps, _ := Steps(w.d, &w.o, w.now)
	got := strings.Join(sentences(steps), "; ")
	if !strings.Contains(got, "admit default/theirs") ||
		!strings.Contains(got, "reject default/ours: OutOfflotilla.dev/gpiochip") {
		t.Error(got)
	}
}

func TestACANBusNeedsHostNetwork(t *testing.T) {
	p := requesting("bus", "can0", "1", "wait")
	w := newWorld(p)
	w.o.Node.Offers = hardware.Resources([]hardware.Device{{Resource: "can0", ID: "can0"}}, nil)
	steps, _ := Steps(wire.Desired{Pods: []corev1.Pod{p}}, &w.o, w.now)
	if got := strings.Join(sentences(steps), "; "); !strings.Contains(got, "set hostNetwork: true") {
		t.Error(got)
	}
}
