package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/hardware"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// LabelDevices is the label with a container's devices, in JSON. They are recorded only in this
// label, so that a restart of agent or engine does not lose them.
const LabelDevices = "flotilla.dev/devices"

// requestedDevices is the number of devices of each resource that a container requests.
func requestedDevices(c *corev1.Container) map[corev1.ResourceName]int64 {
	out := map[corev1.ResourceName]int64{}
	for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		for name, q := range list {
			if strings.HasPrefix(string(name), fleet.Group+"/") && q.Value() > 0 {
				out[name] = min(q.Value(), math.MaxInt16)
			}
		}
	}
	return out
}

// DevicesOf are the devices of an instance.
func DevicesOf(in Instance) (list []hardware.Device) {
	if json.Unmarshal([]byte(in.Labels[LabelDevices]), &list) != nil {
		return nil
	}
	return list
}

// assignDevices chooses the devices of a container that is about to start, or says which resource
// is missing. It prefers the container's earlier devices, then the least used ones. A device node
// in a running container stays in use even if the kernel has given the node to another device,
// because the container can open that device now.
func (p *pass) assignDevices(at Place, c *corev1.Container) (devices []hardware.Device, lacks string) {
	want := requestedDevices(c)
	for _, offer := range p.o.Node.Offers {
		n := want[offer.Name]
		delete(want, offer.Name)
		if n == 0 {
			continue
		}
		type choice struct {
			*hardware.Device
			mine, holders, past int64 // uses by this container, by other present containers, and by earlier ones
			had                 bool
		}
		choices := make([]choice, len(offer.Devices))
		for i, d := range offer.Devices {
			c := &choices[i]
			c.Device = &d
			hold := func(devices []hardware.Device) {
				same := false
				for _, e := range devices {
					if same = same || d.Same(e); d.SharesNode(e) { // the container already has this device
						c.holders += offer.Sharing
					}
				}
				if same {
					c.holders++
				}
			}
			for _, in := range p.o.Containers {
				devices := DevicesOf(in)
				switch own := in.Place == at; {
				case !own && IsRunning(in):
					hold(devices)
				case !slices.ContainsFunc(devices, d.Same):
				case own:
					c.had = true
				default:
					c.past++
				}
			}
			for _, s := range p.startingRuns() {
				if s.Place != at {
					hold(s.Devices)
				}
			}
		}
		for ; n > 0; n-- {
			free := slices.DeleteFunc(slices.Clone(choices), func(c choice) bool { return c.mine+c.holders >= offer.Sharing })
			if near := p.nearTo(at); near != nil && p.o.Node.Topology != BestEffort {
				free = slices.DeleteFunc(free, func(c choice) bool { return !isNear(*c.Device, near) })
			}
			if len(free) == 0 {
				return nil, fmt.Sprintf(
					"%s: none of the %d is free: plug in a device, or end a container that has one",
					offer.Name, offer.Amount())
			}
			best := slices.MinFunc(free, func(a, b choice) int {
				had := func(c choice) int64 {
					if c.had {
						return 0
					}
					return 1
				}
				far := func(c choice) int64 {
					if isNear(*c.Device, p.nearTo(at)) {
						return 0
					}
					return 1
				}
				return cmp.Or(cmp.Compare(a.mine, b.mine), cmp.Compare(had(a), had(b)), cmp.Compare(far(a), far(b)),
					cmp.Compare(a.holders, b.holders), cmp.Compare(a.past, b.past), strings.Compare(a.ID, b.ID))
			})
			for i := range choices {
				if choices[i].Device == best.Device {
					if choices[i].mine++; choices[i].mine == 1 {
						devices = append(devices, *best.Device)
					}
				}
			}
		}
	}
	if len(want) > 0 {
		return nil, fmt.Sprintf("%s: not found on this device; is it unplugged?", slices.Min(slices.Collect(maps.Keys(want))))
	}
	return devices, ""
}

// startingRuns are the runs in progress and the runs of this pass.
func (p *pass) startingRuns() []Step {
	out := make([]Step, 0, 4)
	for _, b := range p.o.Busy {
		if b.Step.Action == Run {
			out = append(out, b.Step)
		}
	}
	for _, s := range p.steps {
		if s.Action == Run {
			out = append(out, s)
		}
	}
	return out
}

// current returns the present state of a device, or false if it is unplugged.
func (f Facts) current(d hardware.Device) (hardware.Device, bool) {
	for _, offer := range f.Offers {
		if i := slices.IndexFunc(offer.Devices, d.Same); i >= 0 {
			return offer.Devices[i], true
		}
	}
	return d, false
}

// movedDevice returns a message if a device of a running container has a new device node.
func (p *pass) movedDevice(in Instance) string {
	for _, d := range DevicesOf(in) {
		if now, ok := p.o.Node.current(d); ok && !slices.Equal(now.Nodes, d.Nodes) {
			return fmt.Sprintf("%s is %s now and no longer %s", d.ID, strings.Join(now.Nodes, " "), strings.Join(d.Nodes, " "))
		}
	}
	return ""
}

// unplugged names the missing devices of a pod.
func unplugged(pod *corev1.Pod, o *Observed) (missing []string) {
	for _, in := range o.Containers {
		if in.Place.Pod != pod.UID || !IsRunning(in) {
			continue
		}
		for _, d := range DevicesOf(in) {
			if _, ok := o.Node.current(d); !ok {
				missing = append(missing, fmt.Sprintf("%s/%s (%s) of container %s", fleet.Group, d.Resource, d.ID,
					in.Place.Container))
			}
		}
	}
	return missing
}

// devicesCondition says whether the devices of a pod are plugged in. It returns false if the pod
// requests no devices.
func devicesCondition(pod *corev1.Pod, o *Observed) (corev1.PodCondition, bool) {
	c := corev1.PodCondition{Type: fleet.ConditionDevicesPresent, Status: corev1.ConditionTrue, Reason: "Present"}
	requests := func(w podspec.Container) bool { return len(requestedDevices(w.Spec)) > 0 }
	if !slices.ContainsFunc(podspec.Containers(pod), requests) ||
		o.Node.Allocatable == nil {
		return c, false
	}
	if missing := unplugged(pod, o); len(missing) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "Unplugged",
			strings.Join(missing, ", ")+" is unplugged: plug it in again"
	}
	return c, true
}

// needsHostNetwork returns a message if a container requests a network interface without the host's
// network.
func needsHostNetwork(pod *corev1.Pod, node Facts) string {
	for _, w := range podspec.Containers(pod) {
		for name := range requestedDevices(w.Spec) {
			for _, offer := range node.Offers {
				if offer.Name == name && !pod.Spec.HostNetwork && slices.ContainsFunc(offer.Devices,
					func(d hardware.Device) bool { return len(d.Nodes) == 0 && !d.Plain }) {
					return fmt.Sprintf("container %s requests %s, which is a network interface of the device: set hostNetwork: true",
						w.Spec.Name, name)
				}
			}
		}
	}
	return ""
}
