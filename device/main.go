// Flotilla-device is the agent of a device: it runs the containers that its hub wants and reports
// their status and the device's.
//
// This package has the version, the licenses of linked modules, and the child process that looks
// for peripherals. Package cli has the commands.
package main

import (
	_ "embed"
	"fmt"
	"os"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/cli"
	"flotilla.dev/device/hardware"
)

// version and releaseKey are set by the build.
var version, releaseKey string

//go:embed licenses.gz
var licenses []byte // written by licenses_test.go

func main() {
	if version != "" {
		agent.Version = version
	}
	cli.ReleaseKey = releaseKey
	// The child of periph does nothing else, so that it is small and fast.
	if len(os.Args) > 1 && os.Args[1] == hardware.ChildCommand {
		if err := hardware.RunChild(os.Stdout, os.Args[2:]...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(cli.Run(os.Args[1:], licenses))
}
