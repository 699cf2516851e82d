package schedule

import "fmt"

// A Reason is why a pod does not fit a node.
type Reason int

// The reasons, in the order of Kubernetes' filters.
const (
	Fits                 Reason = iota // the pod fits
	NodeUnschedulable                  // the node is cordoned
	NodeNotReady                       // the node has the hub's taint for a node that is not ready
	NodePressure                       // the node has another taint that the hub adds and removes
	UntoleratedTaint                   // the node has a user's taint
	NodeAffinity                       // the node lacks a label
	NodeName                           // the pod names other nodes
	NodePorts                          // a port of the device is taken
	TooManyPods                        // the node has its maximum number of pods
	InsufficientResource               // a resource is short
	VolumeInUse                        // a pod on the node has exclusive use of the volume
	VolumeElsewhere                    // the volume is on another node
	NoVolume                           // no node is possible because of a claim
	TopologySpread                     // the node's domain has too many matching pods
	TopologyLabel                      // the node lacks the topology label of a spread constraint
	PodAffinity                        // a required affinity matches no pod in the node's domain
	PodAntiAffinity                    // an anti-affinity matches a pod in the node's domain
	Repelled                           // the anti-affinity of a pod in the node's domain matches the pod
)

const (
	untolerated   = "node(s) had untolerated taint"
	wrongAffinity = "node(s) didn't match Pod's node affinity/selector"
)

// reasons has the name of each reason, Kubernetes' words, the effort to remove it, and whether
// preemption can. A reason that one click removes has the lowest effort. One that needs a device to
// return or another fleet has the highest.
var reasons = [...]struct {
	name, words string
	cost        int
	preemptable bool
}{
	Fits:                 {name: "Fits", preemptable: true},
	NodeUnschedulable:    {"NodeUnschedulable", "node(s) were unschedulable", 2, false},
	NodeNotReady:         {"NodeNotReady", untolerated, 13, false},
	NodePressure:         {"NodePressure", untolerated, 12, false},
	UntoleratedTaint:     {"UntoleratedTaint", untolerated, 3, false},
	NodeAffinity:         {"NodeAffinity", wrongAffinity, 4, false},
	NodeName:             {"NodeName", wrongAffinity, 40, false},
	NodePorts:            {"NodePorts", "node(s) didn't have free ports for the requested pod ports", 6, true},
	TooManyPods:          {"TooManyPods", "Too many pods", 5, true},
	InsufficientResource: {"InsufficientResource", "Insufficient", 5, true},
	VolumeInUse: {"VolumeInUse",
		"node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode", 15, true},
	VolumeElsewhere: {"VolumeElsewhere", "node(s) had volume node affinity conflict", 20, false},
	NoVolume:        {"NoVolume", "", 50, false},
	TopologySpread:  {"TopologySpread", "node(s) didn't match pod topology spread constraints", 7, true},
	TopologyLabel: {"TopologyLabel", "node(s) didn't match pod topology spread constraints (missing required label)", 7,
		false},
	PodAffinity:     {"PodAffinity", "node(s) didn't match pod affinity rules", 9, false},
	PodAntiAffinity: {"PodAntiAffinity", "node(s) didn't match pod anti-affinity rules", 7, true},
	Repelled:        {"Repelled", "node(s) didn't satisfy existing pods anti-affinity rules", 9, true},
}

// String returns the reason's name, "" for an unknown one.
func (r Reason) String() string {
	if r < 0 || int(r) >= len(reasons) {
		return ""
	}
	return reasons[r].name
}

// A refusal is a reason with its object: a resource, a taint with its value, or for NoVolume a
// sentence.
type refusal struct {
	Reason
	object, value string
}

func (r refusal) String() string {
	switch words := reasons[r.Reason].words; r.Reason {
	case NodeNotReady, NodePressure, UntoleratedTaint:
		return fmt.Sprintf("%s {%s: %s}", words, r.object, r.value)
	case InsufficientResource:
		return words + " " + r.object
	case NoVolume:
		return r.object
	default:
		return words
	}
}

func (r Reason) preemptable() bool { return reasons[r].preemptable }
