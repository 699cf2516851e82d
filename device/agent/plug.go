package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/fleet"
)

// plug puts the devices of a container into its spec, as they are now. Its user gets the groups that may open them.
func plug(spec *engine.Spec, devices []hardware.Device, look func(hardware.Device) (hardware.Device, []hardware.Node, error)) error {
	if len(devices) == 0 {
		return nil
	}
	now := make([]hardware.Device, len(devices))
	for i, d := range devices {
		found, nodes, err := look(d)
		if err != nil {
			return fmt.Errorf("%s: %w", fleet.ResourceName(d.Resource), err)
		}
		if !slices.Equal(found.Nodes, d.Nodes) {
			return fmt.Errorf("%s: %s has moved to %s this moment", fleet.ResourceName(d.Resource), d.ID, strings.Join(found.Nodes, " "))
		}
		now[i] = found
		for _, n := range nodes {
			spec.Devices = append(spec.Devices, engine.Device{Host: n.Host, Path: n.Path})
			if g := strconv.Itoa(n.Group); n.Group != 0 && !slices.Contains(spec.Groups, g) {
				spec.Groups = append(spec.Groups, g)
			}
		}
	}
	label, err := json.Marshal(now)
	if err != nil {
		return fmt.Errorf("write down the devices of %s: %w", spec.Name, err)
	}
	spec.Labels[plan.LabelDevices] = string(label)
	return nil
}

// watch looks at the hardware soon after something is plugged in or out.
func (a *Agent) watch(ctx context.Context) {
	if a.c.Watch == nil {
		return
	}
	a.work.Go(func() {
		err := a.c.Watch(ctx, func() {
			a.post(func() {
				if soon := time.Now().Add(plugTime); a.loop.reportAt.After(soon) {
					a.loop.reportAt = soon
				}
			})
		})
		if err != nil {
			a.log.Warn(fmt.Sprintf("what is plugged in or out is noticed within %s only", reportTime), "err", err)
		}
	})
}

// compare tells what was plugged in or unplugged between two looks at the hardware, and to whom it matters.
func (a *Agent) compare(before, now *hardware.Report) {
	if before == nil {
		return
	}
	gone := func(from, to []hardware.Device) (list []hardware.Device) {
		for _, d := range from {
			if !slices.ContainsFunc(to, d.Same) {
				list = append(list, d)
			}
		}
		return list
	}
	l := &a.loop
	lost, come := gone(before.Devices, now.Devices), gone(now.Devices, before.Devices)
	for _, d := range lost {
		a.event(corev1.EventTypeWarning, "DeviceUnplugged", nil, "", "%s (%s) is gone", fleet.ResourceName(d.Resource), d.ID)
	}
	for _, d := range come {
		a.event(corev1.EventTypeNormal, "DevicePlugged", nil, "", "%s (%s) is there", fleet.ResourceName(d.Resource), d.ID)
	}
	for i := range l.desired.Pods {
		pod := &l.desired.Pods[i]
		for _, in := range l.o.Containers {
			if in.Place.Pod != pod.UID || in.State != engine.Running {
				continue
			}
			for _, d := range plan.DevicesOf(in) {
				switch {
				case slices.ContainsFunc(lost, d.Same):
					a.event(corev1.EventTypeWarning, "DeviceUnplugged", pod, in.Place.Container, "%s (%s), which the container has, is unplugged", fleet.ResourceName(d.Resource), d.ID)
				case slices.ContainsFunc(come, d.Same):
					a.event(corev1.EventTypeNormal, "DevicePlugged", pod, in.Place.Container, "%s (%s), which the container has, is plugged in again", fleet.ResourceName(d.Resource), d.ID)
				}
			}
		}
	}
	if len(lost)+len(come) > 0 {
		l.o.HasCome()
	}
}
