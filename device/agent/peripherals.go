package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

// Intervals at which the agent looks for the board profile's peripherals. It also looks when it
// starts, when the profile changes, and when a device is plugged in or out.
const (
	peripheralsTime = 10 * time.Minute
	missingTime     = time.Minute // interval while a peripheral is missing
)

// peripherals is the state of the board profile's peripherals.
type peripherals struct {
	wanted  []fleet.Peripheral // the profile's peripherals at the last look
	devices []hardware.Device  // the plugged devices at the last look
	at      time.Time          // time of the next look
	looking bool
	known   []hardware.Presence // the results; nil before the first look
}

// connected are the peripherals that pods can use.
func (p *peripherals) connected() (list []hardware.Device) {
	for _, x := range p.known {
		if x.Missing == "" && x.Device.ID != "" {
			list = append(list, x.Device)
		}
	}
	return list
}

// lookForPeripherals starts a look when it is due.
func (a *Agent) lookForPeripherals(now time.Time) (next time.Time) {
	l := &a.loop
	p := &l.peripherals
	var want []fleet.Peripheral
	if l.desired.Profile != nil {
		want = l.desired.Profile.Spec.Peripherals
	}
	if len(want) == 0 || a.c.Connected == nil || l.report == nil {
		if !p.looking {
			*p = peripherals{}
		}
		return now.Add(peripheralsTime)
	}
	changed := !reflect.DeepEqual(p.wanted, want) || !reflect.DeepEqual(p.devices, l.report.Devices)
	if p.looking || !l.everListed || !changed && now.Before(p.at) { // before the first list, a container may hold the bus
		return now.Add(missingTime)
	}
	if !reflect.DeepEqual(p.wanted, want) {
		p.known = nil
	}
	p.wanted, p.devices, p.looking, p.at = want, l.report.Devices, true, now.Add(peripheralsTime)
	var held []string
	for _, in := range l.o.Containers {
		if plan.IsRunning(in) {
			for _, d := range plan.DevicesOf(in) {
				held = append(held, d.Nodes...)
			}
		}
	}
	a.async(askTimeout, func(ctx context.Context) func() {
		found := a.c.Connected(ctx, want, held)
		return func() {
			p.looking = false
			if !reflect.DeepEqual(p.wanted, want) {
				return
			}
			found = keepUnknown(p.known, found)
			if slices.ContainsFunc(found, func(x hardware.Presence) bool { return x.Missing != "" }) {
				p.at = time.Now().Add(missingTime)
			}
			a.reportPeripherals(p.known, found)
			p.known = found
		}
	})
	return p.at
}

// keepUnknown keeps the earlier result of a peripheral that could not be queried. Without an
// earlier result, the peripheral counts as present if a container holds its bus.
func keepUnknown(before, now []hardware.Presence) []hardware.Presence {
	for i := range now {
		if now[i].Unasked && i < len(before) {
			now[i].Missing, now[i].Device = before[i].Missing, before[i].Device
		}
	}
	return now
}

// reportPeripherals reports peripherals that have gone or come back.
func (a *Agent) reportPeripherals(before, now []hardware.Presence) {
	for i, x := range now {
		was := ""
		if i < len(before) {
			was = before[i].Missing
		}
		switch {
		case x.Missing != "" && was == "":
			a.event(corev1.EventTypeWarning, "PeripheralMissing", nil, "", "%s is missing: %s", x.Name, x.Missing)
		case x.Missing == "" && was != "":
			a.event(corev1.EventTypeNormal, "PeripheralPresent", nil, "", "%s is present again", x.Name)
		}
		if (x.Missing == "") != (was == "") {
			a.loop.o.RetryWaiting()
		}
	}
}

// condition says whether all peripherals are present. ok is false if the profile lists none.
func (p *peripherals) condition() (c corev1.NodeCondition, ok bool) {
	c = corev1.NodeCondition{Type: fleet.ConditionPeripheralsPresent, Status: corev1.ConditionTrue,
		Reason: "PeripheralsPresent", Message: "all peripherals of the board profile are present"}
	if p.known == nil {
		c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NotAsked", "the agent has not checked the peripherals yet"
		return c, len(p.wanted) > 0
	}
	var missing []string
	for _, x := range p.known {
		if x.Missing != "" {
			missing = append(missing, x.Name+": "+x.Missing)
		}
	}
	if len(missing) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "PeripheralMissing",
			bound.Text(strings.Join(missing, "; "), 1000)
	}
	return c, true
}

// addDevices adds a container's devices to its spec, with their present nodes and the groups that
// may open them.
func addDevices(spec *engine.Spec, devices []hardware.Device,
	look func(hardware.Device) (hardware.Device, []hardware.Node, error)) error {
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
			return fmt.Errorf("%s: %s has just moved to %s", fleet.ResourceName(d.Resource), d.ID,
				strings.Join(found.Nodes, " "))
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
		return fmt.Errorf("encode the devices of %s: %w", spec.Name, err)
	}
	spec.Labels[plan.LabelDevices] = string(label)
	return nil
}

// watch updates the hardware report soon after a device is plugged in or out.
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
			a.log.Warn(fmt.Sprintf("watch for plugged devices; changes show only after up to %s", reportTime), "err", err)
		}
	})
}

// reportPlugged reports the devices that were plugged in or out between two reports, and the
// containers that use them.
func (a *Agent) reportPlugged(before, now *hardware.Report) {
	if before == nil {
		return
	}
	minus := func(from, to []hardware.Device) (list []hardware.Device) {
		for _, d := range from {
			if !slices.ContainsFunc(to, d.Same) {
				list = append(list, d)
			}
		}
		return list
	}
	l := &a.loop
	unplugged, plugged := minus(before.Devices, now.Devices), minus(now.Devices, before.Devices)
	for _, d := range unplugged {
		a.event(corev1.EventTypeWarning, "DeviceUnplugged", nil, "", "%s (%s) is unplugged",
			fleet.ResourceName(d.Resource), d.ID)
	}
	for _, d := range plugged {
		a.event(corev1.EventTypeNormal, "DevicePlugged", nil, "", "%s (%s) is plugged in",
			fleet.ResourceName(d.Resource), d.ID)
	}
	for i := range l.desired.Pods {
		pod := &l.desired.Pods[i]
		for _, in := range l.o.Containers {
			if in.Place.Pod != pod.UID || in.State != engine.Running {
				continue
			}
			for _, d := range plan.DevicesOf(in) {
				switch {
				case slices.ContainsFunc(unplugged, d.Same):
					a.event(corev1.EventTypeWarning, "DeviceUnplugged", pod, in.Place.Container,
						"%s (%s), which the container has, is unplugged", fleet.ResourceName(d.Resource), d.ID)
				case slices.ContainsFunc(plugged, d.Same):
					a.event(corev1.EventTypeNormal, "DevicePlugged", pod, in.Place.Container,
						"%s (%s), which the container has, is plugged in again", fleet.ResourceName(d.Resource), d.ID)
				}
			}
		}
	}
	if len(unplugged)+len(plugged) > 0 {
		l.o.RetryWaiting()
	}
}
