package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// DrainAnnotation requests the drain of a node: "true", or JSON with the options of kubectl
	// drain. The hub removes it at the end of the drain. A user who removes it stops the drain.
	DrainAnnotation = "flotilla.dev/drain"
	// DrainStatusAnnotation holds a DrainStatus: the drain's progress or result. It is removed when
	// the node is uncordoned.
	DrainStatusAnnotation = "flotilla.dev/drain-status"
)

const (
	// DrainTimeout is the default time after which the hub gives up a drain.
	DrainTimeout = 15 * time.Minute
	// MaxDrainTimeout is the longest timeout that an order may set.
	MaxDrainTimeout = 24 * time.Hour
	// MaxDrainHeld limits how many of a node's remaining pods a status names.
	MaxDrainHeld = 20

	maxDrainBytes = 4 << 10
)

// A DrainOrder says how to drain a node, with the options of kubectl drain.
type DrainOrder struct {
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"` // nil: each pod's own grace period
	Timeout            string `json:"timeout,omitempty"`            // "": DrainTimeout
	IgnoreDaemonSets   *bool  `json:"ignoreDaemonSets,omitempty"`   // nil: true; the pods of daemon sets stay
	DeleteEmptyDirData bool   `json:"deleteEmptyDirData,omitempty"` // also evict pods with an emptyDir, whose data is lost
	Force              bool   `json:"force,omitempty"`              // also evict pods without a controller
	DisableEviction    bool   `json:"disableEviction,omitempty"`    // ignore disruption budgets
	By                 string `json:"by,omitempty"`                 // the requesting user; the API sets it
}

// ParseDrainOrder parses the annotation. Any invalid field makes the whole order invalid.
func ParseDrainOrder(text string) (o DrainOrder, err error) {
	if text == "true" {
		return o, nil
	}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if len(text) > maxDrainBytes {
		err = fmt.Errorf("it has more than %d bytes", maxDrainBytes)
	} else if err = d.Decode(&o); err == nil {
		if _, more := d.Token(); more != io.EOF {
			err = errors.New("unexpected text after the JSON")
		} else if o.GracePeriodSeconds != nil && *o.GracePeriodSeconds < 0 {
			err = errors.New("gracePeriodSeconds is below 0: leave it out for each pod's own")
		} else if o.Timeout != "" {
			var t time.Duration
			if t, err = time.ParseDuration(o.Timeout); err == nil && (t <= 0 || t > MaxDrainTimeout) {
				err = fmt.Errorf("timeout is %s, but must be more than 0s and at most %s", o.Timeout, MaxDrainTimeout)
			}
		}
	}
	if err != nil {
		return DrainOrder{}, fmt.Errorf(`write "true", or JSON such as {"timeout":"15m","force":true}: %w`, err)
	}
	return o, nil
}

// String returns the order in the form of the annotation.
func (o DrainOrder) String() string {
	raw, _ := json.Marshal(o) // cannot fail
	return string(raw)
}

// Limit returns the time after which the hub gives up the drain.
func (o DrainOrder) Limit() time.Duration {
	if t, err := time.ParseDuration(o.Timeout); err == nil {
		return t
	}
	return DrainTimeout
}

// DaemonPodsStay tells whether pods of daemon sets stay; after an eviction they would be recreated
// at once.
func (o DrainOrder) DaemonPodsStay() bool { return o.IgnoreDaemonSets == nil || *o.IgnoreDaemonSets }

// A DrainState is the state of a drain.
type DrainState string

// The states of a drain. All but Draining are results.
const (
	Draining      DrainState = "Draining"
	Drained       DrainState = "Drained"      // every pod that had to leave has left
	DrainBlocked  DrainState = "PodsStay"     // the order does not cover the remaining pods
	DrainTimedOut DrainState = "TimedOut"     // the timeout passed
	DrainStopped  DrainState = "Stopped"      // a user removed the order
	DrainInvalid  DrainState = "InvalidOrder" // the annotation cannot be parsed
)

// A DrainStatus is the progress of a drain.
type DrainStatus struct {
	State DrainState  `json:"state"`
	By    string      `json:"by,omitempty"`
	Began time.Time   `json:"began"`
	Until time.Time   `json:"until"`          // the moment of the timeout
	Ended time.Time   `json:"ended,omitzero"` // zero: the drain is running
	Pods  int         `json:"pods"`           // number of pods that had to leave
	Left  int         `json:"left"`           // how many of these pods remain
	Held  []DrainHeld `json:"held,omitempty"` // the first pods that cannot leave
	Why   string      `json:"why,omitempty"`  // why the drain ended
}

// A DrainHeld is a pod that cannot leave, and why.
type DrainHeld struct {
	Pod   string `json:"pod"` // namespace/name
	Why   string `json:"why"`
	Stays bool   `json:"stays,omitempty"` // the order does not cover the pod, so it never leaves
}

// DrainStatusOf returns the drain status of a node, nil if it is missing or invalid.
func DrainStatusOf(n *corev1.Node) *DrainStatus {
	text, ok := n.Annotations[DrainStatusAnnotation]
	if !ok || len(text) > 64<<10 {
		return nil
	}
	var st DrainStatus
	if json.Unmarshal([]byte(text), &st) != nil || st.State == "" {
		return nil
	}
	return &st
}

// String returns the status in the form of the annotation.
func (st DrainStatus) String() string {
	raw, _ := json.Marshal(st) // cannot fail
	return string(raw)
}

// Going tells whether the drain is running.
func (st *DrainStatus) Going() bool { return st != nil && st.Ended.IsZero() }

// HasDrainAnnotation tells whether a node has a drain order or status.
func HasDrainAnnotation(n *corev1.Node) bool {
	if n == nil {
		return false
	}
	_, order := n.Annotations[DrainAnnotation]
	_, status := n.Annotations[DrainStatusAnnotation]
	return order || status
}

// NodesWithDrain walks the nodes that have a drain order or status.
func (s Snapshot) NodesWithDrain() iter.Seq[*corev1.Node] { return s.indexedNodes(s.drains, "") }

// HasData tells whether a pod has an emptyDir, whose data is lost with the pod.
func HasData(p *corev1.Pod) bool {
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir != nil {
			return true
		}
	}
	return false
}
