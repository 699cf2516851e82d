// Flotilla-simulate runs many devices in one process: the real agent and link, each with a
// container engine in memory and a simulated board.
//
// It serves to try a hub, its page and its limits without hardware. It decides nothing: package
// agent reacts to the changes that a Script makes to boards, lines, images and containers. It
// connects only to the development listener of a hub.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"

	"golang.org/x/sync/errgroup"

	"flotilla.dev/device/link"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

// MaxCount limits the devices of one process: each needs two file descriptors on the hub's machine
// and about 100 kB of memory here.
const MaxCount = 20_000

// journalSize limits the bytes of a simulated device's log.
const journalSize = 16 << 10

// Options describe a simulation.
type Options struct {
	Hub    string // mqtt://127.0.0.1:PORT
	Count  int    // number of devices
	Sites  int    // number of sites; devices are assigned in turn
	Prefix string // prefix of the nodes' names
	Log    *slog.Logger

	Script *Script // nil: no events
	Speed  float64 // divides the script's times; 0: 1

	// Dial connects a device; nil: TCP to Hub.
	Dial func(ctx context.Context, node string) (net.Conn, error)
}

// Check returns every mistake in the options.
func (o Options) Check() error {
	var errs []error
	for hub := range strings.SplitSeq(o.Hub, ",") { // several hubs that share a database
		u, err := url.Parse(hub)
		if err != nil || u.Scheme != "mqtt" || u.Port() == "" {
			errs = append(errs, fmt.Errorf(
				"--hub %q must be mqtt://127.0.0.1:PORT, the address of flotilla-hub serve --mqtt-dev-listen", hub))
		} else if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			errs = append(errs, fmt.Errorf("--hub %q is not on this machine: the development listener is on loopback "+
				"only", hub))
		}
	}
	if o.Count < 1 || o.Count > MaxCount {
		errs = append(errs, fmt.Errorf("--count %d must be from 1 to %d", o.Count, MaxCount))
	}
	if o.Sites < 1 || o.Sites > max(o.Count, 1) {
		errs = append(errs, fmt.Errorf("--sites %d must be from 1 to the number of devices, %d", o.Sites, o.Count))
	}
	if err := wire.ValidNode(NodeName(o.Prefix, 1)); err != nil {
		errs = append(errs, fmt.Errorf("--prefix %q: %w", o.Prefix, err))
	}
	if o.Speed != 0 && !(o.Speed >= 0.1 && o.Speed <= 100) {
		errs = append(errs, fmt.Errorf("--speed %g must be from 0.1 to 100", o.Speed))
	}
	if len(errs) == 0 {
		errs = o.checkScript()
	}
	return errors.Join(errs...)
}

// NodeName returns the name of device n, counted from 1.
func NodeName(prefix string, n int) string { return fmt.Sprintf("%s-%04d", prefix, n) }

// SiteName returns the name of the site of device n.
func SiteName(n, sites int) string { return fmt.Sprintf("site-%02d", (n-1)%sites+1) }

// Run runs the devices until ctx ends. Their state is then lost.
func Run(ctx context.Context, o Options) error {
	if err := o.Check(); err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	dir, end, err := makeVolumes(o.Log)
	if err != nil {
		return err
	}
	defer end()
	o.Log.Info("simulating", "devices", o.Count, "sites", o.Sites, "hub", o.Hub)
	g, ctx := errgroup.WithContext(ctx)
	devices := make([]*device, o.Count)
	for i := range devices {
		devices[i] = newDevice(ctx, o, i+1, dir)
		g.Go(func() error { return devices[i].run(ctx) })
	}
	if o.Script != nil {
		g.Go(func() error {
			o.Script.play(ctx, o, devices)
			return nil
		})
	}
	return g.Wait()
}

// hub adapts the link to agent.Hub.
type hub struct{ *link.Link }

// Stream implements agent.Hub.
func (h hub) Stream(id string) request.Stream { return h.Link.Stream(id) }

// quiet drops the routine log lines of the devices.
type quiet struct{ slog.Handler }

// Enabled implements slog.Handler.
func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l != slog.LevelInfo && q.Handler.Enabled(ctx, l)
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(as []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(as)} }

// WithGroup implements slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
