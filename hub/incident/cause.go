package incident

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// The causes that are no condition of a node. Those that are have the names that the
// table conditions gives them, or the condition's own.
const (
	FleetDark         fleet.IncidentCause = "FleetDark"
	SiteDark          fleet.IncidentCause = "SiteDark"
	NodeDark          fleet.IncidentCause = "NodeDark"
	NodeNotReady      fleet.IncidentCause = "NodeNotReady"
	NodeNeverReported fleet.IncidentCause = "NodeNeverReported"

	CrashLoop      fleet.IncidentCause = "CrashLoop"
	CannotStart    fleet.IncidentCause = "CannotStart"
	NotStarting    fleet.IncidentCause = "NotStarting"
	PodNotReady    fleet.IncidentCause = "PodNotReady"
	PodFailed      fleet.IncidentCause = "PodFailed"
	CannotBePlaced fleet.IncidentCause = "CannotBePlaced"
	DoesNotStop    fleet.IncidentCause = "DoesNotStop"
	CannotMakePods fleet.IncidentCause = "CannotMakePods"
	JobFailed      fleet.IncidentCause = "JobFailed"
	ImageNotPulled fleet.IncidentCause = "ImageNotPulled"

	FirmwareRolloutStopped fleet.IncidentCause = "FirmwareRolloutStopped"

	HubDiskFull fleet.IncidentCause = "HubDiskFull"
)

// Kinds of what an incident is about that the hub keeps no objects of.
const (
	imageKind = "Image"
	fleetKind = "Fleet"
)

// A family is causes that are one incident when one becomes another: the first node of a
// site that goes dark is NodeDark, and SiteDark with the last.
type family string

const (
	familyFleet family = "fleet"
	familyReady family = "dark"
	familyNever family = "never"
	familyRun   family = "run"
	familyPlace family = "place"
	familyStop  family = "stop"
	familyMake  family = "make"
	familyImage family = "image"
	familyBoot  family = "boot"
	familyDisk  family = "disk"
	familyFlaps family = family(fleet.ConditionFlapping)
)

// A rule is what is so of a cause.
type rule struct {
	family   family
	severity fleet.IncidentSeverity
	rank     int           // of causes of one family the lower is told
	settle   time.Duration // how long the cause must be gone before it is over
}

// backedOff is how long a container must run before a crash counts as a new one:
// Kubernetes' own for its back-off.
const backedOff = 10 * time.Minute

var rules = map[fleet.IncidentCause]rule{
	FleetDark:         {family: familyFleet, severity: fleet.SeverityCritical},
	SiteDark:          {family: familyReady, severity: fleet.SeverityCritical},
	NodeDark:          {family: familyReady, severity: fleet.SeverityCritical, rank: 1},
	NodeNotReady:      {family: familyReady, severity: fleet.SeverityCritical, rank: 2},
	NodeNeverReported: {family: familyNever, severity: fleet.SeverityInfo},

	CrashLoop:      {family: familyRun, severity: fleet.SeverityCritical, settle: backedOff},
	CannotStart:    {family: familyRun, severity: fleet.SeverityCritical, rank: 1},
	PodFailed:      {family: familyRun, severity: fleet.SeverityWarning, rank: 2},
	NotStarting:    {family: familyRun, severity: fleet.SeverityWarning, rank: 3},
	PodNotReady:    {family: familyRun, severity: fleet.SeverityWarning, rank: 4},
	CannotBePlaced: {family: familyPlace, severity: fleet.SeverityWarning},
	DoesNotStop:    {family: familyStop, severity: fleet.SeverityWarning},
	CannotMakePods: {family: familyMake, severity: fleet.SeverityWarning},

	// It settles, as a hub whose disk is full may add something small in between.
	HubDiskFull: {family: familyDisk, severity: fleet.SeverityCritical, settle: time.Minute},

	FirmwareRolloutStopped: {family: familyBoot, severity: fleet.SeverityWarning},

	JobFailed:      {family: familyMake, severity: fleet.SeverityWarning, rank: 1},
	ImageNotPulled: {family: familyImage, severity: fleet.SeverityCritical, settle: restarting}, // its nodes may be away for so long
}

// conditions are the causes that conditions of nodes are, and those that follow from
// another on the same node and are no incident of their own then.
var conditions = map[corev1.NodeConditionType]struct {
	cause    fleet.IncidentCause
	severity fleet.IncidentSeverity
	follows  corev1.NodeConditionType
	words    string // before the node's name; "": the cause's own
}{
	corev1.NodeMemoryPressure:         {words: "Too little memory on"},
	corev1.NodeDiskPressure:           {words: "Too little disk space on"},
	corev1.NodePIDPressure:            {words: "Too many processes on"},
	corev1.NodeNetworkUnavailable:     {words: "No pod network on"},
	fleet.ConditionFlapping:           {words: "The link comes and goes on"},
	fleet.ConditionOutOfDisk:          {follows: corev1.NodeDiskPressure, words: "No disk space for another pod on"},
	fleet.ConditionStateStored:        {cause: "StateNotStored", severity: fleet.SeverityCritical, follows: corev1.NodeDiskPressure, words: "What the device must know cannot be written on"},
	fleet.ConditionStorageHealthy:     {cause: "StorageUnhealthy", severity: fleet.SeverityCritical, words: "A disk fails on"},
	fleet.ConditionPowerOK:            {cause: "PowerTooLow", words: "Too little power or cooling on"},
	fleet.ConditionTemperatureOK:      {cause: "TooHot", words: "The processor is too hot on"},
	fleet.ConditionPeripheralsPresent: {cause: "PeripheralsMissing", words: "Something that should be connected is missing on"},
	fleet.ConditionPodCIDRAvailable:   {cause: "NoPodCIDR", words: "No addresses for pods on"},
	fleet.ConditionIdentityConflict:   {severity: fleet.SeverityCritical, words: "A second device has the name of"},
}

// conditionCause is the cause that a condition of a node is.
func conditionCause(t corev1.NodeConditionType) (fleet.IncidentCause, rule) {
	c := conditions[t]
	if c.cause == "" {
		c.cause = fleet.IncidentCause(t)
	}
	if c.severity == "" {
		c.severity = fleet.SeverityWarning
	}
	return c.cause, rule{family: family(t), severity: c.severity}
}

// familyOf returns the family of an incident's cause.
func familyOf(cause fleet.IncidentCause) family {
	if r, ok := rules[cause]; ok {
		return r.family
	}
	for t, c := range conditions {
		if c.cause == cause {
			return family(t)
		}
	}
	return family(cause)
}

// wordsOf returns what a cause is called before the name of what it is on.
func wordsOf(cause fleet.IncidentCause) string {
	for t, c := range conditions {
		if c.words != "" && (c.cause == cause || c.cause == "" && fleet.IncidentCause(t) == cause) {
			return c.words
		}
	}
	return string(cause) + " on"
}

// failing returns the conditions of a node that are causes: those that are bad, but for
// Ready, and for those that follow from another that is bad too.
func failing(n *corev1.Node) (bad []corev1.NodeCondition) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady || !fails(c) {
			continue
		}
		if from := state.NodeCondition(n, conditions[c.Type].follows); conditions[c.Type].follows != "" && from != nil && fails(*from) {
			continue
		}
		bad = append(bad, c)
	}
	return bad
}

func fails(c corev1.NodeCondition) bool {
	switch fleet.MeaningOf(c.Type) {
	case fleet.Trouble:
		return c.Status == corev1.ConditionTrue
	case fleet.Health:
		return c.Status == corev1.ConditionFalse
	}
	return false
}
