package remote

import (
	"encoding/json"
	"errors"
	"io"

	"flotilla.dev/hub/ask"
)

// An input is a client's input for a command: its data and its terminal's size. Only the newest
// size counts.
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

// write passes the client's data on, and waits until the command has read it. If the command no
// longer reads, write drops the data.
func (i *input) write(b []byte) { _, _ = i.in.Write(b) }

// maxSize limits the JSON of a size in bytes.
const maxSize = 1 << 10

// resize stores the newest size of the client's terminal. It ignores an invalid size. Only one
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

// resizes reads sizes until a size cannot be read. It limits each value, because a decoder buffers
// the value that it reads.
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

// abort ends the data with an error if the client has gone before the data's end. Otherwise the
// command would take half of a file for the whole file.
func (i *input) abort() { _ = i.in.CloseWithError(errGone) }

// stop drops further data, because the command no longer reads.
func (i *input) stop() { _ = i.stdin.Close() }

// of returns the parts of the input that the command uses.
func (i *input) of(enabled Streams, s ask.IO) ask.IO {
	if enabled.Stdin {
		s.Stdin = i.stdin
	}
	if enabled.TTY {
		s.Resize = i.sizes
	}
	return s
}
