// Flotilla-device is the agent of a device: it runs the containers that its hub
// wants here, and reports how they and the device are.
//
// This package is the program alone: its version, the licenses of what is linked, and the child
// process that asks for peripherals. What people type stands in package cli.
package main

import (
	_ "embed"
	"fmt"
	"os"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/cli"
	"flotilla.dev/device/hardware"
)

// version is set by the build.
var version string

//go:embed licenses.gz
var licenses []byte // licenses_test.go writes it

func main() {
	if version != "" {
		agent.Version = version
	}
	// The child that asks periph does nothing else: it must be small and quick.
	if len(os.Args) > 1 && os.Args[1] == hardware.ChildCommand {
		if err := hardware.RunChild(os.Stdout, os.Args[2:]...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(os.Args[1:], licenses))
}
