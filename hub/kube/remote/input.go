package remote

import (
	"encoding/json"
	"errors"
	"io"

	"flotilla.dev/hub/ask"
)

// An input is a client's input for a command: its data, and the size of its terminal. Only the
// newest size counts.
type input struct {
	stdin *io.PipeReader
	in    *io.PipeWriter
	sizes chan ask.Size
}

var errGone = errors.New("the client closed the connection before the end of its input")

func newInput() *input {
	i := &input{sizes: make(chan ask.Size, 1)}
	i.stdin, i.in = io.Pipe()
	return i
}

// write passes on the client's data and waits for the command to read it. Once the command reads no
// more, it drops the data.
func (i *input) write(b []byte) { _, _ = i.in.Write(b) }

// maxSize limits the JSON of a size, in bytes.
const maxSize = 1 << 10

// resize keeps the newest size of the client's terminal, and ignores an invalid one. Only one
// goroutine calls it.
func (i *input) resize(d *json.Decoder) error {
	var s ask.Size
	if err := d.Decode(&s); err != nil {
		return err
	}
	select {
	case <-i.sizes: // an unread size is out of date
	default:
	}
	i.sizes <- s
	return nil
}

// resizes reads sizes until one cannot be read. A decoder buffers the value that it reads, so each
// value is limited.
func (i *input) resizes(r io.Reader) {
	short := &io.LimitedReader{R: r}
	for d := json.NewDecoder(short); ; {
		if short.N = maxSize; i.resize(d) != nil {
			return
		}
	}
}

// close ends the client's data.
func (i *input) close() { _ = i.in.Close() }

// abort ends the data with an error if the client has gone before its end: the command must not
// take half of a file for the whole.
func (i *input) abort() { _ = i.in.CloseWithError(errGone) }

// stop drops further data: the command reads no more.
func (i *input) stop() { _ = i.stdin.Close() }

// of returns the parts of the input that the command gets.
func (i *input) of(enabled Streams, s ask.IO) ask.IO {
	if enabled.Stdin {
		s.Stdin = i.stdin
	}
	if enabled.TTY {
		s.Resize = i.sizes
	}
	return s
}
