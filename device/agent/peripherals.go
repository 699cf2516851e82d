package agent

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

// How often the peripherals of the board profile are looked for, beside when the agent starts, the profile changes, or
// something is plugged in or out.
const (
	peripheralsTime = 10 * time.Minute
	missingTime     = time.Minute // while one is missing
)

// peripherals is what is known of them.
type peripherals struct {
	of      []fleet.Peripheral // as they were asked for
	beside  []hardware.Device  // what was plugged in then
	at      time.Time          // next
	looking bool
	known   []hardware.Presence // of of; nil: nothing yet
}

// connected are what pods can have of them.
func (p *peripherals) connected() (list []hardware.Device) {
	for _, x := range p.known {
		if x.Missing == "" && x.Device.ID != "" {
			list = append(list, x.Device)
		}
	}
	return list
}

// lookForPeripherals looks for them when it is time to.
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
	changed := !reflect.DeepEqual(p.of, want) || !reflect.DeepEqual(p.beside, l.report.Devices)
	if p.looking || !l.seen || !changed && now.Before(p.at) { // before containers are known one may have the bus
		return now.Add(missingTime)
	}
	if !reflect.DeepEqual(p.of, want) {
		p.known = nil
	}
	p.of, p.beside, p.looking, p.at = want, l.report.Devices, true, now.Add(peripheralsTime)
	var held []string
	for _, in := range l.o.Containers {
		if in.State == engine.Running || in.State == engine.Paused {
			for _, d := range plan.DevicesOf(in) {
				held = append(held, d.Nodes...)
			}
		}
	}
	a.async(askTimeout, func(ctx context.Context) func() {
		found := a.c.Connected(ctx, want, held)
		return func() {
			p.looking = false
			if !reflect.DeepEqual(p.of, want) {
				return
			}
			found = takeOver(p.known, found)
			if slices.ContainsFunc(found, func(x hardware.Presence) bool { return x.Missing != "" }) {
				p.at = time.Now().Add(missingTime)
			}
			a.tellPeripherals(p.known, found)
			p.known = found
		}
	})
	return p.at
}

// takeOver keeps what was known of what could not be asked now. Of what was never asked the container that has its bus
// is believed.
func takeOver(before, now []hardware.Presence) []hardware.Presence {
	for i := range now {
		if now[i].Unasked && i < len(before) {
			now[i].Missing, now[i].Device = before[i].Missing, before[i].Device
		}
	}
	return now
}

// tellPeripherals tells what is missing, and what is there again.
func (a *Agent) tellPeripherals(before, now []hardware.Presence) {
	for i, x := range now {
		was := ""
		if i < len(before) {
			was = before[i].Missing
		}
		switch {
		case x.Missing != "" && was == "":
			a.event(corev1.EventTypeWarning, "PeripheralMissing", nil, "", "%s is missing: %s", x.Name, x.Missing)
		case x.Missing == "" && was != "":
			a.event(corev1.EventTypeNormal, "PeripheralPresent", nil, "", "%s is there again", x.Name)
		}
		if (x.Missing == "") != (was == "") {
			a.loop.o.HasCome()
		}
	}
}

// condition says whether all of them are there; false where the profile names none.
func (p *peripherals) condition() (c corev1.NodeCondition, ok bool) {
	c = corev1.NodeCondition{Type: fleet.ConditionPeripheralsPresent, Status: corev1.ConditionTrue, Reason: "PeripheralsPresent", Message: "what the board profile says is connected is there"}
	if p.known == nil {
		c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NotAsked", "nobody has looked for the peripherals yet"
		return c, len(p.of) > 0
	}
	var missing []string
	for _, x := range p.known {
		if x.Missing != "" {
			missing = append(missing, x.Name+": "+x.Missing)
		}
	}
	if len(missing) > 0 {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "PeripheralMissing", bound.Text(strings.Join(missing, "; "), 1000)
	}
	return c, true
}
