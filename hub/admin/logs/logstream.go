package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/panics"
)

const (
	heldLines   = 5000 // lines that a page holds at most, as in logs.js
	crowdedLogs = "Too many logs are open on this hub. Close some, and try again."
)

// Stream sends new log lines as server-sent events, from now or after the last line of the page.
func Stream(c *frame.Call) error {
	q, err := askedLog(c)
	h := c.Response().Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	c.Response().WriteHeader(http.StatusOK)
	s := &logSender{out: frame.NewEventWriter(c.Response().Writer), from: lastSeen(c, q.uid), at: bookmark{of: q.uid}}
	if s.say("hello", "", "") != nil {
		return nil
	}
	if err != nil { // the pod was deleted after the page was opened
		_, why := c.Explain(err)
		return s.over(why, false)
	}
	leave, ok := c.Tools.Logs.Enter(c.User.Name)
	switch {
	case !ok:
		return s.over(crowdedLogs, true)
	case q.node == "":
		leave()
		return s.over(unplaced, true)
	}
	defer leave()

	ctx, cancel := context.WithCancel(c.Request().Context())
	defer cancel()
	go func() {
		defer panics.Catch("page log")
		defer cancel()
		keepAlive(c, ctx, s, q.resource())
	}()
	o := q.options()
	o.Follow = true
	if !s.from.at.IsZero() {
		o.TailLines, o.SinceSeconds, o.SinceTime = new(int64(heldLines)), nil, sinceTime(c, q.node, s.from.at)
	}
	cut := &cutter{take: s.lines}
	err = copyLog(c, ctx, q, o, cut)
	if ctx.Err() != nil {
		return nil
	}
	if err = errors.Join(err, cut.end()); err != nil {
		return s.over(logTrouble(q.node, err), !errors.Is(err, ask.ErrTooOld))
	}
	if q.pod == nil {
		return s.over("The agent of node "+q.node+" has ended its log; it is asked again.", true)
	}
	p := c.Fleet.Snapshot().Pod(q.pod.Namespace, q.pod.Name)
	ended := p == nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	if ended {
		return s.over("Container "+q.container+" has ended.", false)
	}
	return s.over("Container "+q.container+" has ended; its next run is shown as soon as it begins.", true)
}

// lastSeen is the page's last line of this log.
func lastSeen(c *frame.Call, of types.UID) bookmark {
	at := c.Request().Header.Get("Last-Event-ID")
	if at == "" {
		at = c.QueryParam("from")
	}
	return parseBookmark(at, of)
}

// keepAlive sends signs of life until the session or the hub ends.
func keepAlive(c *frame.Call, ctx context.Context, s *logSender, resource string) {
	tick := time.NewTicker(frame.Beat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		u, err := c.Sessions.Authenticate(c.Request())
		if err != nil || !c.Allow(u.Role, "get", resource) || s.say("beat", "", "") != nil {
			return
		}
	}
}

// A logSender sends each line once. say and lines may run at the same time.
type logSender struct {
	mu   sync.Mutex
	out  frame.EventWriter
	from bookmark // the page has all lines up to here
	at   bookmark // lines have been read up to here
}

func (s *logSender) say(event, data, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Send(event, data, id)
}

func (s *logSender) lines(lines []logLine) error {
	var send [][2]string
	for _, l := range lines {
		if s.had(l.At) {
			continue
		}
		send = append(send, [2]string{logRowOf(l).At, l.Text})
	}
	if len(send) == 0 {
		return nil
	}
	data, err := json.Marshal(send)
	if err != nil {
		return fmt.Errorf("encode lines of a log: %w", err)
	}
	return s.say("lines", string(data), s.at.String())
}

// had tells whether the page already has a line. Of a line without a time this is not known.
func (s *logSender) had(then time.Time) bool {
	if then.IsZero() {
		return false
	}
	s.at.pass(then)
	if then.Before(s.from.at.Add(-3 * late)) {
		return false // older than requested: the device's clock was or is wrong
	}
	return then.Before(s.from.at) || then.Equal(s.from.at) && s.at.n <= s.from.n
}

// over ends the stream with a reason. again: more lines may come later.
func (s *logSender) over(why string, again bool) error {
	data, err := json.Marshal(map[string]any{"text": why, "again": again})
	if err == nil {
		_ = s.say("over", string(data), "") // the page may be closed
	}
	return err
}
