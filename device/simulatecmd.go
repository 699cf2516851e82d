package main

import (
	"runtime/debug"

	"github.com/spf13/cobra"

	"flotilla.dev/device/simulate"
)

func simulateCommand() *cobra.Command {
	var o simulate.Options
	var logs logFlags
	var script string
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Run many agents with engines in memory, against a hub's development listener",
		Long: "Run many agents with engines in memory, against a hub's development listener.\n\n" +
			"A script says what happens to them, a line for each event: a time since the start, a verb, whom, how.\n\n" +
			simulate.Words(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			debug.SetGCPercent(50)
			log, err := logs.logger(nil)
			if err != nil {
				return err
			}
			o.Log = log
			if script != "" {
				if o.Script, err = simulate.LoadScript(script); err != nil {
					return usageError{err}
				}
			}
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
	fl.StringVar(&script, "script", "", "what happens to the devices: a file, or "+simulate.Night+", which is built in")
	fl.Float64Var(&o.Speed, "speed", 1, "how many times faster than written the script goes")
	return cmd
}
