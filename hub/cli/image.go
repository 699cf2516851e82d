package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/cli/socket"
)

func (p Program) imageCommand() *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "Container images that the hub keeps for its devices", Args: OnlyCommands,
		RunE: help}
	list := &cobra.Command{Use: "list", Short: "List the images on the hub, as pods name them", Args: exactly(0)}
	listDir := dataDir(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		text, err := socket.Ask(*listDir, "image list")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(text), "\n")
		images, usage := lines[:len(lines)-1], lines[len(lines)-1]
		err = table(c.OutOrStdout(), "IMAGE\tPLATFORMS\tSIZE\tPUSHED\tDIGEST", len(images), func(w io.Writer, i int) {
			fmt.Fprintln(w, images[i])
		})
		if err == nil {
			_, err = fmt.Fprintln(c.OutOrStdout(), usage)
		}
		return err
	}
	rm := &cobra.Command{Use: "rm IMAGE", Short: "Remove an image that no pod and no workload names", Args: exactly(1)}
	rmDir := dataDir(rm)
	rm.RunE = func(c *cobra.Command, args []string) error { return order(c, *rmDir, "image rm "+args[0]) }
	gc := &cobra.Command{Use: "gc", Short: "Free the space of images that were removed or replaced a day ago or earlier",
		Args: exactly(0)}
	gcDir := dataDir(gc)
	gc.RunE = func(c *cobra.Command, _ []string) error { return order(c, *gcDir, "image gc") }
	c.AddCommand(list, rm, gc)
	return c
}
