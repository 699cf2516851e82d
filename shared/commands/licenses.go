package commands

import (
	"bytes"
	"compress/gzip"
	"io"

	"github.com/spf13/cobra"
)

// Licenses returns the command that prints the licences of the linked modules. The notices are
// compressed with gzip; package noticestest writes them.
func Licenses(notices []byte, args cobra.PositionalArgs) *cobra.Command {
	return &cobra.Command{
		Use:   "licenses",
		Short: "Print the licences of the modules that this program is built from",
		Args:  args,
		RunE: func(c *cobra.Command, _ []string) error {
			text, err := gzip.NewReader(bytes.NewReader(notices))
			if err == nil {
				_, err = io.Copy(c.OutOrStdout(), text)
			}
			return err
		},
	}
}
