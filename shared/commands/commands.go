// Package commands is what the command lines of both programs have in common.
package commands

import "github.com/spf13/cobra"

// Strict has Cobra's own commands refuse what they do not know, as only does of a command that has
// others below it: they would show their help, as if that had been asked for.
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
				of, left, err := root.Find(args)
				if err != nil {
					return err
				}
				return only(of, left)
			}
		}
	}
}
