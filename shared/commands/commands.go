// Package commands has the code that the command lines of both programs share.
package commands

import "github.com/spf13/cobra"

// Strict makes Cobra's own commands refuse unknown arguments by the rule only, like other commands
// with subcommands. By default they would print their help as if it had been requested.
func Strict(root *cobra.Command, only cobra.PositionalArgs) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "completion":
			c.Args, c.RunE = only, func(c *cobra.Command, _ []string) error { return c.Help() }
			for _, shell := range c.Commands() {
				shell.Args = only
			}
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				of, rest, err := root.Find(args)
				if err != nil {
					return err
				}
				return only(of, rest)
			}
		}
	}
}
