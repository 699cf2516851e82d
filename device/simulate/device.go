package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/link"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

// A device is a simulated device. Its board, engine and memory outlive restarts of the agent.
type device struct {
	o       Options
	node    string
	site    string
	dir     string
	board   *board
	engine  *stocked
	memory  *memory.Memory
	journal *request.Journal
	log     *slog.Logger
	line    *line // nil: no script

	mu      sync.Mutex
	going   []activeEvent // active effects of a script, the oldest first
	flaps   bool          // the line is cut now, because it flaps
	flapper func()        // stops the flapping; nil: the line does not flap
	off     bool          // the device is powered off
	version string        // version of the agent
	next    chan agentRun
}

// An activeEvent is an effect that a script has started on a device.
type activeEvent struct {
	line       int
	verb, word string // word names the pods or the image; "": the device
	how        effect
}

// An agentRun describes the next run of the agent.
type agentRun struct {
	reboot bool
	down   time.Duration
}

func newDevice(ctx context.Context, o Options, n int, dir string) *device {
	d := &device{o: o, node: NodeName(o.Prefix, n), site: SiteName(n, o.Sites), memory: memory.Volatile(),
		journal: request.NewJournal(journalSize), version: agent.Version, next: make(chan agentRun, 1)}
	d.dir = filepath.Join(dir, d.node)
	d.board = boardOf(n, d.node)
	d.engine = newEngine(d.board, d.trouble)
	d.log = slog.New(slog.NewMultiHandler(quiet{o.Log.Handler()}, d.journal.Handler(slog.LevelInfo)))
	if o.Script != nil {
		d.line = newLine(d.dial, ctx.Done())
	}
	return d
}

// dial connects to the hub directly, without the simulated line.
func (d *device) dial(ctx context.Context) (net.Conn, error) {
	if d.o.Dial != nil {
		return d.o.Dial(ctx, d.node)
	}
	u, err := url.Parse(d.o.Hub)
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, "tcp", u.Host)
}

// run runs one agent after the other until ctx ends.
func (d *device) run(ctx context.Context) error {
	for ctx.Err() == nil {
		again, err := d.live(ctx)
		if err != nil {
			return err
		}
		if !again.reboot {
			continue
		}
		d.engine.PowerCut()
		select {
		case <-ctx.Done():
		case <-time.After(again.down):
		}
		d.board.boot()
		d.change(func() { d.off = false })
	}
	return nil
}

// live runs the agent until ctx ends, the device restarts, or the agent is updated.
func (d *device) live(ctx context.Context) (again agentRun, err error) {
	d.mu.Lock()
	version := d.version
	d.mu.Unlock()
	a, err := agent.New(agent.Config{
		Node: d.node, Memory: d.memory, Hardware: d.board, Log: d.log.With("node", d.node), Watch: d.board.watch,
		Uptime:     d.board.uptime,
		OpenEngine: func(context.Context) (engine.Engine, error) { return d.engine, nil },
		Policy:     plan.DefaultPolicy(),
		Registration: wire.Registration{Labels: map[string]string{
			"topology.kubernetes.io/zone": d.site, "flotilla.dev/simulated": "true",
		}},
		VolumesDir: d.dir,
		Dial:       answering,
		Journal:    d.journal,
	})
	if err != nil {
		return again, err
	}
	machine := fmt.Sprintf("%x", sha256.Sum256([]byte(d.node)))[:16]
	c := link.Config{Node: d.node, Machine: machine, Boot: ulid.Make().String(), AgentVersion: version, Server: d.o.Hub,
		Source: versioned{a, version}, Sink: a, Log: d.log}
	switch {
	case d.line != nil:
		c.Dial = d.line.connect
	case d.o.Dial != nil:
		c.Dial = d.dial
	}
	l, err := link.New(c)
	if err != nil {
		return again, err
	}
	a.SetHub(hub{l})
	agentCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- a.Run(agentCtx) }()
	linkCtx, unlink := context.WithCancel(ctx)
	defer unlink()
	watching, listened := make(chan struct{}), make(chan struct{})
	go func() { // wait for a restart or an update
		defer close(listened)
		select {
		case again = <-d.next:
			if !again.reboot {
				a.Shutdown("the agent has stopped; its containers keep running")
			}
			unlink()
		case <-watching:
		}
	}()
	select {
	case <-a.StatusKnown():
	case <-linkCtx.Done():
	}
	after := context.AfterFunc(ctx, func() { a.Shutdown("the simulation has ended") })
	defer after()
	err = l.Run(linkCtx)
	stop()
	close(watching)
	<-listened
	return again, errors.Join(err, <-done)
}

// versioned reports another version of the agent.
type versioned struct {
	*agent.Agent
	version string
}

// Status implements link.Source.
func (v versioned) Status() wire.Status {
	st := v.Agent.Status()
	own := agent.KubeletVersion()
	if i := &st.Status.NodeInfo; i.KubeletVersion == own {
		i.KubeletVersion = strings.TrimSuffix(own, agent.Version) + v.version
	}
	return st
}

// restart cuts the power for the time down.
func (d *device) restart(down time.Duration) {
	d.change(func() { d.off = true })
	d.line.drop()
	select {
	case d.next <- agentRun{reboot: true, down: down}:
	default: // the device is already restarting
	}
}

