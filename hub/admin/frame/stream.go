package frame

import (
	"bytes"
	"cmp"
	"compress/flate"
	"compress/gzip"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"flotilla.dev/hub/admin/format"
)

const (
	// Beat is how often a stream sends a sign of life; the page reconnects after 2.5 beats without
	// one.
	Beat = 10 * time.Second
	// Patience is how long a browser may take to read what it is sent.
	Patience = 10 * time.Second

	eventStream = "text/event-stream"
)

// stream sends a view to an open page. It ends within a beat when the session ends or the role
// changes.
func (c *Call) stream(key string, look func() rendered) error {
	leave, ok := c.Tools.pages.Enter(c.User.Name)
	if !ok {
		return c.Message(http.StatusServiceUnavailable, "Too busy", "You have too many pages open; close some.")
	}
	defer leave()
	p, err := c.live.open(key, look)
	if err != nil {
		return c.Message(http.StatusServiceUnavailable, "Too busy", "Too many pages are open; close some.")
	}
	defer c.live.close(p)

	h := c.Response().Header()
	h.Set("Content-Type", eventStream)
	h.Set("X-Accel-Buffering", "no")
	h.Set("Vary", "Accept, Accept-Encoding")
	out := sender{w: c.Response().Writer, rc: http.NewResponseController(c.Response().Writer), now: c.Now}
	out.small = strings.Contains(c.Request().Header.Get("Accept-Encoding"), "gzip")
	if out.small {
		h.Set("Content-Encoding", "gzip")
	}
	c.Response().WriteHeader(http.StatusOK)
	if out.begin() != nil || out.send(c.look.named) != nil {
		return nil
	}
	shown := cmp.Or(c.Request().Header.Get("Last-Event-ID"), c.Request().URL.Query().Get(shownQuery))
	alive := time.NewTicker(Beat)
	defer alive.Stop()
	for {
		if now := c.live.shows(p); now.tag != shown {
			if out.send(now.event()) != nil {
				return nil
			}
			shown = now.tag
		}
		select {
		case <-p.wake:
		case <-alive.C:
			u, err := c.Sessions.Authenticate(c.Request())
			if err != nil || u.Role != c.User.Role || out.beat() != nil {
				return nil // the page reconnects and is told why
			}
		case <-c.live.over:
			return nil
		case <-c.Request().Context().Done():
			return nil
		}
	}
}

// A sender writes the events of one stream, compressed if small.
type sender struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	now   func() time.Time
	small bool
}

func (s *sender) begin() error {
	if s.small {
		if _, err := s.w.Write(gzipHeader); err != nil {
			return err
		}
	}
	return s.beat()
}

// beat sends the hub's time and renews the write deadline. HTTP/2 ends a stream at its deadline
// even if nothing is being written.
func (s *sender) beat() error {
	// a writer without deadlines exists in tests only
	_ = s.rc.SetWriteDeadline(time.Now().Add(Beat + Patience))
	return s.send(newEvent("beat", "", []byte(format.ISO(s.now()))))
}

func (s *sender) send(e *event) error {
	text := e.text
	if s.small {
		text = e.small()
	}
	if _, err := s.w.Write(text); err != nil {
		return err
	}
	return s.rc.Flush()
}

// An event is a server-sent event, encoded once for all streams.
type event struct {
	text  []byte
	small func() []byte // a part of a gzip stream, compressed at the first use
}

// newEvent encodes an event; id "" is left out.
func newEvent(name, id string, data []byte) *event {
	var b bytes.Buffer
	b.Grow(len(data) + len(data)/8)
	if id != "" {
		fmt.Fprintf(&b, "id: %s\n", id)
	}
	fmt.Fprintf(&b, "event: %s\n", name)
	for line := range bytes.SplitSeq(data, []byte{'\n'}) {
		b.WriteString("data: ")
		b.Write(line)
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return &event{b.Bytes(), sync.OnceValue(func() []byte { return gzipPart(b.Bytes()) })}
}

// gzipHeader begins a gzip stream that never ends; browsers read an event stream as far as it has
// come.
var gzipHeader = func() []byte {
	var b bytes.Buffer
	_ = gzip.NewWriter(&b).Flush() // nothing fails in memory
	return b.Bytes()
}()

var flates = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // the level is valid
	return w
}}

// gzipPart compresses a part that may stand anywhere in a gzip stream: it refers to nothing before
// it and ends at a byte. One part serves every stream, and no stream needs a writer of a megabyte.
func gzipPart(text []byte) []byte {
	var b bytes.Buffer
	w := flates.Get().(*flate.Writer)
	defer flates.Put(w)
	w.Reset(&b)
	_, _ = w.Write(text) // nothing fails in memory
	_ = w.Flush()
	return b.Bytes()
}

// An EventWriter writes the events of one page's own stream, such as a log.
type EventWriter struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	wait time.Duration // how long a browser may take to read; 0: Patience
}

// NewEventWriter returns a writer of events.
func NewEventWriter(w http.ResponseWriter) EventWriter {
	return EventWriter{w: w, rc: http.NewResponseController(w)}
}

// Send writes one event; id "" is left out.
func (t *EventWriter) Send(name, data, id string) error {
	// A writer without deadlines exists in tests only.
	_ = t.rc.SetWriteDeadline(time.Now().Add(cmp.Or(t.wait, Patience)))
	if _, err := t.w.Write(newEvent(name, id, []byte(data)).text); err != nil {
		return err
	}
	err := t.rc.Flush()
	_ = t.rc.SetWriteDeadline(time.Time{}) // HTTP/2 ends a stream at its deadline even if nothing is being written
	return err
}
