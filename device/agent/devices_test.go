package agent

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// requesting makes a pod whose container asks for so many of a device.
func requesting(name, device, count, command string) corev1.Pod {
	p := makePod(name, command)
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{fleet.ResourceName(device): resource.MustParse(count)}
	p.Spec.Containers[0].Resources.Requests = p.Spec.Containers[0].Resources.Limits
	return p
}

func chip(n string) hardware.Device {
	return hardware.Device{Resource: "gpiochip", ID: "gpiochip" + n, Nodes: []string{"/dev/gpiochip" + n}}
}

func port(id, node string) hardware.Device {
	return hardware.Device{Resource: "serial", ID: id, Nodes: []string{"/dev/" + node}}
}

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
		{"none where there is none", nil, 1, nil, "1", "-this device has none"},
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
			w.o.record(pod.UID).Admitted = true
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
			if none && (len(got) > 0 || !strings.Contains(steps[i].Lacks, lacks)) || !none && strings.Join(got, " ") != c.get {
				t.Errorf("it gets %q, lacks %q; want %q", got, steps[i].Lacks, c.get)
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
		w.o.record(p.UID).Admitted = true
	}
	w.o.Busy = []Doing{{Step: Step{Action: Run, Place: Place{under.UID, "c0"}, Devices: []hardware.Device{chip("1")}}, Since: w.now}}
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
		w.o.record(p.UID).Admitted = true
	}
	w.o.Busy = []Doing{{Step: Step{Action: Run, Place: Place{under.UID, "c0"}, Devices: []hardware.Device{port("usb-pulled", "gpiochip0")}}, Since: w.now}}
	steps, _ := Steps(w.d, &w.o, w.now)
	for _, s := range steps {
		if s.Action == Run && (len(s.Devices) > 0 || !strings.Contains(s.Lacks, "none of the 1 is free")) {
			t.Errorf("it gets %v, lacks %q", s.Devices, s.Lacks)
		}
	}
}

// devicesOf are the devices that a pod's running container has.
func (d *device) devicesOf(pod string) (nodes []string) {
	list, err := d.twin.Containers(d.t.Context(), LabelAgent+"=pi-1")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, c := range list {
		var devices []hardware.Device
		if c.Labels[LabelPodName] == pod && c.State == engine.Running && json.Unmarshal([]byte(c.Labels[LabelDevices]), &devices) == nil {
			for _, x := range devices {
				nodes = append(nodes, x.Nodes...)
			}
		}
	}
	return nodes
}

func (d *device) wantDevices(pod string, want ...string) {
	d.t.Helper()
	synctest.Wait()
	if got := d.devicesOf(pod); !slices.Equal(got, want) {
		d.t.Fatalf("%s has %q, want %q", pod, got, want)
	}
}

func condition(st corev1.PodStatus, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range st.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

// From what the board has to what the container gets, and who is turned away.
func TestAPodGetsItsDevicesAndNobodyElse(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.board.set(func(b *board) { b.devices = []hardware.Device{chip("0"), port("usb-RAK", "ttyUSB0")} })
		d.end() // with these devices from the start
		d.start()
		d.desire(1, requesting("first", "gpiochip", "1", "wait"), requesting("second", "gpiochip", "1", "wait"), requesting("radio", "serial", "1", "wait"))
		time.Sleep(time.Minute)
		d.wantDevices("first", "/dev/gpiochip0")
		d.wantDevices("radio", "/dev/ttyUSB0")
		st := d.wantPhase("second", corev1.PodFailed, "OutOfflotilla.dev/gpiochip")
		if !strings.Contains(st.Message, "requested: 1, used: 1, capacity: 1") {
			t.Errorf("it says %q", st.Message)
		}
		if q := d.agent.Status().Status.Allocatable["flotilla.dev/gpiochip"]; q.Value() != 1 {
			t.Errorf("allocatable is %s", q.String())
		}

		// The agent dies, and one that asks for the same comes while it is away.
		d.end()
		d.start()
		d.desire(2, requesting("first", "gpiochip", "1", "wait"), requesting("third", "gpiochip", "1", "wait"), requesting("radio", "serial", "1", "wait"))
		time.Sleep(time.Minute)
		d.wantDevices("first", "/dev/gpiochip0")
		d.wantPhase("third", corev1.PodFailed, "OutOfflotilla.dev/gpiochip")

		// Unplugged: there is less, and who has it hears of it and runs on.
		d.board.set(func(b *board) { b.devices = b.devices[:1] })
		time.Sleep(reportTime)
		synctest.Wait()
		st, _ = d.pod("radio")
		if c := condition(st, fleet.ConditionDevicesPresent); c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "usb-RAK") || st.Phase != corev1.PodRunning {
			t.Errorf("unplugged, the pod is %s with %+v", st.Phase, c)
		}
		if q, has := d.agent.Status().Status.Capacity["flotilla.dev/serial"]; has {
			t.Errorf("unplugged, the capacity is %s", q.String())
		}
		// Plugged in again elsewhere: it gets the new node.
		d.board.set(func(b *board) { b.devices = append(b.devices[:1:1], port("usb-RAK", "ttyUSB1")) })
		time.Sleep(reportTime + time.Minute)
		d.wantDevices("radio", "/dev/ttyUSB1")
		st, _ = d.pod("radio")
		if c := condition(st, fleet.ConditionDevicesPresent); c.Status != corev1.ConditionTrue {
			t.Errorf("plugged in again, it has %+v", c)
		}
		for _, want := range []string{"DeviceUnplugged", "DevicePlugged"} {
			if !slices.Contains(d.reasons(), want) {
				t.Errorf("no event %s: %q", want, d.reasons())
			}
		}
	})
}

