package cli

import (
	"flag"
	"testing"

	"github.com/spf13/cobra"

	"flotilla.dev/web/manual/manualtest"
)

var update = flag.Bool("update", false, "write the part of the manual that is generated")

// The manual lists every command and flag.
func TestTheManualHasTheHubsCommands(t *testing.T) {
	manualtest.Block(t, "../../web/manual/flotilla-hub.md", "commands", manualtest.Commands(Program{}.Command()), *update)
}

func TestTheCommandsThatTheManualShowsAreAccepted(t *testing.T) {
	manualtest.Typed(t, "flotilla-hub", func() *cobra.Command { return Program{}.Command() })
}
