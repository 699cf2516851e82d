package remote

import (
	"io"
	"strings"
	"testing"

	"flotilla.dev/hub/ask"
)

// endless is a reader that repeats a text without end and counts the bytes.
type endless struct {
	text string
	read int
}

func (w *endless) Read(b []byte) (int, error) {
	n := copy(b, w.text)
	w.read += n
	return n, nil
}

// Any number of sizes may arrive, but a single endless size is not buffered.
func TestAnEndlessTerminalSize(t *testing.T) {
	sizes := strings.Repeat(`{"Width":80,"Height":24}`+"\n", 10_000)
	for _, text := range []string{" ", `{"Width":1,"x":"`, "[[[["} {
		i, end := newInput(), &endless{text: text}
		i.resizes(io.MultiReader(strings.NewReader(sizes), end))
		if end.read > 2*maxSize {
			t.Errorf("%d bytes of the endless size %q were read, want at most %d", end.read, text, 2*maxSize)
		}
		if got := <-i.sizes; got != (ask.Size{Width: 80, Height: 24}) {
			t.Errorf("the size is %+v", got)
		}
	}
}
