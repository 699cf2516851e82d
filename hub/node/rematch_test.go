package node

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// When profiles change, a node with known hardware gets the profile that now matches.
func TestChangedProfilesAreMatchedAgain(t *testing.T) {
	fits := ""
	r := Rematch{func(state.Snapshot, corev1.NodeStatus, json.RawMessage) string { return fits }}
	for _, c := range []struct {
		rule, has, fits string
		unknown         bool
		then            string
	}{
		{"a better match", "generic", "my-pi", false, "my-pi"},
		{"the first", "", "my-pi", false, "my-pi"},
		{"no match any more", "my-pi", "", false, ""},
		{"the same", "my-pi", "my-pi", false, "my-pi"},
		{"a device without a hardware report", "generic", "", true, "generic"},
	} {
		fits = c.fits
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", Labels: map[string]string{"mine": "yes"}}}
		if c.has != "" {
			n.Labels[fleet.LabelProfile] = c.has
		}
		objects := []state.Object{n}
		if !c.unknown {
			objects = append(objects, &fleet.DeviceReport{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Hardware: runtime.RawExtension{Raw: []byte(`{}`)}})
		}
		s := state.Load(state.Empty("x", time.Unix(1e9, 0)), objects, 0)
		p := &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "my-pi"},
			Spec: fleet.BoardProfileSpec{Match: fleet.BoardMatch{Arch: []string{"arm"}}}}
		subjects := r.Touches(state.Applied{Key: state.KeyOf(p), New: p})
		if len(subjects) != 1 {
			t.Fatalf("%s: a new profile touches %v", c.rule, subjects)
		}
		plan := r.Decide(s, subjects, time.Unix(1e9, 0))
		now := n
		for _, change := range plan.Changes {
			now = change.Object.(*corev1.Node)
		}
		if now.Labels[fleet.LabelProfile] != c.then || now.Labels["mine"] != "yes" ||
			(len(plan.Changes) > 0) != (c.has != c.then) {
			t.Errorf("%s: the node has %v after %d changes, want %q", c.rule, now.Labels, len(plan.Changes), c.then)
		}
		title := p.DeepCopy()
		title.Spec.Title = "other"
		if got := r.Touches(state.Applied{Key: state.KeyOf(p), Old: p, New: title}); got != nil {
			t.Errorf("a change that does not affect matching touches %v", got)
		}
	}
}
