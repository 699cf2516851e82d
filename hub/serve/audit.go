package serve

import (
	"net/http"
	"time"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/store"
)

// exportPath gives an administrator the audit as JSON lines, with ?since= as in the command.
const exportPath = "/audit/export"

// exportAudit streams the audit. It checks the reader's right repeatedly, and ends when the client
// reads nothing for half a minute.
func (h *Hub) exportAudit(w http.ResponseWriter, r *http.Request) {
	since, err := store.ParseSince(r.URL.Query().Get("since"), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	u, err := h.Guard.Authenticate(r)
	if err != nil {
		http.Error(w, "your session has ended", http.StatusUnauthorized)
		return
	}
	h.Guard.Record(r.Context(), store.Audit{
		Who: u.Name, Via: u.Via, Source: u.Source, Verb: "get", Resource: "audit", Name: "export", Code: http.StatusOK,
	})
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Content-Disposition", `attachment; filename="audit.jsonl"`)
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	n := 0
	err = h.Store.ExportAudit(r.Context(), w, since, func() error {
		if n++; n%500 != 1 {
			return nil
		}
		u, err := h.Guard.Authenticate(r)
		if err == nil && !access.Allow(u.Role, "list", "audit") {
			err = access.ErrForbidden
		}
		if err == nil {
			err = control.SetWriteDeadline(time.Now().Add(30 * time.Second))
		}
		return err
	})
	if err != nil {
		h.log.Warn("an export of the audit was cut off", "who", u.Name, "err", err)
		panic(http.ErrAbortHandler) // so that the client does not accept a part as the whole
	}
}
