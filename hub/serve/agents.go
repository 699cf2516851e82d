package serve

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// agentsOrder carries out `list` and `upgrade VERSION [SITE]`.
func (h *Hub) agentsOrder(ctx context.Context, order string) (string, error) {
	if err := h.advertise(ctx); err != nil { // the agents may have been put there just now
		return "", err
	}
	words := strings.Fields(order)
	switch {
	case order == "list":
		return listAgents(h.Loop.Snapshot()), nil
	case len(words) == 2 && words[0] == "upgrade":
		return h.upgradeAgents(ctx, words[1], "")
	case len(words) == 3 && words[0] == "upgrade":
		return h.upgradeAgents(ctx, words[1], words[2])
	}
	return "", fmt.Errorf("unknown order %q", order)
}

// listAgents lists the versions that run, by site, then those that the hub hands out.
func listAgents(s state.Snapshot) string {
	runs := map[[2]string]int{}
	for n := range s.Nodes() {
		version := "?"
		if rec := s.Record(n.Name); rec != nil && rec.AgentVersion != "" {
			version = rec.AgentVersion
		}
		runs[[2]string{state.SiteOf(n), version}]++
	}
	var out strings.Builder
	for _, k := range slices.SortedFunc(maps.Keys(runs), func(a, b [2]string) int {
		return cmp.Or(strings.Compare(a[0], b[0]), strings.Compare(a[1], b[1]))
	}) {
		fmt.Fprintf(&out, "%s\t%s\t%d\n", cmp.Or(k[0], "none"), k[1], runs[k])
	}
	var has []string
	if hub := s.Advertisement(); hub != nil {
		for _, b := range hub.Agents {
			signed := ""
			if len(b.Signature) == 0 {
				signed = ", not signed"
			}
			has = append(has, b.Version+" for "+b.Arch+signed)
		}
	}
	slices.Sort(has)
	fmt.Fprintf(&out, "the hub has %s\n", cmp.Or(strings.Join(has, "; "),
		"no agents with their .json files in its --agents-dir"))
	return out.String()
}

// upgradeAgents creates the AgentRollout of the fleet or of a site, or gives it another version.
func (h *Hub) upgradeAgents(ctx context.Context, version, site string) (string, error) {
	r := &fleet.AgentRollout{ObjectMeta: metav1.ObjectMeta{Name: "agents"}}
	r.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelHostname, Operator: metav1.LabelSelectorOpExists}}}
	if site != "" {
		r.Name += "-" + site
		r.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelTopologyZone: site}}
	}
	_, err := h.Loop.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		next, old := r, state.Object(nil)
		next.CreationTimestamp = metav1.NewTime(now)
		if have, ok := s.Get(state.Key{Kind: state.AgentRollouts, Name: r.Name}).(*fleet.AgentRollout); ok {
			next, old = have.DeepCopy(), have
		}
		next.Spec.Version, next.Spec.Paused, next.Spec.Undo = version, false, false
		next.Generation++
		if site != "" && s.Site(site) == nil {
			return nil, fmt.Errorf("site %s not found", site)
		}
		if hub := s.Advertisement(); hub == nil || !slices.ContainsFunc(hub.Agents, func(b fleet.AgentBuild) bool {
			return b.Version == version
		}) {
			return nil, fmt.Errorf("the hub has no agent of version %s: put it into its --agents-dir with its .json file; "+
				"`flotilla-hub agents list` shows what it has", version)
		}
		if _, errs := admission.Admit(next, old, AdmissionSettings(h.cfg)); len(errs) > 0 {
			return nil, errs.ToAggregate()
		}
		return []state.Change{state.Put(next, "")}, nil
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("agent rollout %s brings version %s; see `kubectl get agentrollouts`\n", r.Name, version), nil
}
