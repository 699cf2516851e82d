// Package simulate runs many devices in one process: the real agent and the real
// link, each with a container engine in memory and a board that is made up.
//
// It is for trying a hub, its page and its limits without hardware. Nothing here
// decides anything: what a simulated device does is what package agent does. It
// talks to a hub's development listener only.
package simulate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sync/errgroup"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/engine"
	"flotilla.dev/device/link"
	"flotilla.dev/device/memory"
	"flotilla.dev/shared/wire"
)

// MaxCount is the most devices in one process: each needs two file descriptors of
// the hub's machine and some 100 kB of memory here.
const MaxCount = 20_000

// journalSize is how much of its log a simulated device keeps, in bytes: there are many.
const journalSize = 16 << 10

// Options say what to simulate.
type Options struct {
	Hub    string // mqtt://127.0.0.1:PORT
	Count  int    // devices
	Sites  int    // the devices are spread over, one after the other
	Prefix string // of the nodes' names
	Log    *slog.Logger

	// Dial opens the connection of a device; nil: TCP to Hub.
	Dial func(ctx context.Context, node string) (net.Conn, error)
}

// Check says everything that is wrong with the options.
func (o Options) Check() error {
	var errs []error
	u, err := url.Parse(o.Hub)
	if err != nil || u.Scheme != "mqtt" || u.Port() == "" {
		errs = append(errs, fmt.Errorf("--hub %q must be mqtt://127.0.0.1:PORT, the address of flotilla-hub serve --mqtt-dev-listen", o.Hub))
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
	return errors.Join(errs...)
}

// NodeName is the name of device n, counted from 1.
func NodeName(prefix string, n int) string { return fmt.Sprintf("%s-%04d", prefix, n) }

// SiteName is the name of the site of device n among so many sites.
func SiteName(n, sites int) string { return fmt.Sprintf("site-%02d", (n-1)%sites+1) }

// Run runs the devices until ctx ends. They forget everything then.
func Run(ctx context.Context, o Options) error {
	if err := o.Check(); err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	dir, err := os.MkdirTemp("", "flotilla-simulate-")
	if err != nil {
		return fmt.Errorf("make a directory for the volumes of simulated pods: %w", err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			o.Log.Warn("remove the volumes of simulated pods", "err", err)
		}
	}()
	o.Log.Info("simulating", "devices", o.Count, "sites", o.Sites, "hub", o.Hub)
	g, ctx := errgroup.WithContext(ctx)
	for n := 1; n <= o.Count; n++ {
		g.Go(func() error { return device(ctx, o, n, dir) })
	}
	return g.Wait()
}

// device runs one simulated device.
func device(ctx context.Context, o Options, n int, dir string) error {
	node, site := NodeName(o.Prefix, n), SiteName(n, o.Sites)
	b := boardOf(n, node)
	twin := newEngine(b)
	machine := fmt.Sprintf("%x", sha256.Sum256([]byte(node)))[:16]
	journal := agent.NewJournal(journalSize)
	log := slog.New(slog.NewMultiHandler(quiet{o.Log.Handler()}, journal.Handler(slog.LevelInfo)))
	a, err := agent.New(agent.Config{
		Node: node, Memory: memory.Volatile(), Hardware: b, Log: log.With("node", node),
		OpenEngine: func(context.Context) (engine.Engine, error) { return twin, nil },
		Policy:     agent.DefaultPolicy(),
		Registration: wire.Registration{Labels: map[string]string{
			"topology.kubernetes.io/zone": site, "flotilla.dev/simulated": "true",
		}},
		VolumesDir: filepath.Join(dir, node),
		Dial:       answering,
		Journal:    journal,
	})
	if err != nil {
		return err
	}
	c := link.Config{Node: node, Machine: machine, Boot: ulid.Make().String(), AgentVersion: agent.Version, Server: o.Hub, Source: a, Sink: a, Log: log}
	if o.Dial != nil {
		c.Dial = func(ctx context.Context) (net.Conn, error) { return o.Dial(ctx, node) }
	}
	l, err := link.New(c)
	if err != nil {
		return err
	}
	a.SetHub(hub{l})
	agentCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- a.Run(agentCtx) }()
	select {
	case <-a.Looked():
	case <-ctx.Done():
	}
	after := context.AfterFunc(ctx, func() { a.Shutdown("the simulation has ended") })
	defer after()
	err = l.Run(ctx)
	stop()
	return errors.Join(err, <-done)
}

// hub is the link as the agent wants it.
type hub struct{ *link.Link }

// Stream implements agent.Hub.
func (h hub) Stream(id string) agent.Answer { return h.Link.Stream(id) }

// quiet drops what every one of a thousand devices would say all the time.
type quiet struct{ slog.Handler }

// Enabled implements slog.Handler.
func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l != slog.LevelInfo && q.Handler.Enabled(ctx, l)
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(as []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(as)} }

// WithGroup implements slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
