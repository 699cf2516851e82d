package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"

	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/serve"
	"flotilla.dev/shared/line"
	"flotilla.dev/shared/resident"
)

// runHub runs the hub with real listeners, the commands' socket and systemd. It opens the listeners
// first, so that a port in use changes nothing on disk.
func runHub(ctx context.Context, cfg config.Config, log *slog.Logger, out io.Writer) error {
	panics.Log(log)
	at, err := listenAll(cfg)
	if err != nil {
		return err
	}
	defer at.Close()
	o := serve.Options{
		Config: cfg, Version: version, Log: log, Out: out, Listeners: at, Socket: filepath.Join(cfg.DataDir, socket.Name),
		Hurry: func() { garbage.hurry(burstTime) },
	}
	var h process
	if cfg.PeerListen != "" {
		h = serve.NewMember(o)
	} else if h, err = serve.New(ctx, o); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return h.Run(ctx) })
	g.Go(func() error {
		defer panics.Catch("memory")
		select {
		case <-h.Up():
			garbage.settle(ctx, h.Fleet())
		case <-ctx.Done():
		}
		return panics.Keep(ctx, "memory", resident.GiveBack)
	})
	g.Go(func() error {
		return panics.Keep(ctx, "systemd", func(ctx context.Context) error { return notifySystemd(ctx, h, log) })
	})
	return g.Wait()
}

// A process is a single hub or one of several.
type process interface {
	Run(ctx context.Context) error
	Up() <-chan struct{}
	Fleet() int
	Answers(ctx context.Context) error
}

// listenAll opens all listeners, or none.
func listenAll(cfg config.Config) (at serve.Listeners, err error) {
	for _, each := range []struct {
		to         *net.Listener
		flag, addr string
	}{{&at.HTTPS, "https-listen", cfg.HTTPSListen}, {&at.MQTT, "mqtt-listen", cfg.MQTTListen},
		{&at.Dev, "mqtt-dev-listen", cfg.MQTTDevListen}, {&at.Peer, "peer-listen", cfg.PeerListen}} {
		external := each.to == &at.MQTT && len(cfg.Brokers) > 0 // devices connect to the external broker
		if each.addr == "" || external {
			continue
		}
		l, err := line.Listener().Listen(context.Background(), "tcp", each.addr)
		if err != nil {
			at.Close()
			return serve.Listeners{}, fmt.Errorf(
				"listen on --%s %s: %w; stop the program that uses it, or choose another address", each.flag, each.addr,
				listen.Cause(err))
		}
		*each.to = l
	}
	return at, nil
}

// notifySystemd reports readiness, and then resets the watchdog as long as the control loop works.
func notifySystemd(ctx context.Context, h process, log *slog.Logger) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.Up():
	}
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Debug("notify systemd", "err", err)
	}
	defer func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyStopping) }()
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return nil
	}
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		short, cancel := context.WithTimeout(ctx, every/3)
		if h.Answers(short) == nil {
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		}
		cancel()
	}
}
