package schedule

import "fmt"

// A refusal is why a node will not do for a pod.
type refusal int

const (
	nothing refusal = iota // it will
	unschedulable
	untolerated
	wrongAffinity
	wrongPorts
	tooManyPods
	insufficient
	usedOnce
	wrongVolume
	noVolume
	wrongSpread
	unlabeled
	wrongNeighbors
	unwelcome
	repelled
)

// refusals are they in Kubernetes' words.
var refusals = [...]string{
	unschedulable:  "node(s) were unschedulable",
	untolerated:    "node(s) had untolerated taint",
	wrongAffinity:  "node(s) didn't match Pod's node affinity/selector",
	wrongPorts:     "node(s) didn't have free ports for the requested pod ports",
	tooManyPods:    "Too many pods",
	insufficient:   "Insufficient",
	usedOnce:       "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
	wrongVolume:    "node(s) had volume node affinity conflict",
	wrongSpread:    "node(s) didn't match pod topology spread constraints",
	unlabeled:      "node(s) didn't match pod topology spread constraints (missing required label)",
	wrongNeighbors: "node(s) didn't match pod affinity rules",
	unwelcome:      "node(s) didn't match pod anti-affinity rules",
	repelled:       "node(s) didn't satisfy existing pods anti-affinity rules",
}

// A reason is a refusal and whose it is: that of a resource, of a taint with a value, or
// (noVolume) of every node alike, in a sentence.
type reason struct {
	kind      refusal
	of, value string
}

func (r reason) String() string {
	switch r.kind {
	case untolerated:
		return fmt.Sprintf("%s {%s: %s}", refusals[r.kind], r.of, r.value)
	case insufficient:
		return refusals[r.kind] + " " + r.of
	case noVolume:
		return r.of
	}
	return refusals[r.kind]
}

// curable tells whether the node would do if lower pods went.
func (r reason) curable() bool {
	switch r.kind {
	case unschedulable, untolerated, wrongAffinity, wrongVolume, noVolume, unlabeled, wrongNeighbors:
		return false
	}
	return true
}
