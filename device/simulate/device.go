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

// A device is a simulated one: its board, its engine and what it remembers outlive the agent.
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
	line    *line // nil: nothing happens to it

	mu      sync.Mutex
	going   []going // what a script has begun here, the oldest first
	flaps   bool    // its line is cut by flapping now
	flapper func()  // stops the flapping; nil: it does not flap
	off     bool    // it has no power
	version string  // of its agent
	next    chan life
}

// A going is what a script has begun on a device.
type going struct {
	line       int
	verb, word string // word: the pods or the image; "": the device
	how        effect
}

// A life is how an agent's next life begins.
type life struct {
	reboot bool
	down   time.Duration
}

func newDevice(ctx context.Context, o Options, n int, dir string) *device {
	d := &device{o: o, node: NodeName(o.Prefix, n), site: SiteName(n, o.Sites), memory: memory.Volatile(),
		journal: request.NewJournal(journalSize), version: agent.Version, next: make(chan life, 1)}
	d.dir = filepath.Join(dir, d.node)
	d.board = boardOf(n, d.node)
	d.engine = newEngine(d.board, d.trouble)
	d.log = slog.New(slog.NewMultiHandler(quiet{o.Log.Handler()}, d.journal.Handler(slog.LevelInfo)))
	if o.Script != nil {
		d.line = newLine(d.dial, ctx.Done())
	}
	return d
}

// dial opens a connection to the hub over a line to which nothing happens.
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

// live is the life of one agent: until ctx ends, or the device is restarted or the agent updated.
func (d *device) live(ctx context.Context) (again life, err error) {
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
	watching, heard := make(chan struct{}), make(chan struct{})
	go func() { // for what ends this life
		defer close(heard)
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
	<-heard
	return again, errors.Join(err, <-done)
}

// versioned is an agent of another version.
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

// restart cuts the power, and gives it back after a while.
func (d *device) restart(down time.Duration) {
	d.change(func() { d.off = true })
	d.line.drop()
	select {
	case d.next <- life{reboot: true, down: down}:
	default: // it restarts
	}
}

// update lets another version of the agent take over; containers go on.
func (d *device) update(version string) {
	d.mu.Lock()
	d.version = version
	d.mu.Unlock()
	select {
	case d.next <- life{}:
	default: // it begins anyway
	}
}

// begin lets something happen until it is ended.
func (d *device) begin(g going) {
	d.change(func() { d.going = append(d.going, g) })
	if g.verb != "crash" {
		return
	}
	list, err := d.engine.Containers(context.Background(), plan.LabelPodName)
	if err != nil {
		return // a fake that is switched off runs nothing
	}
	for _, c := range list {
		if c.State == engine.Running && g.means(c.Labels) {
			d.engine.Crash(c.Name, g.how.lines(0), g.how.exit, g.how.oom)
		}
	}
}

// end ends what has begun here and is meant.
func (d *device) end(is func(going) bool) {
	d.change(func() { d.going = slices.DeleteFunc(d.going, is) })
}

// change changes what goes on, and lets line and board follow.
func (d *device) change(what func()) {
	d.mu.Lock()
	what()
	how := map[string]effect{} // the newest of each verb
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
	fares := fares{low: how["undervoltage"].low, celsius: how["heat"].celsius, throttles: how["heat"].throttles}
	_, fares.disk = how["disk"]
	_, fares.memory = how["memory"]
	fares.diskFree, fares.memoryFree = how["disk"].free, how["memory"].free
	d.mu.Unlock()
	d.board.fare(fares)
}

// flap cuts the line and mends it again and again; d.mu is held.
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

// means tells whether a crash is that of a container: what says the pod's name, or that of
// the workload that it is of.
func (g going) means(labels map[string]string) bool {
	name := labels[plan.LabelPodName]
	return labels[plan.LabelContainer] != "" && (name == g.word || strings.HasPrefix(name, g.word+"-"))
}

// lines are what a container says until it crashes.
func (e effect) lines(until time.Duration) (out []enginetest.Line) {
	for _, text := range e.log {
		out = append(out, enginetest.Line{After: until, Stderr: true, Text: text})
	}
	return out
}

// trouble is what goes wrong with a container, or with the pull of an image.
func (d *device) trouble(verb string, is func(going) bool) (effect, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, g := range slices.Backward(d.going) {
		if g.verb == verb && is(g) {
			return g.how, true
		}
	}
	return effect{}, false
}

// A stocked engine has every image that is asked for, unless a script says otherwise.
type stocked struct {
	*enginetest.Fake
	trouble func(verb string, is func(going) bool) (effect, bool)
}

// Pull implements engine.Engine. An image that is missing is said to be in the words in
// which Docker says it.
func (s *stocked) Pull(ctx context.Context, ref string, auth *engine.RegistryAuth, told func(engine.Progress)) error {
	if how, missing := s.trouble("missing", func(g going) bool { return g.word == ref }); missing {
		unknown := "manifest for " + ref + " not found: manifest unknown: manifest unknown"
		if how.says != "" {
			return fmt.Errorf("pull image %s: %s", ref, how.says)
		}
		return fmt.Errorf("pull image %s: %w: %s", ref, engine.ErrNotFound, unknown)
	}
	s.OfferImage(ref, enginetest.Offer{Size: 5 << 20, Program: s.program})
	return s.Fake.Pull(ctx, ref, auth, told)
}

// stopTakes is how long a simulated program takes to end when it is told to. One that ended at once
// would be gone before anybody who changes a pod can look at it.
const stopTakes = 500 * time.Millisecond

// program is what every simulated container does: it says hello and waits, or crashes. Every
// port of it is open, and commands can be run in it.
func (s *stocked) program(spec engine.Spec, run int) enginetest.Play {
	p := enginetest.Play{
		StopTakes:   stopTakes,
		Lines:       []enginetest.Line{{Text: fmt.Sprintf("simulated %s, start %d", spec.Name, run+1)}},
		MemoryBytes: 8 << 20, MilliCPU: 5,
		Exec: newShell(spec).exec, Dial: enginetest.Answering(""),
	}
	if how, crashes := s.trouble("crash", func(g going) bool { return g.means(spec.Labels) }); crashes {
		p.Lines = append(p.Lines, how.lines(how.after)...)
		p.Exits, p.ExitAfter, p.ExitCode, p.OOM = true, cmp.Or(how.after, time.Millisecond), how.exit, how.oom
	}
	return p
}
