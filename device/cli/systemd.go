package cli

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"flotilla.dev/device/agent"
)

// notify sends a state to systemd.
func notify(state string) { _, _ = daemon.SdNotify(false, state) } // an error only means that systemd does not run

// stuckAfter is the longest time without a cycle of the agent's loop. After it the watchdog is no
// longer fed. The loop runs at least every 15 s and never blocks.
const stuckAfter = 45 * time.Second

// watch feeds systemd's watchdog while the agent's loop runs, so that systemd restarts an agent
// whose loop is stuck. The returned function stops it.
func watch(ctx context.Context, a *agent.Agent, within time.Duration, log *slog.Logger) (stop func()) {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every <= 0 {
		return func() {}
	}
	ctx, stop = context.WithCancel(ctx)
	began := time.Now()
	go func() {
		t := time.NewTicker(every / 3)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			last := a.LastCycle()
			if last.Before(began) {
				last = began
			}
			if late := time.Since(last); late > within {
				log.Error("the agent's loop is stuck: not feeding the watchdog", "since", late)
				continue
			}
			notify("WATCHDOG=1")
		}
	}()
	return stop
}
