package diagnose

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/fleet"
)

// The causes that are not conditions of a node. A condition's cause has the name of the condition,
// or the name in the table. Each cause is also a reason in the API and an entry in the manual's
// page of incidents.
const (
	FleetDark       fleet.IncidentCause = "FleetDark"
	FleetMostlyDark fleet.IncidentCause = "FleetMostlyDark"
	HubDiskFull     fleet.IncidentCause = "HubDiskFull"
	SiteDark        fleet.IncidentCause = "SiteDark"

	NodeDark          fleet.IncidentCause = "NodeDark"
	NodeNotReady      fleet.IncidentCause = "NodeNotReady"
	NodeNeverReported fleet.IncidentCause = "NodeNeverReported"
	NodeGone          fleet.IncidentCause = "NodeGone"

	CrashLoop       fleet.IncidentCause = "CrashLoop"
	CannotStart     fleet.IncidentCause = "CannotStart"
	ImageNotPulled  fleet.IncidentCause = "ImageNotPulled"
	ContainerExited fleet.IncidentCause = "ContainerExited"
	PodFailed       fleet.IncidentCause = "PodFailed"
	PodReplaced     fleet.IncidentCause = "PodReplaced"
	NotStarting     fleet.IncidentCause = "NotStarting"
	PodNotReady     fleet.IncidentCause = "PodNotReady"
	CannotBePlaced  fleet.IncidentCause = "CannotBePlaced"
	PodGated        fleet.IncidentCause = "PodGated"
	DoesNotStop     fleet.IncidentCause = "DoesNotStop"

	CannotMakePods         fleet.IncidentCause = "CannotMakePods"
	JobFailed              fleet.IncidentCause = "JobFailed"
	FirmwareRolloutStopped fleet.IncidentCause = "FirmwareRolloutStopped"
	AgentRolloutStopped    fleet.IncidentCause = "AgentRolloutStopped"
)

// A Family is a set of causes that replace each other in one incident: NodeDark becomes SiteDark
// when the last node of a site fails.
type Family string

// The families. A condition of a node is its own family.
const (
	FamilyFleet Family = "fleet"
	FamilyDisk  Family = "disk"
	FamilyDark  Family = "dark"
	FamilyNever Family = "never"
	FamilyRun   Family = "run"
	FamilyPlace Family = "place"
	FamilyGate  Family = "gate"
	FamilyStop  Family = "stop"
	FamilyMake  Family = "make"
	FamilyImage Family = "image"
	FamilyBoot  Family = "boot"
	FamilyFlaps Family = fleet.ConditionFlapping
	familyGone  Family = "gone"
)

// A Rule has all facts about a cause.
type Rule struct {
	Severity fleet.IncidentSeverity
	Family   Family
	Rank     int           // the lowest rank of a family is shown
	Settle   time.Duration // how long the cause must be absent before the incident closes
	// Alone means that the cause is only shown at the pod and opens no incident, because the
	// problem is over or the hub solves it soon.
	Alone bool

	Card string               // what has happened; %s is the object
	Many string               // Card for several objects, if different; %s is such as "13 nodes of 4 sites"
	Row  func(Finding) string // Card in short, for one pod or node
	Fix  string               // what helps
	Raw  bool                 // the detail is a technical message, which is not part of the sentence
	// Brief means that the detail has advice after a colon. Fix has the same advice, so the
	// sentence ends before it.
	Brief bool

	Condition corev1.NodeConditionType // the node's condition; "": none
	follows   corev1.NodeConditionType // there is no finding while this condition is bad too
}

// crashReset is how long a container must run before a crash counts as a new one, as in Kubernetes'
// back-off.
const crashReset = 10 * time.Minute

