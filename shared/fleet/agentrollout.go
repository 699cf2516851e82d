package fleet

import (
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// An AgentRollout upgrades the agents of nodes, a few at a time. Each device tries the version
// once, and goes back by itself to the one before if it does not reach the hub with it.
type AgentRollout struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   AgentRolloutSpec      `json:"spec,omitempty"`
	Status FirmwareRolloutStatus `json:"status,omitempty"`
}

// An AgentRolloutSpec is the specification of an AgentRollout.
type AgentRolloutSpec struct {
	Version         string `json:"version"` // as `flotilla-device version` prints it
	RolloutStrategy `json:",inline"`
}

// Default fills in the defaults.
func (s *AgentRolloutSpec) Default() {
	if s.SuccessThreshold == 0 {
		s.SuccessThreshold = DefaultAgentThreshold
	}
	s.RolloutStrategy.Default()
}

var agentVersion = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+~_-]{0,63}$`)

// ValidAgentVersion reports whether a text can be the version of an agent.
func ValidAgentVersion(text string) bool { return agentVersion.MatchString(text) }

// DeepCopy returns a copy that shares nothing.
func (r *AgentRollout) DeepCopy() *AgentRollout {
	if r == nil {
		return nil
	}
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.RolloutStrategy = r.Spec.RolloutStrategy.copied()
	out.Status = r.Status.copied()
	return &out
}

// DeepCopyObject implements runtime.Object.
func (r *AgentRollout) DeepCopyObject() runtime.Object { return r.DeepCopy() }

// An AgentRolloutList is a list of rollouts.
type AgentRolloutList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AgentRollout `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *AgentRolloutList) DeepCopyObject() runtime.Object {
	out := &AgentRolloutList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopy())
	}
	return out
}
