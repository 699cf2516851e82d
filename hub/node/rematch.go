package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Rematch decides the board profile of nodes when profiles change, without waiting for new reports.
// refreshLabels makes the same decision when a device reports.
type Rematch struct {
	Profile func(s state.Snapshot, st corev1.NodeStatus, hardware json.RawMessage) string
}

// Touches returns the nodes whose profile may change.
func (r Rematch) Touches(c state.Applied) []state.Subject {
	if c.Key.Kind != state.BoardProfiles || r.Profile == nil {
		return nil
	}
	old, _ := c.Old.(*fleet.BoardProfile)
	next, _ := c.New.(*fleet.BoardProfile)
	if old != nil && next != nil && apiequality.Semantic.DeepEqual(old.Spec.Match, next.Spec.Match) &&
		slices.Equal(old.Spec.Platforms, next.Spec.Platforms) {
		return nil
	}
	return []state.Subject{{Key: c.Key}}
}

// Subjects returns nothing, because the decisions before a restart are stored.
func (Rematch) Subjects(state.Snapshot) []state.Subject { return nil }

// Decide gives every node with a hardware report the profile that matches now.
func (r Rematch) Decide(s state.Snapshot, subjects []state.Subject, _ time.Time) (plan state.Plan) {
	if len(subjects) == 0 || r.Profile == nil {
		return plan
	}
	for have := range s.Nodes() {
		hardware := s.Report(have.Name).Text()
		if len(hardware) == 0 {
			continue
		}
		name := r.Profile(s, have.Status, hardware)
		if name == have.Labels[fleet.LabelProfile] {
			continue
		}
		n, why := state.Fork(have), fmt.Sprintf("node %s has the board profile %s", have.Name, name)
		if name == "" {
			delete(n.Labels, fleet.LabelProfile)
			why = fmt.Sprintf("node %s has no board profile any more", have.Name)
		} else if label(n, fleet.LabelProfile, name); n.Labels[fleet.LabelProfile] != name {
			continue // the node has no space for the label
		}
		plan.Do(state.Put(n, why))
	}
	return plan
}
