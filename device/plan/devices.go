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

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
)

// LabelDevices is the label that says which devices a container has been given, in JSON. It is the
// only record of it: who has a device is what runs with it, whatever the agent or the engine has
// been through.
const LabelDevices = "flotilla.dev/devices"

// asked is how many of each device's resource a container asks for.
func asked(c *corev1.Container) map[corev1.ResourceName]int64 {
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

// DevicesOf is which devices an instance has been given.
func DevicesOf(in Instance) (list []hardware.Device) {
	if json.Unmarshal([]byte(in.Labels[LabelDevices]), &list) != nil {
		return nil
	}
	return list
}

// assign chooses the devices of a container that is to be started, or says what there is too little
// of. As many pods are admitted as there are devices, so one that nobody has is there, unless it
// was unplugged since. It prefers those that the container had, then those that fewest have had. A
// device node that a running container has is in use, though the kernel has given it to another
// device since: the container can open that one now.
func (p *pass) assign(at Place, c *corev1.Container) (devices []hardware.Device, lacks string) {
	want := asked(c)
	for _, offer := range p.o.Node.Offers {
		n := want[offer.Name]
		delete(want, offer.Name)
		if n == 0 {
			continue
		}
		type choice struct {
			*hardware.Device
			mine, holders, past int64 // times this container has it now; others that have it; others that have had it
			had                 bool
		}
		choices := make([]choice, len(offer.Devices))
		for i, d := range offer.Devices {
			c := &choices[i]
			c.Device = &d
			hold := func(devices []hardware.Device) {
				same := false
				for _, e := range devices {
					if same = same || d.Same(e); d.SharesNode(e) { // all of this device is taken
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
				case !own && (in.State == engine.Running || in.State == engine.Paused):
					hold(devices)
				case !slices.ContainsFunc(devices, d.Same):
				case own:
					c.had = true
				default:
					c.past++
				}
			}
			for _, s := range p.starting() {
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
					"%s: none of the %d is free: plug in what was unplugged, or wait until the container that has it ends",
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
		return nil, fmt.Sprintf("%s: this device has none; is it unplugged?", slices.Min(slices.Collect(maps.Keys(want))))
	}
	return devices, ""
}

// starting are the runs in flight and those that this pass has decided.
func (p *pass) starting() []Step {
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

// now is the device as it is now, false where it is unplugged.
func (f Facts) now(d hardware.Device) (hardware.Device, bool) {
	for _, offer := range f.Offers {
		if i := slices.IndexFunc(offer.Devices, d.Same); i >= 0 {
			return offer.Devices[i], true
		}
	}
	return d, false
}

// moved says of a running container which of its devices has come back elsewhere than where the
// container has it.
func (p *pass) moved(in Instance) string {
	for _, d := range DevicesOf(in) {
		if now, ok := p.o.Node.now(d); ok && !slices.Equal(now.Nodes, d.Nodes) {
			return fmt.Sprintf("%s is %s now and no longer %s", d.ID, strings.Join(now.Nodes, " "), strings.Join(d.Nodes, " "))
		}
	}
	return ""
}

// unplugged names the devices of a pod that are not there.
func unplugged(pod *corev1.Pod, o *Observed) (lost []string) {
	for _, in := range o.Containers {
		if in.Place.Pod != pod.UID || in.State != engine.Running && in.State != engine.Paused {
			continue
		}
		for _, d := range DevicesOf(in) {
			if _, ok := o.Node.now(d); !ok {
				lost = append(lost, fmt.Sprintf("%s/%s (%s) of container %s", fleet.Group, d.Resource, d.ID, in.Place.Container))
			}
		}
	}
	return lost
}

// devicesCondition says whether the devices of a pod are plugged in; false for a pod that asks for
// none.
func devicesCondition(pod *corev1.Pod, o *Observed) (corev1.PodCondition, bool) {
	c := corev1.PodCondition{Type: fleet.ConditionDevicesPresent, Status: corev1.ConditionTrue, Reason: "Present"}
	if !slices.ContainsFunc(podspec.Containers(pod), func(w podspec.Container) bool { return len(asked(w.Spec)) > 0 }) ||
		o.Node.Allocatable == nil {
		return c, false
	}
	if lost := unplugged(pod, o); len(lost) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "Unplugged",
			strings.Join(lost, ", ")+" is unplugged: plug it in again"
	}
	return c, true
}

// needsHostNetwork names the device of a pod that only the host's network has.
func needsHostNetwork(pod *corev1.Pod, node Facts) string {
	for _, w := range podspec.Containers(pod) {
		for name := range asked(w.Spec) {
			for _, offer := range node.Offers {
				if offer.Name == name && !pod.Spec.HostNetwork && slices.ContainsFunc(offer.Devices,
					func(d hardware.Device) bool { return len(d.Nodes) == 0 && !d.Plain }) {
					return fmt.Sprintf("container %s asks for %s, which is a network interface of the device: set hostNetwork: true",
						w.Spec.Name, name)
				}
			}
		}
	}
	return ""
}
