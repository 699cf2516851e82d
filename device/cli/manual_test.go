package cli

import (
	"flag"
	"testing"

	"github.com/spf13/cobra"

	"flotilla.dev/web/manual/manualtest"
)

var update = flag.Bool("update", false, "write the part of the manual that is generated")

// The manual lists the commands and their flags as cobra has them.
func TestTheManualHasTheDevicesCommands(t *testing.T) {
	manualtest.Block(t, "../../web/manual/flotilla-device.md", "commands", manualtest.Commands(command(nil)), *update)
}

func TestTheCommandsThatTheManualShowsAreAccepted(t *testing.T) {
	manualtest.Typed(t, "flotilla-device", func() *cobra.Command { return command(nil) })
}