// rules holds the causes. HubDiskFull has a settle time because the hub may still store something
// small on a full disk. ImageNotPulled has one because an image's nodes may be away for that long.
var rules = map[fleet.IncidentCause]*Rule{
	FleetDark: {
		Severity: fleet.SeverityCritical, Family: FamilyFleet,
		Card: "Every site is dark: the hub itself is more likely cut off than all of them at once",
		Row:  words("every site is dark"), Fix: "Look at the hub's own network.",
	},
	FleetMostlyDark: {
		Severity: fleet.SeverityCritical, Family: FamilyFleet, Rank: 1,
		Card: "Most of the fleet fell silent at once",
		Row:  words("most of the fleet is dark"), Fix: "Look at the hub's own network first.",
	},
	HubDiskFull: {
		Severity: fleet.SeverityCritical, Family: FamilyDisk, Settle: time.Minute,
		Card: "The hub's disk is full: nothing new is stored until there is space",
		Row:  words("the hub's disk is full"), Fix: "Make room on the hub's disk, or delete objects.",
	},
	SiteDark: {
		Severity: fleet.SeverityCritical, Family: FamilyDark,
		Card: "%s is dark: no node of the site answers", Many: "%s are dark: none of their nodes answers",
		Row: words("its site is dark"), Fix: "Look at the site's line and its power.",
	},
	NodeDark: {
		Severity: fleet.SeverityCritical, Family: FamilyDark, Rank: 1,
		Card: "%s does not answer", Many: "%s do not answer",
		Row: ofNode("does not answer"), Fix: "Look at the device's power and its line.",
	},
	NodeNotReady: {
		Severity: fleet.SeverityCritical, Family: FamilyDark, Rank: 2,
		Card: "%s is not ready", Many: "%s are not ready",
		Row: ofNode("is not ready"), Fix: "The device says why: look at its condition Ready.",
	},
	NodeNeverReported: {
		Severity: fleet.SeverityInfo, Family: FamilyNever,
		Card: "%s has never reported", Many: "%s have never reported",
		Row: ofNode("has never reported"), Fix: "Join the device, or delete the Node.",
	},
	NodeGone: {
		Severity: fleet.SeverityInfo, Family: familyGone, Alone: true,
		Card: "%s does not exist",
		Row:  ofNode("does not exist"), Fix: "Nothing: its workload makes another pod.",
	},

	CrashLoop: {
		Severity: fleet.SeverityCritical, Family: FamilyRun, Settle: crashReset,
		Card: "%s crashes again and again", Many: "%s crash again and again",
		Row: func(f Finding) string { return joined("crash loop", f.End.short()) }, Fix: "Read the logs of its containers.",
	},
	CannotStart: {
		Severity: fleet.SeverityCritical, Family: FamilyRun, Rank: 1,
		Card: "%s cannot start",
		Row:  func(f Finding) string { return f.Reason }, Fix: "Fix what the reason names in the pod's template.",
	},
	ContainerExited: {
		Severity: fleet.SeverityWarning, Family: FamilyRun, Rank: 2,
		Card: "%s has a container that has failed and is not started again",
		Many: "%s have a container that has failed and is not started again",
		Row: func(f Finding) string {
			return f.End.short()
		}, Fix: "Read the container's log. Its restart policy is Never: create the pod anew.",
	},
	PodFailed: {
		Severity: fleet.SeverityWarning, Family: FamilyRun, Rank: 3,
		Card: "%s has failed", Many: "%s have failed",
		Row: failed, Fix: "Fix what the reason names, and create the pod anew: nothing replaces it.",
	},
	PodReplaced: {
		Severity: fleet.SeverityInfo, Family: FamilyRun, Rank: 9, Alone: true,
		Card: "%s has failed, and its workload makes another",
		Row:  failed, Fix: "Nothing, except what the reason names.",
	},
	NotStarting: {
		Severity: fleet.SeverityWarning, Family: FamilyRun, Rank: 4,
		Card: "%s does not start", Many: "%s do not start",
		Row: func(f Finding) string { return "has not started on " + f.Node }, Fix: "Look at the pod's events.",
	},
	PodNotReady: {
		Severity: fleet.SeverityWarning, Family: FamilyRun, Rank: 5,
		Card: "%s runs but is not ready", Many: "%s run but are not ready",
		Row: words("runs, but is not ready"), Fix: "Look at the readiness probes.",
	},
	ImageNotPulled: {
		Severity: fleet.SeverityCritical, Family: FamilyImage, Settle: Restarting, Raw: true,
		Card: "Image %s cannot be pulled", Many: "%s cannot be pulled",
		Row: func(f Finding) string {
			return f.Reason
		}, Fix: "Check the image's name, the registry, and the pod's imagePullSecrets.",
	},
	CannotBePlaced: {
		Severity: fleet.SeverityWarning, Family: FamilyPlace, Raw: true,
		Card: "%s cannot be placed",
		Row:  words("cannot be placed"), Fix: "The pod's page says which nodes come nearest, and what each would take.",
	},
	PodGated: {
		Severity: fleet.SeverityInfo, Family: FamilyGate,
		Card: "%s is held by scheduling gates", Many: "%s are held by scheduling gates",
		Row: func(f Finding) string {
			return "held by the scheduling gate " + f.Message
		}, Fix: "Remove them, or ask the controller that has set them.",
	},
	DoesNotStop: {
		Severity: fleet.SeverityWarning, Family: FamilyStop,
		Card: "%s does not stop", Many: "%s do not stop",
		Row: func(f Finding) string {
			return "does not stop on " + f.Node
		}, Fix: "Look at the device: it may be silent, or its engine may hang.",
	},

	CannotMakePods: {
		Severity: fleet.SeverityWarning, Family: FamilyMake,
		Card: "%s cannot make its pods", Many: "%s cannot make their pods",
		Row: words("cannot make its pods"), Fix: "Fix what the message names: a quota, or the template.",
	},
	JobFailed: {
		Severity: fleet.SeverityWarning, Family: FamilyMake, Rank: 1,
		Card: "%s has failed", Many: "%s have failed",
		Row: words("has failed"), Fix: "Read the logs of its pods.",
	},
	FirmwareRolloutStopped: {
		Severity: fleet.SeverityWarning, Family: FamilyBoot,
		Card: "Rollout %s of a boot configuration has stopped", Many: "%s of boot configurations have stopped",
		Row: words("has stopped"), Fix: "Its page says which boards and why. Fix the profile, try again, or undo it.",
	},

	AgentRolloutStopped: {
		Severity: fleet.SeverityWarning, Family: FamilyBoot, Rank: 1,
		Card: "Rollout %s of an agent has stopped", Many: "%s of agents have stopped",
		Row: words("has stopped"), Fix: "Its page says which devices and why. Roll out another version, try again, or undo it.",
	},

	"MemoryPressure": ofNodes(corev1.NodeMemoryPressure, "Too little memory on %s",
		"Move pods away, or lower what they use.").raw(),
	"DiskPressure": ofNodes(corev1.NodeDiskPressure, "Too little disk space on %s",
		"Make room on the device's disk.").raw(),
	"PIDPressure": ofNodes(corev1.NodePIDPressure, "Too many processes on %s",
		"Find the pod that starts them.").raw(),
	"NetworkUnavailable": ofNodes(corev1.NodeNetworkUnavailable, "No pod network on %s", "Look at the device's engine."),
	"Flapping": ofNodes(fleet.ConditionFlapping, "The link comes and goes on %s",
		"Look at the device's line and its power."),
	"OutOfDisk": ofNodes(fleet.ConditionOutOfDisk, "No disk space for another pod on %s",
		"Make room on the device's disk.").raw().after(corev1.NodeDiskPressure),
	"StateNotStored": ofNodes(fleet.ConditionStateStored, "The device's state cannot be stored on %s",
		"Make room on the device's disk, or replace it.").critical().after(corev1.NodeDiskPressure),
	"StorageUnhealthy": ofNodes(fleet.ConditionStorageHealthy, "A disk fails on %s", "Replace the disk.").critical(),
	"PowerTooLow": ofNodes(fleet.ConditionPowerOK, "Too little power or cooling on %s",
		"Use a stronger power supply or a shorter cable, and check the cooling.").brief(),
	"TooHot": ofNodes(fleet.ConditionTemperatureOK, "The processor is too hot on %s",
		"Cool the device, or move pods away.").raw(),
	"PeripheralsMissing": ofNodes(fleet.ConditionPeripheralsPresent,
		"Something that should be connected is missing on %s", "Plug it in, or change the board profile."),
	"NoPodCIDR": ofNodes(fleet.ConditionPodCIDRAvailable, "No addresses for pods on %s",
		"Give the hub a larger range for pods."),
	"IdentityConflict": ofNodes(fleet.ConditionIdentityConflict, "A second device has the name of %s",
		"Join one of the two devices by another name.").critical(),
}

