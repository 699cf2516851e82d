// Command probe is a minimal program around package hardware. Tests run it inside a directory that
// looks like a board, also in an emulator.
package main

import (
	"context"
	"fmt"
	"os"

	"flotilla.dev/device/hardware"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) > 1 && os.Args[1] == hardware.ChildCommand {
		return hardware.RunChild(os.Stdout, os.Args[2:]...)
	}
	r, err := hardware.Probe(context.Background(), hardware.Options{Periph: new(hardware.Periph)})
	if err != nil {
		return err
	}
	if len(os.Args) > 1 && os.Args[1] == "text" {
		return r.Write(os.Stdout)
	}
	_, err = os.Stdout.Write(r.JSON())
	return err
}
