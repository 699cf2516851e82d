package ask

import (
	"fmt"
	"io"
)

// An IO is the caller's side of a command or an attachment. What is nil is not
// wanted: no Stdin closes the command's at once. With a terminal there is no
// Stderr, and each value of Resize is the size of the caller's window.
type IO struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
}

// A Size is that of a terminal, in characters.
type Size struct{ Width, Height uint16 }

// An ExitError says that a command has run and ended with a code other than 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", e.Code)
}
