package ask

import (
	"fmt"
	"io"
)

// An IO is the caller's side of a command or an attachment; each field may be nil. Without Stdin
// the device closes the command's input at once. A terminal has no Stderr; Resize delivers the
// sizes of the caller's window.
type IO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
}

// A Size is a terminal's size in characters.
type Size struct{ Width, Height uint16 }

// An ExitError is a command's exit code other than 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", e.Code)
}
