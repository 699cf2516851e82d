package node_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/e2e/nodetest"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// One device cannot fill the hub's log, whatever it does.
func TestOneDeviceDoesNotFillTheLog(t *testing.T) {
	pi := node.Caller{Node: "pi-1"}
	for _, c := range []struct {
		name string
		does func(l *node.Devices)
	}{
		{"stops in order again and again", func(l *node.Devices) {
			l.Presence(pi, wire.Presence{Boot: "b", State: wire.PresenceShutdown, Reason: "x"})
		}},
		{"is lost again and again", func(l *node.Devices) { l.Presence(pi, wire.Presence{Boot: "b", State: wire.PresenceLost}) }},
		{"connects and disconnects", func(l *node.Devices) { l.LogDevice(slog.LevelInfo, "pi-1", "connected", "addr", "x") }},
		{"commits offences", func(l *node.Devices) { l.Offence("pi-1", "a status of another machine") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				book := nodetest.NewNotebook()
				var out bytes.Buffer
				l := node.New(node.Config{Broker: book, LeaseInterval: 10 * time.Second, Grace: 40 * time.Second},
					control.Config{Store: book, Start: state.Empty("test", time.Now()), Log: slog.New(slog.NewTextHandler(&out, nil))})
				ctx, stop := context.WithCancel(t.Context())
				over := make(chan error, 1)
				go func() { over <- l.Run(ctx) }()
				nodetest.Greet(t, l, "pi-1")
				nodetest.Greet(t, l, "pi-2")
				for range 6000 { // six minutes
					c.does(l)
					time.Sleep(60 * time.Millisecond)
				}
				l.LogDevice(slog.LevelInfo, "pi-2", "connected", "addr", "y")
				stop()
				if err := <-over; err != nil {
					t.Fatal(err)
				}
				text := out.String()
				if lines := strings.Count(text, "\n"); lines > 40 {
					t.Errorf("%d lines in six minutes", lines)
				}
				if !strings.Contains(text, "unsaid=") {
					t.Error("suppressed lines are not counted")
				}
				if !strings.Contains(text, "addr=y") {
					t.Error("another device has no line")
				}
			})
		})
	}
}
