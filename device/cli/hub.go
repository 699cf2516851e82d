package cli

import (
	"context"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/link"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// aHub is the link as the agent wants it.
type aHub struct{ *link.Link }

// Stream implements agent.Hub.
func (h aHub) Stream(id string) request.Stream { return h.Link.Stream(id) }

// sink hands to the agent what the hub sends, and takes out what is not about workloads.
type sink struct {
	*agent.Agent
	renew chan<- struct{} // ask for a new certificate
}

// Request implements link.Sink.
func (s sink) Request(id string, r wire.Request) {
	if r.Type == wire.RequestRenew && s.renew != nil {
		select {
		case s.renew <- struct{}{}:
		default:
		}
		return
	}
	s.Agent.Request(id, r)
}

// machine is this very machine as the agent wants it.
type machine struct {
	where  hardware.Options
	periph *hardware.Periph
	asked  bool // the first answer does not wait for periph
}

// Probe implements agent.Hardware; the agent calls it one at a time.
func (m *machine) Probe(ctx context.Context, engineRoot string) (hardware.Report, error) {
	o := m.where
	o.EngineRoot = engineRoot
	if m.asked {
		o.Periph = m.periph
	}
	m.asked = true
	return hardware.Probe(ctx, o)
}

// Look implements agent.Hardware.
func (m *machine) Look(d hardware.Device) (hardware.Device, []hardware.Node, error) { return d.Look() }

// connected looks for the peripherals of the board profile.
func (m *machine) connected(ctx context.Context, list []fleet.Peripheral, held []string) []hardware.Presence {
	return hardware.Connected(ctx, hardware.Options{Periph: m.periph}, list, held)
}

// Measure implements agent.Hardware.
func (m *machine) Measure(ctx context.Context, engineRoot string) hardware.Stats {
	o := m.where
	o.EngineRoot = engineRoot
	return hardware.Measure(ctx, o)
}
