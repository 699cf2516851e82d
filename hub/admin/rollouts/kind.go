package rollouts

import (
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A kind is a kind of rollouts on the page.
type kind struct {
	of       state.Kind
	resource string
	path     string
	title    string
	subject  string // the column of what is rolled out
	about    string // the manual's page
	asks     string // what the link to it says
	cause    string // of the incident when one stops
	kept     string // what a finished node has done, and the name of those
	keptName string
	first    string // the step before the first turn
}

var boot = kind{
	of: state.FirmwareRollouts, resource: "firmwarerollouts", path: frame.RolloutsPath, title: "Boot configurations",
	subject: "Profile", about: "firmware", asks: "How a board tries one and goes back", cause: "FirmwareRolloutStopped",
	kept: "kept it", keptName: "Kept it", first: "Each node says what would change",
}

var agents = kind{
	of: state.AgentRollouts, resource: "agentrollouts", path: frame.AgentRolloutsPath, title: "Agents",
	subject: "Version", about: "agents", asks: "How a device tries a version and goes back", cause: "AgentRolloutStopped",
	kept: "run it", keptName: "Run it", first: "Each node downloads and checks it",
}

// href is the page of a rollout.
func (k kind) href(name string) string {
	if k.of == state.AgentRollouts {
		return frame.AgentRolloutHref(name)
	}
	return frame.RolloutHref(name)
}

// subjectOf is what a rollout brings.
func subjectOf(r *fleet.Rollout) string {
	switch o := r.Object.(type) {
	case *fleet.FirmwareRollout:
		return o.Spec.Profile
	case *fleet.AgentRollout:
		return o.Spec.Version
	}
	return ""
}

// List lists the rollouts of boot configurations.
func List(a *frame.Request) (frame.Page, error) { return list(a, boot) }

// Agents lists the rollouts of agents.
func Agents(a *frame.Request) (frame.Page, error) { return list(a, agents) }

// Rollout shows a rollout of a boot configuration.
func Rollout(a *frame.Request) (frame.Page, error) { return show(a, boot) }

// AgentRollout shows a rollout of an agent.
func AgentRollout(a *frame.Request) (frame.Page, error) { return show(a, agents) }
