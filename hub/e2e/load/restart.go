package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/e2e/harness"
	"flotilla.dev/shared/line"
)

const grace = 40 * time.Second // value of --node-monitor-grace-period

// measureReturn is the second table of `make bench-fleet`. The hub is killed and restarted, and
// later half of the fleet falls silent at once.
func measureReturn(ctx context.Context, hub string, nodes int, listeners []bool, out io.Writer) error {
	work, hub, err := prepare(ctx, "return", hub)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	fmt.Fprintf(out, "| Listener | Nodes | Up again after | All leased after | Computed by the hub | by the devices "+
		"| Ever not Ready | Silent at once | Unknown, tainted and remembered after their deadline "+
		"|\n|---|---|---|---|---|---|---|---|---|\n")
	for _, secure := range listeners {
		r, err := returns(ctx, hub, filepath.Join(work, fmt.Sprint(secure)), nodes, secure)
		if err != nil {
			return fmt.Errorf("%d nodes that return: %w", nodes, err)
		}
		tenths := func(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }
		fmt.Fprintf(out, "| %s | %d | %s | %s | %s | %s | %d | %d | %s |\n", listenerName(secure), nodes, tenths(r.up),
			tenths(r.leased), tenths(r.hub), tenths(r.devices), r.unready, r.silent, r.late.Round(10*time.Millisecond))
	}
	return nil
}

// A returnResult is the result for one fleet.
type returnResult struct {
	up, leased   time.Duration // time since the kill
	hub, devices time.Duration // processor time until all leases were renewed; hub and devices share a machine
	unready      int           // nodes that were not Ready at any time within a grace period
	silent       int
	late         time.Duration // time after the deadline of the last silent node
}

func returns(ctx context.Context, hub, dir string, n int, secure bool) (c returnResult, err error) {
	a, err := harness.New(ctx, hub, dir, 0)
	if err != nil {
		return c, err
	}
	defer a.Close()
	processes, err := startDevices(ctx, a, n, secure)
	defer func() { endAll(processes) }()
	if err != nil {
		return c, err
	}
	if err := warm(processes); err != nil {
		return c, err
	}
	time.Sleep(1100 * time.Millisecond) // conditions store whole seconds

	killed, back := time.Now(), make(chan error, 1)
	go func() { back <- order(processes, "return") }()
	a.Kill()
	before, devices := a.CPU(), cpuOfAll(processes)
	if err := a.Start(ctx); err != nil {
		return c, err
	}
	up := time.Now()
	if err := <-back; err != nil {
		return c, err
	}
	c.up, c.leased, c.hub, c.devices = up.Sub(killed), time.Since(killed), a.CPU()-before, cpuOfAll(processes)-devices
	// A node whose lease missed its deadline is or was not Ready.
	if err := order(processes, fmt.Sprintf("pace %d",
		int((time.Until(up.Add(grace))+5*time.Second).Seconds()))); err != nil {
		return c, err
	}
	if c.unready, err = unreadySince(ctx, a, n, killed); err != nil {
		return c, err
	}

	if err := order(processes, "renew"); err != nil { // for half of the devices this is the last renewal
		return c, err
	}
	deadline := time.Now().Add(grace)
	go func() { back <- order(processes, fmt.Sprintf("half %d", int((grace+10*time.Second).Seconds()))) }()
	c.silent = half(n)
	time.Sleep(time.Until(deadline.Add(-5 * time.Second)))
	for {
		text, err := a.Get(ctx, "/metrics")
		if err != nil {
			return c, err
		}
		now := time.Now()
		not := int(sumOf(text, `flotilla_nodes{`, `state="not-ready"`))
		switch {
		case not > c.silent:
			return c, fmt.Errorf("%d nodes are not Ready, though only %d are silent", not, c.silent)
		case not == c.silent:
			c.late = max(0, now.Sub(deadline))
			return c, errors.Join(tainted(ctx, a, c.silent), <-back)
		case now.After(deadline.Add(time.Minute)):
			return c, fmt.Errorf("%d of %d silent nodes are not Ready a minute after their deadline", not, c.silent)
		}
		time.Sleep(100 * time.Millisecond) // each request costs the hub a hundredth of a second
	}
}

// renewAll lets each device renew its lease once, and waits until the hub has received all of them.
func renewAll(ctx context.Context, crew []*mqttClient) error {
	for _, s := range crew {
		select {
		case <-s.ponged: // drop the response to an earlier ping
		default:
		}
		if err := s.renew("along"); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, s := range crew {
		select {
		case <-s.ponged: // the hub has received all packets before the ping
		case <-ctx.Done():
			return fmt.Errorf("%s: no answer to a ping within a minute", s.ID.Node)
		}
	}
	return nil
}

// half returns the number of devices that fall silent: every second device of each process.
func half(n int) (silent int) {
	for from := 0; from < n; from += perProcess {
		silent += min(n-from, perProcess) / 2
	}
	return silent
}

// unreadySince counts the nodes that were not Ready at any time since then.
func unreadySince(ctx context.Context, a *harness.Hub, n int, then time.Time) (count int, err error) {
	list, err := a.Nodes(ctx)
	if err != nil {
		return 0, err
	}
	if len(list.Items) != n {
		return 0, fmt.Errorf("the hub has %d nodes, want %d", len(list.Items), n)
	}
	for _, node := range list.Items {
		steady := false
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				steady = c.Status == corev1.ConditionTrue && c.LastTransitionTime.Time.Before(then)
			}
		}
		if !steady {
			count++
		}
	}
	return count, nil
}

// tainted returns nil when this number of nodes has the unreachable taint.
func tainted(ctx context.Context, a *harness.Hub, want int) error {
	list, err := a.Nodes(ctx)
	if err != nil {
		return err
	}
	have := 0
	for _, node := range list.Items {
		for _, t := range node.Spec.Taints {
			if t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoSchedule {
				have++
			}
		}
	}
	if have != want {
		return fmt.Errorf("%d nodes are tainted as unreachable, want %d", have, want)
	}
	return nil
}

// comeBack reconnects repeatedly like an agent. It begins after the connection is lost, and ends
// when the hub has the device's status and a lease.
func (s *mqttClient) comeBack(ctx context.Context, site int) error {
	var last error
	<-s.lost
	for try := 0; try < 60; try++ {
		harness.Pause(ctx, line.Pause(try, line.MaxPause))
		if ctx.Err() != nil {
			break
		}
		_ = s.conn.Close()
		if last = s.register(ctx, site); last != nil {
			continue
		}
		if last = s.renew("along"); last != nil {
			continue
		}
		select {
		case <-s.ponged: // the hub has received all packets before the ping
			return nil
		case <-s.lost:
			last = errors.New("the connection is lost again")
		case <-time.After(time.Minute):
			last = errors.New("no answer to a ping within a minute")
		}
	}
	return errors.Join(fmt.Errorf("%s has not reconnected", s.ID.Node), last, ctx.Err())
}

// listenerName returns a listener's name for the tables.
func listenerName(secure bool) string {
	if secure {
		return "TLS"
	}
	return "plain"
}