// One whose device is unplugged when it is to start waits, says why, and starts when it is plugged in again.
func TestAContainerWaitsForItsDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		plugged := make(chan struct{})
		d.config.Watch = func(ctx context.Context, changed func()) error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case <-plugged:
					changed()
				}
			}
		}
		plug := func(devices ...hardware.Device) {
			d.board.set(func(b *board) { b.devices = devices })
			plugged <- struct{}{}
			time.Sleep(plugTime + time.Second)
			synctest.Wait()
		}
		d.board.set(func(b *board) { b.devices = []hardware.Device{chip("0")} })
		d.start()
		defer func() { d.end() }()
		d.desire(1, requesting("first", "gpiochip", "1", "sleep 5s then exit 1"))
		time.Sleep(time.Second)
		d.wantDevices("first", "/dev/gpiochip0")
		plug()
		time.Sleep(10 * time.Second)
		st := d.wantPhase("first", corev1.PodRunning, "")
		if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != deviceUnavailable || !strings.Contains(w.Message, "flotilla.dev/gpiochip") {
			t.Fatalf("it is %+v", st.ContainerStatuses[0].State)
		}
		plug(chip("0"))
		d.wantDevices("first", "/dev/gpiochip0")
		plug() // the last of its kind, from a container that runs
		st, _ = d.pod("first")
		if c := condition(st, fleet.ConditionDevicesPresent); c.Status != corev1.ConditionFalse {
			t.Errorf("unplugged, it has %+v", c)
		}
	})
}

func TestWhatAContainerIsToldOfItsDevices(t *testing.T) {
	devices := []hardware.Device{chip("0"), chip("1"), {Resource: "can0", ID: "can0"}, {Resource: "usb-0bda-2838", ID: "1-1", Nodes: []string{"/dev/bus/usb/001/004"}}}
	env, _, err := podspec.Sources{Pod: &corev1.Pod{}, Devices: devices}.Environment(&corev1.Container{})
	if err != nil || !slices.Equal(env, []string{"FLOTILLA_GPIOCHIP=/dev/gpiochip0,/dev/gpiochip1", "FLOTILLA_CAN0=can0", "FLOTILLA_USB_0BDA_2838=/dev/bus/usb/001/004"}) {
		t.Errorf("%q %v", env, err)
	}
	spec := engine.Spec{Labels: map[string]string{}, Groups: []string{"7"}}
	if err := plug(&spec, devices[:2], func(d hardware.Device) (hardware.Device, []hardware.Node, error) {
		return d, []hardware.Node{{Path: d.Nodes[0], Host: "/root" + d.Nodes[0], Group: 7}}, nil
	}); err != nil || len(spec.Devices) != 2 || spec.Devices[1] != (engine.Device{Host: "/root/dev/gpiochip1", Path: "/dev/gpiochip1"}) || len(spec.Groups) != 1 {
		t.Errorf("%+v %v", spec, err)
	}
	moved := func(d hardware.Device) (hardware.Device, []hardware.Node, error) {
		d.Nodes = []string{"/dev/else"}
		return d, nil, nil
	}
	if err := plug(&spec, devices[:1], moved); err == nil {
		t.Error("a device that has moved is given all the same")
	}
	env, _, err = podspec.Sources{Pod: &corev1.Pod{}, Devices: devices[:1]}.Environment(&corev1.Container{Env: []corev1.EnvVar{{Name: "PORT", Value: "$(FLOTILLA_GPIOCHIP)"}}})
	if err != nil || !slices.Contains(env, "PORT=/dev/gpiochip0") {
		t.Errorf("%q %v", env, err)
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
