package table

import (
	"cmp"
	"strconv"
	"strings"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func init() {
	show(state.AgentRollouts, columns(
		"Name Phase Nodes(i) Kept(i) Bad(i) Trying(i) Site Age "+
			"Version (w)Canary (w)Window Message"), agentCells)
	show(state.FirmwareRollouts, columns(
		"Name Phase Nodes(i) Kept(i) Bad(i) Trying(i) Site Age "+
			"(w)Profile (w)Canary (w)Window (w)Digest Message"), firmwareCells)
}

func firmwareCells(obj state.Object, o *Options) []any {
	r := obj.(*fleet.FirmwareRollout)
	cells, window := rolloutCells(fleet.RolloutOf(r), o)
	digest := strings.TrimPrefix(r.Status.Digest, "sha256:")
	return append(cells, r.Spec.Profile, orNone(r.Spec.Canary), window, orNone(digest[:min(len(digest), 12)]),
		orNone(r.Status.Sentence))
}

func agentCells(obj state.Object, o *Options) []any {
	r := obj.(*fleet.AgentRollout)
	cells, window := rolloutCells(fleet.RolloutOf(r), o)
	return append(cells, r.Spec.Version, orNone(r.Spec.Canary), window, orNone(r.Status.Sentence))
}

// rolloutCells are the columns of all kinds of rollouts, and the window.
func rolloutCells(r *fleet.Rollout, o *Options) (cells []any, window string) {
	st := r.Status
	site := ""
	if n := len(st.Batches); n > 0 {
		site = st.Batches[n-1].Site + " #" + strconv.Itoa(int(st.Batches[n-1].Number))
	}
	if w := r.Spec.Window; w != nil {
		window = strings.TrimSpace(strings.Join(w.Days, ",") + " " + w.From + "-" + w.To)
	}
	return []any{
		r.Name, orUnknown(string(st.Phase)), int64(st.Nodes), int64(st.Kept), int64(st.Bad), int64(st.Trying), orNone(site),
		age(r.CreationTimestamp, o),
	}, cmp.Or(window, "<always>")
}
