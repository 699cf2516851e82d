package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/address"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/hub/workload"
)

// serve is the hub from start to end: what it is made of, in order, and what ends
// when ctx does. Listeners come first: a port that is in use must not have
// changed anything.
func serve(ctx context.Context, cfg config.Config, log *slog.Logger, out io.Writer) error {
	doors, err := listen(cfg)
	if err != nil {
		return err
	}
	defer doors.close()

	st, err := store.Open(ctx, store.Options{Dir: cfg.DataDir, Version: version, Log: log})
	if err != nil {
		return err
	}
	defer st.Close()
	if r, err := st.Recovered(ctx); err != nil {
		return err
	} else if r != nil {
		log.Warn("the database was replaced: devices with a newer desired state keep it until `flotilla-hub resume`", "why", fmt.Sprintf("%+v", *r))
	}
	authority, err := pki.Open(filepath.Join(cfg.DataDir, "pki"))
	if err != nil {
		return err
	}
	server, err := authority.NewServer(func() []string { return pki.LocalNames(cfg.AdvertiseAddress) }, log)
	if err != nil {
		return err
	}

	start, err := recall(ctx, st, time.Now())
	if err != nil {
		return err
	}
	start = notBefore(start)
	pauses, err := st.Begin(ctx, start.Started)
	if err != nil {
		log.Warn("timelines do not show when the hub did not run", "err", err)
	}
	loop, desk := newLoop(cfg, start, memory{st}, log)

	guard := access.New(access.Options{
		Store: st, Authority: authority, Log: log, Enroller: enroller{loop}, Hub: start.Salt,
		MQTT: mqttAddress(cfg, doors.mqtt.Addr()), LeaseInterval: cfg.LeaseInterval,
	})
	devices := authority.MQTT(server, func(h pki.Holder) error { return guard.May(context.Background(), h) })
	devices.ClientAuth = tls.RequireAndVerifyClientCert // the broker insists: the library's own check, and the authority's after it
	mqtt, err := broker.New(broker.Config{
		Door: &door{Loop: loop, desk: desk, log: log}, Log: log, Listen: doors.mqtt, DevListen: doors.dev,
		TLS: devices,
	})
	if err != nil {
		return err
	}
	loop.Broker, desk.Broker = mqtt, mqtt
	inventory := machines(cfg, loop, log)
	front := &front{inventory: inventory, cfg: cfg, loop: loop, desk: desk, guard: guard, broker: mqtt, store: st, authority: authority, server: server, pauses: pauses, log: log}
	page := front.page(doors.https.Addr())
	web := front.handlers(page)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return loop.Run(ctx) })
	if _, err := loop.Do(ctx, furnish(log)); err != nil {
		return errors.Join(fmt.Errorf("furnish the fleet: %w", err), g.Wait())
	}
	g.Go(func() error { return mqtt.Run(ctx) })
	g.Go(func() error { return runWeb(ctx, web, doors.https) })
	g.Go(func() error { return front.kubernetes().Run(ctx) })
	g.Go(func() error { return page.Run(ctx) })
	g.Go(func() error { return st.RunBackups(ctx) })
	if inventory != nil {
		g.Go(func() error { return inventory.Run(ctx) })
	}
	g.Go(func() error { return giveBack(ctx) })
	g.Go(func() error { return runSocket(ctx, filepath.Join(cfg.DataDir, socketName), orders{loop, st}) })
	g.Go(func() error { return expelDeleted(ctx, loop, guard, mqtt, log) })
	g.Go(func() error { return tellSystemd(ctx, loop, log) })
	if err := front.greet(ctx, out, doors.https.Addr()); err != nil {
		log.Warn("make the setup link", "err", err)
	}
	log.Info("hub is up", "version", version, "https", doors.https.Addr().String(), "mqtt", doors.mqtt.Addr().String(), "data", cfg.DataDir, "nodes", start.Len(state.Nodes), "pods", start.Len(state.Pods))
	err = g.Wait()
	if err := st.End(context.WithoutCancel(ctx), loop.Now()); err != nil {
		log.Warn("the next timelines take the hub's last write for its end", "err", err)
	}
	log.Info("hub is down")
	return err
}

