// Command flotilla-hub runs a fleet of devices from one gateway.
//
// main ends the context after a signal, and turns errors into exit codes: 0 ended as requested, 1
// failed while running, 2 wrong usage or configuration. hub.go connects package serve to this
// machine; package cli has the commands.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	_ "time/tzdata" // CronJobs name time zones, which the gateway may not have

	"flotilla.dev/hub/cli"
	"flotilla.dev/shared/commands"
)

// version is set by the build.
var version = "0.1.0-dev"

//go:embed licenses.gz
var licenses []byte // written by licenses_test.go

func main() {
	garbage.begin()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := cli.Program{Version: version, Licenses: licenses, Serve: runHub, Stdout: stdout, Stderr: stderr}.Command()
	commands.Strict(root, cli.OnlyCommands)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "flotilla-hub: %v\n", err)
	var usage cli.ErrUsage
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}
