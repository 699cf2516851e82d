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

// retryLogind is the wait before the next attempt to reach systemd-logind.
const retryLogind = 30 * time.Second

// A stopper, the agent, stops the pods before a shutdown and starts them again if the shutdown is
// cancelled.
type stopper interface {
	StopPods(ctx context.Context, total, critical time.Duration)
	StartPods()
}

// grace is the time in which pods must end before a shutdown. critical is the part of total that is
// reserved for critical pods.
type grace struct{ total, critical time.Duration }

// within limits the grace period to the delay that systemd-logind allows.
func (g grace) within(most time.Duration) grace {
	if g.total <= most {
		return g
	}
	return grace{most, time.Duration(float64(g.critical) * float64(most) / float64(g.total))}
}

// inhibit delays each shutdown until the pods have ended. It returns when ctx ends.
func inhibit(ctx context.Context, pods stopper, g grace, log *slog.Logger) error {
	socket := strings.TrimPrefix(cmp.Or(os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"), logind.Socket), "unix:path=")
	stopped, logged := false, ""
	for {
		err := inhibitOnce(ctx, socket, pods, g, &stopped, log)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && err.Error() != logged {
			logged = err.Error()
			log.Warn("a shutdown of this device does not end pods in order; trying again", "err", err)
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

// inhibitOnce takes one inhibitor lock and serves it. stopped is true while the pods are stopped.
func inhibitOnce(ctx context.Context, socket string, pods stopper, g grace, stopped *bool, log *slog.Logger) error {
	lock, err := logind.Take(ctx, socket, "stop the pods in order")
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	let := g.within(lock.Most)
	if let != g {
		log.Warn("systemd-logind waits less than --shutdown-grace-period: set InhibitDelayMaxSec= in "+
			"/etc/systemd/logind.conf, and systemctl restart systemd-logind", "waits", lock.Most)
	}
	down := lock.Down
	for ; ; down, err = lock.Wait(ctx) {
		switch {
		case err != nil:
			return err
		case down && !*stopped:
			log.Info("the device shuts down: stopping its pods", "within", let.total)
			*stopped = true
			pods.StopPods(ctx, let.total, let.critical)
			if err := lock.Release(); err != nil {
				return err
			}
		case !down && *stopped:
			log.Info("the shutdown was cancelled: starting its pods again")
			*stopped = false
			pods.StartPods()
			return nil // the lock was released: take a new one
		}
	}
}
