package logs

import (
	"cmp"
	"io"
	"mime"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
)

// maxFile bounds a log that is downloaded, in bytes.
const maxFile = 256 << 20

// Download sends a whole log as a file.
func Download(c *frame.Call) error {
	q, err := askedLog(c)
	if err != nil {
		return c.Refuse("Not found", err)
	}
	if q.node == "" {
		return c.Message(http.StatusConflict, "No log yet", unplaced)
	}
	leave, ok := c.Tools.Logs.Enter(c.User.Name)
	if !ok {
		return c.Message(http.StatusServiceUnavailable, "Too busy", crowdedLogs)
	}
	defer leave()
	limit := int64(maxFile)
	w := &fileWriter{c: c, name: q.name() + "-" + cmp.Or(q.container, "agent") + ".log"}
	err = copyLog(c, c.Request().Context(), q, corev1.PodLogOptions{Container: q.container, Previous: q.previous,
		Timestamps: true, LimitBytes: &limit}, w)
	switch {
	case err == nil && w.written >= maxFile:
		_, _ = io.WriteString(w, "\n[The rest is missing. A file has "+format.Bytes(maxFile)+
			" of a log at most, the oldest; its newest lines are on the page.]\n")
		return nil
	case err == nil:
		w.begin()
		return nil
	case !w.begun:
		return c.Message(http.StatusBadGateway, "No log", logTrouble(q.node, err))
	}
	_, _ = io.WriteString(w, "\n[The rest is missing. "+logTrouble(q.node, err)+"]\n")
	return nil
}

// A fileWriter begins the answer at the first write.
type fileWriter struct {
	c       *frame.Call
	name    string
	begun   bool
	written int64
}

func (w *fileWriter) begin() {
	if !w.begun {
		w.begun = true
		h := w.c.Response().Header()
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": w.name}))
		w.c.Response().WriteHeader(http.StatusOK)
	}
}

func (w *fileWriter) Write(b []byte) (int, error) {
	w.begin()
	rc := http.NewResponseController(w.c.Response().Writer)
	_ = rc.SetWriteDeadline(time.Now().Add(frame.Patience))
	n, err := w.c.Response().Writer.Write(b)
	w.written += int64(n)
	if err == nil {
		err = rc.Flush()
	}
	_ = rc.SetWriteDeadline(time.Time{}) // HTTP/2 ends a stream at its deadline even if nothing is being written
	return n, err
}