// newLoop makes the loop with every decider in its order.
func newLoop(cfg config.Config, start state.Snapshot, st control.Store, log *slog.Logger) (*control.Loop, *ask.Desk) {
	settings := admissionSettings(cfg)
	admit := func(p *corev1.Pod) { admission.DefaultPod(p, settings) }
	loop := control.New(control.Config{
		Store: st, Log: log, Start: start, LeaseInterval: cfg.LeaseInterval, Grace: cfg.NodeMonitorGracePeriod,
		Profile: profileOf, Manual: !cfg.RegisterNode,
		Deciders: []control.Decider{
			lifecycle.Decider{Settings: lifecycle.Settings{
				Grace: cfg.NodeMonitorGracePeriod, StartupGrace: cfg.NodeStartupGracePeriod,
				Rate: cfg.NodeEvictionRate, SecondaryRate: cfg.SecondaryNodeEvictionRate,
				Unhealthy: cfg.UnhealthyZoneThreshold, LargeSite: cfg.LargeClusterSizeThreshold, Policy: cfg.SiteDisruptionPolicy,
			}},
			blocks(cfg),
			eviction.Decider{Grace: cfg.NodeMonitorGracePeriod},
			workload.Decider{Admit: admit, FinishedPods: cfg.TerminatedPodGCThreshold},
			schedule.Decider{},
		},
		Deliver: control.Deliver{},
	})
	return loop, &ask.Desk{}
}

// blocks decides on the nodes' addresses, where the hub gives them any.
func blocks(cfg config.Config) (d address.Decider) {
	if cfg.AllocateNodeCIDRs {
		d = address.Decider{Cluster: cfg.ClusterCIDR, Bits: cfg.NodeCIDRMaskSize}
	}
	return d
}

func admissionSettings(cfg config.Config) admission.Settings {
	return admission.Settings{
		NotReadySeconds: cfg.DefaultNotReadyTolerationSeconds, UnreachableSeconds: cfg.DefaultUnreachableTolerationSeconds,
		AllowPrivileged: cfg.AllowPrivileged, AllowHostNetwork: cfg.AllowHostNetwork, AllowHostPID: cfg.AllowHostPID,
		AllowedCapabilities: cfg.AllowedCapabilities, HostPathPrefixes: cfg.HostPathPrefixes, LeaseInterval: cfg.LeaseInterval,
	}
}

// notBefore makes the hub's time begin no earlier than the newest thing that it
// remembers: a gateway box without a clock battery starts in the past, and what
// was decided must not lie in the future.
func notBefore(s state.Snapshot) state.Snapshot {
	newest := s.Started
	for e := range state.Each[*corev1.Event](s, state.Events, "") {
		if e.LastTimestamp.After(newest) {
			newest = e.LastTimestamp.Time
		}
	}
	for n := range s.Nodes() {
		for _, c := range n.Status.Conditions {
			if c.LastTransitionTime.After(newest) {
				newest = c.LastTransitionTime.Time
			}
		}
	}
	if newest.After(s.Started) {
		s.Started = s.Started.Add(newest.Sub(s.Started))
		s = s.Forgive(s.Started)
	}
	return s
}

// A doorway is every listener of the hub.
type doorway struct{ https, mqtt, dev net.Listener }

func (d doorway) close() {
	for _, l := range []net.Listener{d.https, d.mqtt, d.dev} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// listen opens every listener, or none.
func listen(cfg config.Config) (d doorway, err error) {
	for _, each := range []struct {
		to         *net.Listener
		flag, addr string
	}{{&d.https, "https-listen", cfg.HTTPSListen}, {&d.mqtt, "mqtt-listen", cfg.MQTTListen}, {&d.dev, "mqtt-dev-listen", cfg.MQTTDevListen}} {
		if each.addr == "" {
			continue
		}
		l, err := net.Listen("tcp", each.addr)
		if err != nil {
			d.close()
			return doorway{}, fmt.Errorf("listen on --%s %s: %w; end the program that uses it, or choose another address", each.flag, each.addr, reason(err))
		}
		*each.to = l
	}
	return d, nil
}

// reason is the cause of a network error without what the sentence says already.
func reason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// mqttAddress is what devices are told when they join: without a host they use
// the one that they joined through.
func mqttAddress(cfg config.Config, a net.Addr) string {
	host, _, _ := net.SplitHostPort(cfg.MQTTListen)
	_, port, _ := net.SplitHostPort(a.String())
	if cfg.AdvertiseAddress != "" {
		host = cfg.AdvertiseAddress
	} else if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = ""
	}
	return net.JoinHostPort(host, port)
}
