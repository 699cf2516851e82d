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
	// DrainAnnotation asks for a node to be drained: "true", or JSON with the options
	// of kubectl drain. It goes when the drain has ended; taking it away stops it.
	DrainAnnotation = "flotilla.dev/drain"
	// DrainStatusAnnotation is how far the hub is, or how it ended: a DrainStatus. It
	// goes when the node is uncordoned.
	DrainStatusAnnotation = "flotilla.dev/drain-status"
)

const (
	// DrainTimeout is after what time a drain is given up unless its order says so.
	DrainTimeout = 15 * time.Minute
	// MaxDrainTimeout is the longest that an order may say.
	MaxDrainTimeout = 24 * time.Hour
	// MaxDrainHeld is how many pods of a node a status names.
	MaxDrainHeld = 20

	maxDrainBytes = 4 << 10
)

// A DrainOrder says how a node is to be drained, in the words of kubectl drain.
type DrainOrder struct {
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty"` // nil: each pod's own
	Timeout            string `json:"timeout,omitempty"`            // "": DrainTimeout
	IgnoreDaemonSets   *bool  `json:"ignoreDaemonSets,omitempty"`   // nil: true, they stay
	DeleteEmptyDirData bool   `json:"deleteEmptyDirData,omitempty"` // pods whose data would be lost leave, too
	Force              bool   `json:"force,omitempty"`              // pods that nobody makes again leave, too
	DisableEviction    bool   `json:"disableEviction,omitempty"`    // disruption budgets do not count
	By                 string `json:"by,omitempty"`                 // who asked; the API fills it in
}

// ParseDrainOrder reads the annotation. What cannot be meant is refused whole.
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
			err = errors.New("something follows the JSON")
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

// String is the annotation that says the same.
func (o DrainOrder) String() string {
	raw, _ := json.Marshal(o) // nothing of it can fail
	return string(raw)
}

// Limit is after what time the drain is given up.
func (o DrainOrder) Limit() time.Duration {
	if t, err := time.ParseDuration(o.Timeout); err == nil {
		return t
	}
	return DrainTimeout
}

// DaemonPodsStay tells whether the pods of daemon sets, which would come back at
// once, are left alone.
func (o DrainOrder) DaemonPodsStay() bool { return o.IgnoreDaemonSets == nil || *o.IgnoreDaemonSets }

// A DrainState is where a drain is.
type DrainState string

// Draining goes on; all others are how it ended.
const (
	Draining      DrainState = "Draining"
	Drained       DrainState = "Drained"      // every pod that had to leave has left
	DrainBlocked  DrainState = "PodsStay"     // the rest does not leave for what the order says
	DrainTimedOut DrainState = "TimedOut"     // given up
	DrainStopped  DrainState = "Stopped"      // somebody took the order back
	DrainInvalid  DrainState = "InvalidOrder" // which says nothing that can be done
)

// A DrainStatus is how far a drain is.
type DrainStatus struct {
	State DrainState  `json:"state"`
	By    string      `json:"by,omitempty"`
	Began time.Time   `json:"began"`
	Until time.Time   `json:"until"`          // then it is given up
	Ended time.Time   `json:"ended,omitzero"` // zero: it goes on
	Pods  int         `json:"pods"`           // that had to leave
	Left  int         `json:"left"`           // of them still there
	Held  []DrainHeld `json:"held,omitempty"` // the first of them that do not leave
	Why   string      `json:"why,omitempty"`  // of its end
}

// A DrainHeld is a pod that does not leave, and why.
type DrainHeld struct {
	Pod   string `json:"pod"` // namespace/name
	Why   string `json:"why"`
	Stays bool   `json:"stays,omitempty"` // it never will: the order does not cover it
}

// DrainStatusOf returns what a node says of its drain, nil if nothing that can be read.
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

// String is the annotation that says the same.
func (st DrainStatus) String() string {
	raw, _ := json.Marshal(st) // nothing of it can fail
	return string(raw)
}

// Going tells whether the drain goes on.
func (st *DrainStatus) Going() bool { return st != nil && st.Ended.IsZero() }

// HasDrainAnnotation tells whether a node carries anything of a drain.
func HasDrainAnnotation(n *corev1.Node) bool {
	if n == nil {
		return false
	}
	_, order := n.Annotations[DrainAnnotation]
	_, status := n.Annotations[DrainStatusAnnotation]
	return order || status
}

// NodesWithDrain walks the nodes that carry anything of a drain.
func (s Snapshot) NodesWithDrain() iter.Seq[*corev1.Node] { return s.indexedNodes(s.drains, "") }

// HasData tells whether a pod has data that is lost with it: an emptyDir.
func HasData(p *corev1.Pod) bool {
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir != nil {
			return true
		}
	}
	return false
}
