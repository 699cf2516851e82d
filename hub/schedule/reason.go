package schedule

import "fmt"

// A Reason is why a node will not do for a pod.
type Reason int

// The reasons, in the order of Kubernetes' filters.
const (
	Fits                 Reason = iota // it will do
	NodeUnschedulable                  // it is cordoned
	NodeNotReady                       // the hub's taint on one that is not ready, or silent
	NodePressure                       // another taint that the hub gives, and takes away by itself
	UntoleratedTaint                   // one that people have given
	NodeAffinity                       // it has not the label
	NodeName                           // the pod is for other nodes, by name
	NodePorts                          // a port of the device is taken
	TooManyPods                        // it has as many pods as it may
	InsufficientResource               // too little is free of something
	VolumeInUse                        // a pod there has the volume for itself alone
	VolumeElsewhere                    // its volume is on another node
	NoVolume                           // of every node alike: a claim is not as it has to be
	TopologySpread                     // its domain has too many of the pod's like
	TopologyLabel                      // it has not the label by which pods are to be spread
	PodAffinity                        // the pods that it must be near are not there
	PodAntiAffinity                    // pods are there that it must be away from
	Repelled                           // pods are there that must be away from it
)

const (
	untolerated   = "node(s) had untolerated taint"
	wrongAffinity = "node(s) didn't match Pod's node affinity/selector"
)

// reasons has of each its name, Kubernetes' words, what it costs to take it away, and whether the
// node would do if lower pods went. What one click mends costs the least; what only a device's
// return or another fleet mends the most.
var reasons = [...]struct {
	name, words string
	cost        int
	curable     bool
}{
	Fits:                 {name: "Fits", curable: true},
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

// String returns the reason's name, "" for one that there is not.
func (r Reason) String() string {
	if r < 0 || int(r) >= len(reasons) {
		return ""
	}
	return reasons[r].name
}

// A refusal is a reason and whose it is: that of a resource, of a taint with a value, or
// (NoVolume) of every node alike, in a sentence.
type refusal struct {
	Reason
	of, value string
}

func (r refusal) String() string {
	switch words := reasons[r.Reason].words; r.Reason {
	case NodeNotReady, NodePressure, UntoleratedTaint:
		return fmt.Sprintf("%s {%s: %s}", words, r.of, r.value)
	case InsufficientResource:
		return words + " " + r.of
	case NoVolume:
		return r.of
	default:
		return words
	}
}

func (r Reason) curable() bool { return reasons[r].curable }