// ofNodes returns the rule of a condition of nodes.
func ofNodes(c corev1.NodeConditionType, card, fix string) *Rule {
	return &Rule{Severity: fleet.SeverityWarning, Family: Family(c), Card: card, Row: func(f Finding) string {
		return f.Node + ": " + string(c)
	}, Fix: fix, Condition: c}
}

func (r *Rule) raw() *Rule {
	r.Raw = true
	return r
}

func (r *Rule) brief() *Rule {
	r.Brief = true
	return r
}

func (r *Rule) critical() *Rule {
	r.Severity = fleet.SeverityCritical
	return r
}

func (r *Rule) after(c corev1.NodeConditionType) *Rule {
	r.follows = c
	return r
}

// RuleOf returns the rule of a cause, an empty one for an unknown cause.
func RuleOf(c fleet.IncidentCause) *Rule {
	if r := rules[c]; r != nil {
		return r
	}
	return &Rule{}
}

// Causes returns all causes.
func Causes() []fleet.IncidentCause { return slices.Sorted(maps.Keys(rules)) }

// byCondition maps conditions to their causes.
var byCondition = func() map[corev1.NodeConditionType]fleet.IncidentCause {
	m := map[corev1.NodeConditionType]fleet.IncidentCause{}
	for cause, r := range rules {
		if r.Condition != "" {
			m[r.Condition] = cause
		}
	}
	return m
}()

func causeOfCondition(t corev1.NodeConditionType) fleet.IncidentCause { return byCondition[t] }
