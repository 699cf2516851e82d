package remote

import (
	"encoding/json"
	"errors"
	"io"

	"flotilla.dev/hub/ask"
)

// An input is what a client sends for a command: what it types, and the size of its
// window. The newest size is the one that counts.
type input struct {
	stdin *io.PipeReader
	in    *io.PipeWriter
	sizes chan ask.Size
}

var errGone = errors.New("the client has gone before the end of its input")

func newInput() *input {
	i := &input{sizes: make(chan ask.Size, 1)}
	i.stdin, i.in = io.Pipe()
	return i
}

// write hands over what the client typed, as soon as the command takes it. It is
// thrown away when the command does not read any more.
func (i *input) write(b []byte) { _, _ = i.in.Write(b) }

// maxSize is how many bytes the JSON of a size may have.
const maxSize = 1 << 10

// resize keeps the size of the client's window. Only one goroutine calls it. What
// is no size is ignored: the window stays as it is.
func (i *input) resize(d *json.Decoder) error {
	var s ask.Size
	if err := d.Decode(&s); err != nil {
		return err
	}
	select {
	case <-i.sizes: // one that nobody has seen is out of date
	default:
	}
	i.sizes <- s
	return nil
}

// resizes reads sizes until one cannot be read. A decoder keeps what it has read of a value: each has
// so many bytes at most.
func (i *input) resizes(r io.Reader) {
	short := &io.LimitedReader{R: r}
	for d := json.NewDecoder(short); ; {
		if short.N = maxSize; i.resize(d) != nil {
			return
		}
	}
}

// close ends what the client types.
func (i *input) close() { _ = i.in.Close() }

// lose ends it where the client has gone before it has said that this was all, if it has not: the
// command must not take half of a file for the whole.
func (i *input) lose() { _ = i.in.CloseWithError(errGone) }

// over says that the command reads no more.
func (i *input) over() { _ = i.stdin.Close() }

// of is what a command gets of it.
func (i *input) of(wish Wish, s ask.IO) ask.IO {
	if wish.Stdin {
		s.Stdin = i.stdin
	}
	if wish.TTY {
		s.Resize = i.sizes
	}
	return s
}
