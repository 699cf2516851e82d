package logs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/net/websocket"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/ask"
)

// A window is the page's side of a terminal. Binary messages carry input and output, text messages
// notes in JSON. Write shows output.
type window struct {
	conn  *websocket.Conn
	input *io.PipeReader // input
	typer *io.PipeWriter
	sizes chan ask.Size // only the newest

	opened  time.Time
	touched atomic.Int64 // nanoseconds from began to the last input
	typed   atomic.Bool
}

// A note is a control message of either side.
type note struct {
	CSRF  string `json:"csrf,omitempty"` // the first message, from the page
	Cols  uint16 `json:"cols,omitempty"`
	Rows  uint16 `json:"rows,omitempty"`
	Ready bool   `json:"ready,omitempty"` // the hub's first message
	Beat  bool   `json:"beat,omitempty"`
	End   string `json:"end,omitempty"` // the last message
	Code  int    `json:"code"`          // exit code with End; -1: none
}

// A packet is a message of the socket.
type packet struct {
	text bool
	data []byte
}

var packets = websocket.Codec{
	Marshal: func(v any) ([]byte, byte, error) {
		p := v.(packet)
		if p.text {
			return p.data, websocket.TextFrame, nil
		}
		return p.data, websocket.BinaryFrame, nil
	},
	Unmarshal: func(data []byte, kind byte, v any) error {
		*v.(*packet) = packet{kind == websocket.TextFrame, data}
		return nil
	},
}

func newWindow(conn *websocket.Conn) *window {
	w := &window{conn: conn, sizes: make(chan ask.Size, 1), opened: time.Now()}
	w.input, w.typer = io.Pipe()
	return w
}

func (w *window) touch() { w.touched.Store(int64(time.Since(w.opened))) }

// idle returns the time since the last input. Changes of the machine's clock do not affect it.
func (w *window) idle() time.Duration {
	return time.Since(w.opened) - time.Duration(w.touched.Load())
}

// greeted returns the page's first note.
func (w *window) greeted() (n note, err error) {
	if err := w.conn.SetReadDeadline(time.Now().Add(greeting)); err != nil {
		return n, err
	}
	var p packet
	if err := packets.Receive(w.conn, &p); err != nil {
		return n, err
	}
	if !p.text {
		return n, fmt.Errorf("the first message is not a note")
	}
	if err := json.Unmarshal(p.data, &n); err != nil {
		return n, fmt.Errorf("read the page's first note: %w", err)
	}
	return n, w.conn.SetReadDeadline(time.Time{})
}

// hear passes on the page's messages until the page closes.
func (w *window) hear(ctx context.Context) error {
	defer w.typer.Close()
	for {
		var p packet
		if err := packets.Receive(w.conn, &p); err != nil {
			return errLeft
		}
		if ctx.Err() != nil {
			return nil
		}
		if p.text {
			var n note
			if json.Unmarshal(p.data, &n) == nil {
				w.resize(n)
			}
			continue
		}
		w.typed.Store(true)
		w.touch()
		if _, err := w.typer.Write(p.data); err != nil {
			return nil // the command has ended and reads no more
		}
	}
}

// resize keeps only the newest size.
func (w *window) resize(n note) {
	if n.Cols == 0 || n.Rows == 0 {
		return
	}
	for {
		select {
		case w.sizes <- ask.Size{Width: n.Cols, Height: n.Rows}:
			return
		default:
		}
		select {
		case <-w.sizes:
		default:
		}
	}
}

// Write shows output.
func (w *window) Write(b []byte) (int, error) {
	if err := w.send(packet{data: b}); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (w *window) say(n note) error {
	b, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("encode a note for the terminal: %w", err)
	}
	return w.send(packet{text: true, data: b})
}

func (w *window) send(p packet) error {
	if err := w.conn.SetWriteDeadline(time.Now().Add(frame.Patience)); err != nil {
		return err
	}
	return packets.Send(w.conn, p)
}

// over sends the end; the caller then closes the connection.
func (w *window) over(why string, code int) {
	_ = w.say(note{End: why, Code: code}) // the page may be closed
}
