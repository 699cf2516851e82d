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

// aHub adapts the link to agent.Hub.
type aHub struct{ *link.Link }

// Stream implements agent.Hub.
func (h aHub) Stream(id string) request.Stream { return h.Link.Stream(id) }

// sink passes the hub's messages to the agent, except renewals of the certificate.
type sink struct {
	*agent.Agent
	renew chan<- struct{} // requests a new certificate
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

// machine implements agent.Hardware for this machine.
type machine struct {
	where  hardware.Options
	periph *hardware.Periph
	asked  bool // Probe was called; the first call does not wait for periph
}

// Probe implements agent.Hardware. The agent makes one call at a time.
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

// connected looks for the peripherals that the board profile lists.
func (m *machine) connected(ctx context.Context, list []fleet.Peripheral, held []string) []hardware.Presence {
	return hardware.Connected(ctx, hardware.Options{Periph: m.periph}, list, held)
}

// Measure implements agent.Hardware.
func (m *machine) Measure(ctx context.Context, engineRoot string) hardware.Stats {
	o := m.where
	o.EngineRoot = engineRoot
	return hardware.Measure(ctx, o)
}
