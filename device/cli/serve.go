package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/join"
	"flotilla.dev/device/link"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/upgrade"
	"flotilla.dev/shared/wire"
)

// serve runs the agent, the link and the local sockets until ctx ends. Then it publishes that the
// device stops on purpose. The workloads keep running.
func serve(ctx context.Context, a *agent.Agent, m *memory.Memory, p prepared, log *slog.Logger) error {
	var g errgroup.Group
	ctx, restart := context.WithCancelCause(ctx)
	defer restart(nil)
	agentCtx, stopAgent := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAgent()
	g.Go(func() error { return a.Run(agentCtx) })
	beat := watch(agentCtx, a, stuckAfter, log)
	defer beat()
	var l *link.Link
	if p.server != "" {
		renew := make(chan struct{}, 1)
		var err error
		if l, err = newLink(agentCtx, a, m, p, renew, &g, log); err != nil {
			stopAgent()
			_ = g.Wait() // err is the cause
			return err
		}
		a.SetHub(aHub{l})
		if p.ended != nil { // the enrolment ended before this process started
			p.leave(*p.ended, a, l, log)
		}
	}
	up, err := upgrader(p.upgrade, p, a, m, l, log)
	if err != nil {
		stopAgent()
		return errors.Join(err, g.Wait())
	}
	g.Go(func() error { return runUpgrader(agentCtx, up, restart) })
	if p.helper != "" {
		g.Go(func() error { return bootRunner(p.helper, p, a, m, isOnline(l), log).Run(agentCtx) })
	}
	if p.images != nil {
		g.Go(func() error { return p.images.Run(agentCtx, p.mirror) })
		g.Go(func() error { return p.images.RunPeers(agentCtx) })
	}
	if p.grace.total > 0 {
		g.Go(func() error { return inhibit(agentCtx, a, p.grace, log) })
	}
	g.Go(func() error { return serveStatus(agentCtx, p, a, l, log) })
	g.Go(func() error { return serveLog(agentCtx, p.stateDir, p.journal, log) })
	select { // the first status needs the engine's answer
	case <-a.StatusKnown():
	case <-time.After(10 * time.Second): // the engine is slow
	case <-ctx.Done():
	}
	notify("READY=1")
	g.Go(func() error { return releaseMemory(agentCtx) })
	log.Info("the agent runs", "version", agent.Version, "hub", p.server)
	if l != nil {
		linkCtx, stopLink := context.WithCancel(context.WithoutCancel(ctx))
		defer stopLink()
		stop := context.AfterFunc(ctx, func() {
			if !errors.Is(context.Cause(ctx), upgrade.ErrRestart) { // it is back in a moment
				a.Shutdown("the agent has stopped; its containers keep running")
			}
			stopLink()
		})
		defer stop()
		if err := l.Run(linkCtx); err != nil {
			stopAgent()
			return errors.Join(err, g.Wait())
		}
	}
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), upgrade.ErrRestart) {
		notify("STOPPING=1")
	}
	stopAgent()
	return g.Wait()
}

// newLink creates the link and renews its certificate.
func newLink(ctx context.Context, a *agent.Agent, m *memory.Memory, p prepared, renew chan struct{}, g *errgroup.Group,
	log *slog.Logger) (*link.Link, error) {
	c := link.Config{
		Node: p.node, Machine: p.machine, Boot: rand.Text(), AgentVersion: agent.Version, Server: p.server,
		LeaseInterval: p.lease, StatusInterval: p.status, Source: a, Sink: sink{a, nil}, Log: log,
	}
	if p.identity == nil {
		return link.New(c)
	}
	last, _ := m.Desired()
	conf, err := p.identity.TLS(last.Time)
	if err != nil {
		return nil, usagef("use the identity of this device: %w; join again", err)
	}
	var live join.Live
	live.Store(p.identity)
	live.Follow(conf, last.Time)
	c.TLS, c.Sink = conf, sink{a, renew}
	c.External, c.Prefix = p.identity.External, p.identity.Prefix
	c.Prove = func(boot string) *wire.Proof { return live.Load().Prove(boot) }
	var l *link.Link
	ready := make(chan struct{})
	ended := func(d wire.Dismissed) {
		<-ready
		p.leave(dismissed{Dismissed: d}, a, l, log)
	}
	c.Dismissed = ended
	o := join.Options{StateDir: p.stateDir, AgentVersion: agent.Version, LastKnown: last.Time, Log: log, Node: p.node,
		Asked: renew, Dismissed: ended}
	changed := func(id join.Identity) {
		live.Store(&id)
		if <-ready; l != nil {
			if err := l.SetServer(id.Server(), id.External); err != nil {
				log.Error("cannot use the hub's new addresses", "err", err)
			}
		}
		leaf, err := id.Leaf()
		if err != nil {
			log.Error("cannot use the renewed certificate", "err", err)
			return
		}
		log.Info("the certificate was renewed", "until", leaf.NotAfter)
	}
	identity := *p.identity
	g.Go(func() error { return join.Run(ctx, identity, o, changed) })
	l, err = link.New(c)
	close(ready)
	if err == nil {
		g.Go(func() error { return askForAddresses(ctx, func() bool { return isOnline(l)() && !l.Unheard() }, renew) })
	}
	return l, err
}
