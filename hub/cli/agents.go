package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"flotilla.dev/hub/cli/socket"
)

func (p Program) agentsCommand() *cobra.Command {
	c := &cobra.Command{Use: "agents", Short: "The versions of the devices' agents", Args: OnlyCommands, RunE: help}
	list := &cobra.Command{Use: "list", Short: "List the versions that run on each site, and those that the hub has",
		Args: exactly(0)}
	listDir := dataDir(list)
	list.RunE = func(c *cobra.Command, _ []string) error {
		text, err := socket.Ask(*listDir, "agents list")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(text), "\n")
		rows, has := lines[:len(lines)-1], lines[len(lines)-1]
		err = table(c.OutOrStdout(), "SITE\tVERSION\tNODES", len(rows), func(w io.Writer, i int) {
			fmt.Fprintln(w, rows[i])
		})
		if err == nil {
			_, err = fmt.Fprintln(c.OutOrStdout(), has)
		}
		return err
	}
	upgrade := &cobra.Command{Use: "upgrade", Short: "Upgrade the agents of all devices or of a site, a few at a time",
		Args: exactly(0)}
	upgradeDir := dataDir(upgrade)
	version := upgrade.Flags().String("version", "", "version that the hub has in its --agents-dir")
	site := upgrade.Flags().String("site", "", "only the devices of this site")
	upgrade.RunE = func(c *cobra.Command, _ []string) error {
		for name, v := range map[string]string{"version": *version, "site": *site} {
			if strings.ContainsAny(v, " \t\n") || name == "version" && v == "" {
				return ErrUsage{fmt.Errorf("--%s %q is not a %s, such as --version 1.3.0 --site oslo", name, v, name)}
			}
		}
		return order(c, *upgradeDir, strings.TrimSpace("agents upgrade "+*version+" "+*site))
	}
	c.AddCommand(list, upgrade)
	return c
}
