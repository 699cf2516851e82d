package cli

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"flotilla.dev/device/logind"
)

// retryLogind is how long a systemd-logind that is not there is left alone.
const retryLogind = 30 * time.Second

// A stopper ends the pods before the device goes down, and runs them again where it does not;
// agent.Agent.
type stopper interface {
	StopPods(ctx context.Context, total, critical time.Duration)
	StartPods()
}

// grace is how long pods have before the device goes down: in all, and of that those that the
// system needs.
type grace struct{ total, critical time.Duration }

// within is as much of it as systemd-logind lets.
func (g grace) within(most time.Duration) grace {
	if g.total <= most {
		return g
	}
	return grace{most, time.Duration(float64(g.critical) * float64(most) / float64(g.total))}
}

// inhibit keeps the device from going down, until ctx ends, before its pods have ended.
func inhibit(ctx context.Context, pods stopper, g grace, log *slog.Logger) error {
	socket := strings.TrimPrefix(cmp.Or(os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), logind.Socket), "unix:path=")
	stopped, said := false, ""
	for {
		err := inhibitOnce(ctx, socket, pods, g, &stopped, log)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			log.Warn("pods do not end in order when this device is shut down: systemd-logind is asked again", "err", err)
		}
		if err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryLogind):
		}
	}
}

// inhibitOnce holds one lock; stopped tells whether pods have been stopped and not started again.
func inhibitOnce(ctx context.Context, socket string, pods stopper, g grace, stopped *bool, log *slog.Logger) error {
	lock, err := logind.Take(ctx, socket, "stop the pods in order")
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	let := g.within(lock.Most)
	if let != g {
		log.Warn("systemd-logind does not wait as long as --shutdown-grace-period: set InhibitDelayMaxSec= in "+
			"/etc/systemd/logind.conf, and systemctl restart systemd-logind", "waits", lock.Most)
	}
	down := lock.Down
	for ; ; down, err = lock.Wait(ctx) {
		switch {
		case err != nil:
			return err
		case down && !*stopped:
			log.Info("the device is about to go down: its pods are stopped", "within", let.total)
			*stopped = true
			pods.StopPods(ctx, let.total, let.critical)
			if err := lock.Release(); err != nil {
				return err
			}
		case !down && *stopped:
			log.Info("the device does not go down after all: its pods run again")
			*stopped = false
			pods.StartPods()
			return nil // the lock was given back: take another one
		}
	}
}
