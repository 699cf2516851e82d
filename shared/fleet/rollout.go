package fleet

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A RolloutStrategy says which nodes a rollout selects, and how many of them change at a time.
type RolloutStrategy struct {
	Selector *metav1.LabelSelector `json:"selector"` // selects nodes; an empty selector is refused
	// Condition restricts the rollout to nodes on which this condition, such as MemoryLimits, is
	// not True before their turn begins.
	Condition string `json:"condition,omitempty"`

	// number of nodes in a batch, all on one site; the first batch has one node. Default 5
	BatchSize int32 `json:"batchSize,omitempty"`
	// number of nodes of a site that may be unavailable for any reason; of an AgentRollout, the number
	// that may have their turn. Default 1
	MaxUnavailablePerSite int32 `json:"maxUnavailablePerSite,omitempty"`
	// percentage of finished nodes that must have kept it. Default 100; of an AgentRollout 80
	SuccessThreshold int32 `json:"successThreshold,omitempty"`
	// stop at the first node that goes back. Default true
	PauseOnFailure *bool           `json:"pauseOnFailure,omitempty"`
	Window         *FirmwareWindow `json:"window,omitempty"` // when turns may begin; nil: always
	Canary         string          `json:"canary,omitempty"` // node with the first turn; empty: the first by name
	Paused         bool            `json:"paused,omitempty"` // no further turn begins
	Retry          int64           `json:"retry,omitempty"`  // increment it so that failed nodes try again
	// nodes that have kept it go back to what they had before, in the same kind of batches
	Undo bool `json:"undo,omitempty"`
}

// Defaults of a RolloutStrategy.
const (
	DefaultBatchSize        = 5
	DefaultMaxUnavailable   = 1
	DefaultSuccessThreshold = 100
	// A device may be off for a week and still must not hold up the agents of all others.
	DefaultAgentThreshold = 80
)

// Default fills in the defaults.
func (s *RolloutStrategy) Default() {
	for _, f := range []struct {
		of   *int32
		with int32
	}{{&s.BatchSize, DefaultBatchSize}, {&s.MaxUnavailablePerSite, DefaultMaxUnavailable},
		{&s.SuccessThreshold, DefaultSuccessThreshold}} {
		if *f.of == 0 {
			*f.of = f.with
		}
	}
	if s.PauseOnFailure == nil {
		yes := true
		s.PauseOnFailure = &yes
	}
}

// copied returns a copy that shares nothing.
func (s RolloutStrategy) copied() RolloutStrategy {
	s.Selector, s.PauseOnFailure = s.Selector.DeepCopy(), clone(s.PauseOnFailure)
	if w := clone(s.Window); w != nil {
		w.Days = slices.Clone(w.Days)
		s.Window = w
	}
	return s
}

// A Rollout is what all kinds of rollouts have in common. Its parts are those of Object.
type Rollout struct {
	*metav1.ObjectMeta
	Object interface {
		metav1.Object
		runtime.Object
	}
	Spec   *RolloutStrategy
	Status *FirmwareRolloutStatus
}

// RolloutOf returns the common parts of a rollout, nil for any other object.
func RolloutOf(o any) *Rollout {
	switch r := o.(type) {
	case *FirmwareRollout:
		if r != nil {
			return &Rollout{&r.ObjectMeta, r, &r.Spec.RolloutStrategy, &r.Status}
		}
	case *AgentRollout:
		if r != nil {
			return &Rollout{&r.ObjectMeta, r, &r.Spec.RolloutStrategy, &r.Status}
		}
	}
	return nil
}

// DeepCopy returns the parts of a copy of the object.
func (r *Rollout) DeepCopy() *Rollout { return RolloutOf(r.Object.DeepCopyObject()) }

// Default fills in the defaults of the object's kind.
func (r *Rollout) Default() {
	switch o := r.Object.(type) {
	case *FirmwareRollout:
		o.Spec.Default()
	case *AgentRollout:
		o.Spec.Default()
	}
}

// Subject names what is rolled out, such as "profile raspberrypi-4" or "agent 1.3.0".
func (r *Rollout) Subject() string {
	switch o := r.Object.(type) {
	case *FirmwareRollout:
		return "profile " + o.Spec.Profile
	case *AgentRollout:
		return "agent " + o.Spec.Version
	}
	return ""
}
