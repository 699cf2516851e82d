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
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// requesting returns a pod whose container requests count devices of a resource.
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

// devicesOf are the device nodes of a pod's running container.
func (d *device) devicesOf(pod string) (nodes []string) {
	list, err := d.fake.Containers(d.t.Context(), plan.LabelAgent+"=pi-1")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, c := range list {
		var devices []hardware.Device
		if c.Labels[plan.LabelPodName] == pod && c.State == engine.Running &&
			json.Unmarshal([]byte(c.Labels[plan.LabelDevices]), &devices) == nil {
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

// The board's devices become an extended resource, and pods get them. A pod without a free device
// is rejected.
func TestAPodGetsItsDevicesExclusively(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.board.set(func(b *board) { b.devices = []hardware.Device{chip("0"), port("usb-RAK", "ttyUSB0")} })
		d.end() // the next agent starts with these devices
		d.start()
		d.desire(1, requesting("first", "gpiochip", "1", "wait"), requesting("second", "gpiochip", "1", "wait"),
			requesting("radio", "serial", "1", "wait"))
		time.Sleep(time.Minute)
		d.wantDevices("first", "/dev/gpiochip0")
		d.wantDevices("radio", "/dev/ttyUSB0")
		st := d.wantPhase("second", corev1.PodFailed, "OutOfflotilla.dev/gpiochip")
		if !strings.Contains(st.Message, "requested: 1, used: 1, capacity: 1") {
			t.Errorf("the pod's message is %q, want that 1 of 1 is used", st.Message)
		}
		if q := d.agent.Status().Status.Allocatable["flotilla.dev/gpiochip"]; q.Value() != 1 {
			t.Errorf("the allocatable amount is %s, want 1", q.String())
		}

		// While the agent is off, the hub adds a pod that requests the same device.
		d.end()
		d.start()
		d.desire(2, requesting("first", "gpiochip", "1", "wait"), requesting("third", "gpiochip", "1", "wait"),
			requesting("radio", "serial", "1", "wait"))
		time.Sleep(time.Minute)
		d.wantDevices("first", "/dev/gpiochip0")
		d.wantPhase("third", corev1.PodFailed, "OutOfflotilla.dev/gpiochip")

		// When a device is unplugged, the capacity drops, and the pod that has the device gets a
		// condition and keeps running.
		d.board.set(func(b *board) { b.devices = b.devices[:1] })
		time.Sleep(reportTime)
		synctest.Wait()
		st, _ = d.pod("radio")
		if c := condition(st, fleet.ConditionDevicesPresent); c.Status != corev1.ConditionFalse ||
			!strings.Contains(c.Message, "usb-RAK") || st.Phase != corev1.PodRunning {
			t.Errorf("with an unplugged device the pod is %s with %+v", st.Phase, c)
		}
		if q, has := d.agent.Status().Status.Capacity["flotilla.dev/serial"]; has {
			t.Errorf("with an unplugged device the capacity is %s, want no such resource", q.String())
		}
		// When the device is plugged in at another port, the pod gets the new node.
		d.board.set(func(b *board) { b.devices = append(b.devices[:1:1], port("usb-RAK", "ttyUSB1")) })
		time.Sleep(reportTime + time.Minute)
		d.wantDevices("radio", "/dev/ttyUSB1")
		st, _ = d.pod("radio")
		if c := condition(st, fleet.ConditionDevicesPresent); c.Status != corev1.ConditionTrue {
			t.Errorf("with the device plugged in again the pod has %+v, want DevicesPresent=True", c)
		}
		for _, want := range []string{"DeviceUnplugged", "DevicePlugged"} {
			if !slices.Contains(d.reasons(), want) {
				t.Errorf("no event %s, only %q", want, d.reasons())
			}
		}
	})
}

// A container whose device is unplugged waits with a reason, and starts once the device is plugged
// in.
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
		if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != plan.DeviceUnavailable ||
			!strings.Contains(w.Message, "flotilla.dev/gpiochip") {
			t.Fatalf("the container's status is %+v, want DeviceUnavailable", st.ContainerStatuses[0].State)
		}
		plug(chip("0"))
		d.wantDevices("first", "/dev/gpiochip0")
		plug() // unplug the device of the running container
		st, _ = d.pod("first")
		if c := condition(st, fleet.ConditionDevicesPresent); c.Status != corev1.ConditionFalse {
			t.Errorf("with an unplugged device the pod has %+v, want DevicesPresent=False", c)
		}
	})
}

func TestAContainersEnvironmentNamesItsDevices(t *testing.T) {
	devices := []hardware.Device{chip("0"), chip("1"), {Resource: "can0", ID: "can0"},
		{Resource: "usb-0bda-2838", ID: "1-1", Nodes: []string{"/dev/bus/usb/001/004"}}}
	env, _, err := podspec.Sources{Pod: &corev1.Pod{}, Devices: devices}.Environment(&corev1.Container{})
	if err != nil || !slices.Equal(env, []string{"FLOTILLA_GPIOCHIP=/dev/gpiochip0,/dev/gpiochip1",
		"FLOTILLA_CAN0=can0", "FLOTILLA_USB_0BDA_2838=/dev/bus/usb/001/004"}) {
		t.Errorf("the environment is %q, error %v", env, err)
	}
	spec := engine.Spec{Labels: map[string]string{}, Groups: []string{"7"}}
	if err := addDevices(&spec, devices[:2], func(d hardware.Device) (hardware.Device, []hardware.Node, error) {
		return d, []hardware.Node{{Path: d.Nodes[0], Host: "/root" + d.Nodes[0], Group: 7}}, nil
	}); err != nil || len(spec.Devices) != 2 || spec.Devices[1] != (engine.Device{Host: "/root/dev/gpiochip1",
		Path: "/dev/gpiochip1"}) || len(spec.Groups) != 1 {
		t.Errorf("the spec is %+v, error %v; want two devices and one group", spec, err)
	}
	moved := func(d hardware.Device) (hardware.Device, []hardware.Node, error) {
		d.Nodes = []string{"/dev/else"}
		return d, nil, nil
	}
	if err := addDevices(&spec, devices[:1], moved); err == nil {
		t.Error("addDevices accepts a device that has moved")
	}
	env, _, err = podspec.Sources{Pod: &corev1.Pod{},
		Devices: devices[:1]}.Environment(&corev1.Container{Env: []corev1.EnvVar{{Name: "PORT",
		Value: "$(FLOTILLA_GPIOCHIP)"}}})
	if err != nil || !slices.Contains(env, "PORT=/dev/gpiochip0") {
		t.Errorf("the environment is %q, error %v", env, err)
	}
}