// update replaces the agent by another version; containers keep running.
func (d *device) update(version string) {
	d.mu.Lock()
	d.version = version
	d.mu.Unlock()
	select {
	case d.next <- agentRun{}:
	default: // the agent is already starting again
	}
}

// begin starts an effect.
func (d *device) begin(g activeEvent) {
	d.change(func() { d.going = append(d.going, g) })
	if g.verb != "crash" {
		return
	}
	list, err := d.engine.Containers(context.Background(), plan.LabelPodName)
	if err != nil {
		return // a fake engine cannot crash containers while it is off
	}
	for _, c := range list {
		if c.State == engine.Running && g.appliesTo(c.Labels) {
			d.engine.Crash(c.Name, g.how.lines(0), g.how.exit, g.how.oom)
		}
	}
}

// end ends the active effects for which the function returns true.
func (d *device) end(is func(activeEvent) bool) {
	d.change(func() { d.going = slices.DeleteFunc(d.going, is) })
}

// change changes the effects, then updates line and board.
func (d *device) change(what func()) {
	d.mu.Lock()
	what()
	how := map[string]effect{} // the newest effect of each verb counts
	for _, g := range d.going {
		how[g.verb] = g.how
	}
	_, silent := how["silence"]
	f, flaps := how["flap"]
	switch {
	case flaps && d.flapper == nil:
		d.flap(f)
	case !flaps && d.flapper != nil:
		d.flapper()
		d.flapper, d.flaps = nil, false
	}
	d.line.set(silent || d.off || d.flaps, how["slow"].rate, how["slow"].latency)
	state := boardState{low: how["undervoltage"].low, celsius: how["heat"].celsius, throttles: how["heat"].throttles}
	_, state.disk = how["disk"]
	_, state.memory = how["memory"]
	state.diskFree, state.memoryFree = how["disk"].free, how["memory"].free
	d.mu.Unlock()
	d.board.setState(state)
}

// flap alternately cuts and restores the line. The caller holds d.mu.
func (d *device) flap(how effect) {
	over := make(chan struct{})
	d.flapper, d.flaps = func() { close(over) }, true
	go func() {
		for pause := how.down; ; pause = how.down + how.up - pause {
			select {
			case <-over:
				return
			case <-d.line.over:
				return
			case <-time.After(pause):
			}
			d.change(func() {
				select {
				case <-over:
				default:
					d.flaps = !d.flaps
				}
			})
		}
	}()
}

// appliesTo reports whether a crash applies to a container: the event names its pod or its workload.
func (g activeEvent) appliesTo(labels map[string]string) bool {
	name := labels[plan.LabelPodName]
	return labels[plan.LabelContainer] != "" && (name == g.word || strings.HasPrefix(name, g.word+"-"))
}

// lines returns a container's output before its crash.
func (e effect) lines(until time.Duration) (out []enginetest.Line) {
	for _, text := range e.log {
		out = append(out, enginetest.Line{After: until, Stderr: true, Text: text})
	}
	return out
}

// trouble returns the fault of a container, or of the pull of an image.
func (d *device) trouble(verb string, is func(activeEvent) bool) (effect, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range slices.Backward(d.going) {
		if g.verb == verb && is(g) {
			return g.how, true
		}
	}
	return effect{}, false
}

// A stocked engine has every image, unless a script sets otherwise.
type stocked struct {
	*enginetest.Fake
	trouble func(verb string, is func(activeEvent) bool) (effect, bool)
}

// Pull implements engine.Engine. The error for a missing image is Docker's.
func (s *stocked) Pull(ctx context.Context, ref string, auth *engine.RegistryAuth,
	progress func(engine.Progress)) error {
	if how, missing := s.trouble("missing", func(g activeEvent) bool { return g.word == ref }); missing {
		unknown := "manifest for " + ref + " not found: manifest unknown: manifest unknown"
		if how.says != "" {
			return fmt.Errorf("pull image %s: %s", ref, how.says)
		}
		return fmt.Errorf("pull image %s: %w: %s", ref, engine.ErrNotFound, unknown)
	}
	s.OfferImage(ref, enginetest.Offer{Size: 5 << 20, Program: s.program})
	return s.Fake.Pull(ctx, ref, auth, progress)
}

// stopTakes is how long a simulated program takes to stop, so that users see a changed pod
// terminate.
const stopTakes = 500 * time.Millisecond

// program returns how every simulated container behaves: it prints a line and waits, or crashes.
// Every port is open, and commands can run in it.
func (s *stocked) program(spec engine.Spec, run int) enginetest.Play {
	p := enginetest.Play{
		StopTakes:   stopTakes,
		Lines:       []enginetest.Line{{Text: fmt.Sprintf("simulated %s, start %d", spec.Name, run+1)}},
		MemoryBytes: 8 << 20, MilliCPU: 5,
		Exec: newShell(spec).exec, Dial: enginetest.Answering(""),
	}
	if how, crashes := s.trouble("crash", func(g activeEvent) bool { return g.appliesTo(spec.Labels) }); crashes {
		p.Lines = append(p.Lines, how.lines(how.after)...)
		p.Exits, p.ExitAfter, p.ExitCode, p.OOM = true, cmp.Or(how.after, time.Millisecond), how.exit, how.oom
	}
	return p
}
