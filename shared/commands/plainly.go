package commands

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Plainly returns an error that says what to write instead of an invalid flag value.
func Plainly(err error) error {
	wrong := &pflag.InvalidValueError{}
	if !errors.As(err, &wrong) {
		return err
	}
	want := wrong.Unwrap().Error()
	switch wrong.GetFlag().Value.Type() {
	case "duration":
		want = "write a number with its unit, h, m or s, such as 24h for a day, or 1m30s"
	case "int", "int64":
		want = "write a whole number, such as 8"
	case "bool":
		want = "write true or false"
	}
	return fmt.Errorf("--%s %q: %s", wrong.GetFlag().Name, wrong.GetValue(), want)
}
