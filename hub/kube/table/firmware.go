package table

import (
	"cmp"
	"strconv"
	"strings"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func init() {
	show(state.FirmwareRollouts, columns(
		"Name Phase Nodes(i) Kept(i) Bad(i) Trying(i) Site Age "+
			"(w)Profile (w)Canary (w)Window (w)Digest Message"), firmwareCells)
}

func firmwareCells(obj state.Object, o *Options) []any {
	r := obj.(*fleet.FirmwareRollout)
	st := r.Status
	site, window := "", ""
	if n := len(st.Batches); n > 0 {
		site = st.Batches[n-1].Site + " #" + strconv.Itoa(int(st.Batches[n-1].Number))
	}
	if w := r.Spec.Window; w != nil {
		window = strings.TrimSpace(strings.Join(w.Days, ",") + " " + w.From + "-" + w.To)
	}
	digest := strings.TrimPrefix(st.Digest, "sha256:")
	return []any{
		r.Name, orUnknown(string(st.Phase)), int64(st.Nodes), int64(st.Kept), int64(st.Bad), int64(st.Trying), orNone(site),
		age(r.CreationTimestamp, o),
		r.Spec.Profile, orNone(r.Spec.Canary), cmp.Or(window, "<always>"), orNone(digest[:min(len(digest), 12)]),
		orNone(st.Sentence),
	}
}
