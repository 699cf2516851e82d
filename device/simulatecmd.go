package main

import (
	"runtime/debug"

	"github.com/spf13/cobra"

	"flotilla.dev/device/simulate"
)

func simulateCommand() *cobra.Command {
	var o simulate.Options
	var logs logFlags
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run many agents with engines in memory, against a hub's development listener",
		RunE: func(cmd *cobra.Command, _ []string) error {
			debug.SetGCPercent(50)
			log, err := logs.logger(nil)
			if err != nil {
				return err
			}
			o.Log = log
			if err := o.Check(); err != nil {
				return usageError{err}
			}
			if err := checkHub(o.Hub); err != nil {
				return err
			}
			return simulate.Run(cmd.Context(), o)
		},
	}
	logs.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&o.Hub, "hub", "", "development listener of a hub, such as mqtt://127.0.0.1:1883")
	fl.IntVar(&o.Count, "count", 8, "number of devices")
	fl.IntVar(&o.Sites, "sites", 3, "number of sites that they are spread over")
	fl.StringVar(&o.Prefix, "prefix", "sim", "beginning of the nodes' names")
	return cmd
}
