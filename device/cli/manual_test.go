package cli

import (
	"flag"
	"testing"

	"github.com/spf13/cobra"

	"flotilla.dev/web/manual/manualtest"
)

var update = flag.Bool("update", false, "write the generated part of the manual")

// The manual lists the commands and flags exactly as cobra prints them.
func TestTheManualListsTheCommandsOfTheDevice(t *testing.T) {
	manualtest.Block(t, "../../web/manual/flotilla-device.md", "commands", manualtest.Commands(command(nil)), *update)
}

func TestTheCommandsThatTheManualShowsAreAccepted(t *testing.T) {
	manualtest.Typed(t, "flotilla-device", func() *cobra.Command { return command(nil) })
}
