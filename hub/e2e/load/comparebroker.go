package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"flotilla.dev/hub/e2e/harness"
	"flotilla.dev/shared/wire"
)

// Sizes of the measurements of `make bench-broker`.
const (
	satNodes   = 2000 // devices at full speed, so many that each stays below its node's limit
	satFor     = 10 * time.Second
	leaseTopic = `flotilla_mqtt_messages_total{channel="lease"}`
)

// compareBroker is `make bench-broker`. First it compares the cost of a lease at the hub, and at
// Mosquitto with a consumer in Go, with equal devices at an equal pace. Then it compares both at
// full speed. Last it measures a leader behind a broker with a million devices.
func compareBroker(ctx context.Context, hub string, nodes int, paced time.Duration, out io.Writer) error {
	work, hub, err := prepare(ctx, "broker", hub)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	a, err := harness.New(ctx, hub, filepath.Join(work, "hub"), 0)
	if err != nil {
		return err
	}
	own, err := lease(ctx, a, nodes, paced)
	a.Close()
	if err != nil {
		return fmt.Errorf("the hub, %d nodes: %w", nodes, err)
	}
	other, err := pacedBroker(ctx, work, nodes, paced)
	if err != nil {
		return fmt.Errorf("the broker, %d nodes: %w", nodes, err)
	}
	us := func(d time.Duration) string { return fmt.Sprintf("%.0f µs", float64(d.Nanoseconds())/1e3) }
	fmt.Fprintf(out, "%d nodes renew their lease every %s, each with a ping, for %s:\n\n", nodes, leaseEvery, paced)
	fmt.Fprintf(out,
		"| | broker, a lease | consumer, a lease | together | of Mosquitto and consumer |\n|---|---|---|---|---|\n")
	fmt.Fprintf(out, "| the hub | in one | in one | %s | %.2f |\n", us(own), float64(own)/float64(other[0]+other[1]))
	fmt.Fprintf(out, "| Mosquitto, and a consumer (paho) with the hub's table of leases | %s | %s | %s | 1 |\n\n",
		us(other[0]), us(other[1]), us(other[0]+other[1]))

	mine, err := saturatedHub(ctx, hub, work)
	if err != nil {
		return fmt.Errorf("the hub, saturated: %w", err)
	}
	theirs, err := saturatedBroker(ctx, work)
	if err != nil {
		return fmt.Errorf("the broker, saturated: %w", err)
	}
	fmt.Fprintf(out,
		"%d devices send leases as fast as possible, for %s; devices and brokers share the processors:\n\n", satNodes,
		satFor)
	fmt.Fprintf(out, "| | leases a second | processor time of the broker, a lease | of Mosquitto |\n|---|---|---|---|\n")
	fmt.Fprintf(out, "| the hub, with its table of leases | %.0f | %s | %.2f |\n", mine.rate, us(mine.each),
		mine.rate/theirs.rate)
	fmt.Fprintf(out, "| Mosquitto, to one subscriber that only counts | %.0f | %s | 1 |\n\n", theirs.rate, us(theirs.each))
	return behindBroker(ctx, work, out)
}

// lease measures the cost of a lease at the hub, at a constant pace.
func lease(ctx context.Context, a *harness.Hub, nodes int, paced time.Duration) (time.Duration, error) {
	processes, err := processesFor(nodes, "-fleet-devices", a.Dev)
	defer endAll(processes)
	if err != nil {
		return 0, err
	}
	if err := warm(processes); err != nil {
		return 0, err
	}
	text, err := a.Get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	received, before := metric(text, leaseTopic), a.CPU()
	if err := order(processes, fmt.Sprintf("pace %d", int(paced.Seconds()))); err != nil {
		return 0, err
	}
	used := a.CPU() - before
	if text, err = a.Get(ctx, "/metrics"); err != nil {
		return 0, err
	}
	return used / time.Duration(max(1, metric(text, leaseTopic)-received)), nil
}

// warm registers the processes' devices, and waits until the work after that is done. Only some
// register at a time, because Mosquitto's backlog has a hundred connections and the kernel resets
// others.
func warm(processes []*deviceProcess) error {
	for _, what := range []string{"join", fmt.Sprintf("connect %d", max(1, 64/max(1, len(processes)))),
		fmt.Sprintf("pace %d", int(leaseEvery.Seconds()))} {
		if err := order(processes, what); err != nil {
			return err
		}
	}
	return nil
}

// processesFor starts the processes for a number of nodes.
func processesFor(nodes int, args ...string) (processes []*deviceProcess, err error) {
	for from := 0; from < nodes; from += perProcess {
		k, err := newDeviceProcess(from, min(nodes, from+perProcess), args...)
		if err != nil {
			return processes, err
		}
		processes = append(processes, k)
	}
	return processes, nil
}

func newDeviceProcess(from, to int, args ...string) (*deviceProcess, error) {
	return newCrew(append(slices.Clip(args), "-fleet-from", fmt.Sprint(from), "-fleet-to", fmt.Sprint(to))...)
}

func endAll(processes []*deviceProcess) {
	for _, k := range processes {
		k.end()
	}
}

// A mosquitto is a running Mosquitto.
type mosquitto struct {
	cmd    *exec.Cmd
	addr   string
	output harness.OutputBuffer
}

// newMosquitto starts Mosquitto with its defaults, but without a limit of queued messages.
func newMosquitto(ctx context.Context, dir string) (*mosquitto, error) {
	program, err := exec.LookPath("mosquitto")
	if err != nil {
		program = "/usr/sbin/mosquitto" // not in every user's PATH
	}
	m := new(mosquitto)
	if err := harness.FreeAddresses(&m.addr); err != nil {
		return nil, err
	}
	_, port, _ := strings.Cut(m.addr, ":")
	conf := filepath.Join(dir, "mosquitto-"+port+".conf")
	text := fmt.Sprintf(
		"listener %s 127.0.0.1\nallow_anonymous true\npersistence false\nlog_type none\nmax_queued_messages 0\n", port)
	if os.Getuid() == 0 {
		text += "user root\n" // Mosquitto's own user could not read a directory of root
	}
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	m.cmd = exec.Command(program, "-c", conf)
	m.cmd.Stderr = &m.output
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start Mosquitto: %w; on Debian: apt install mosquitto", err)
	}
	err = harness.Until(ctx, 10*time.Second, "Mosquitto", func() (bool, error) {
		k, err := newBare(m.addr)
		if err == nil {
			_ = k.Close()
		}
		return err == nil, err
	})
	if err != nil {
		m.end()
		return nil, fmt.Errorf("%w: %s", err, m.output.String())
	}
	return m, nil
}

func (m *mosquitto) cpu() time.Duration { return harness.CPUOf(m.cmd.Process.Pid) }

func (m *mosquitto) end() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// pacedBroker measures the cost of a lease at Mosquitto and its consumer, at a constant pace.
func pacedBroker(ctx context.Context, dir string, nodes int, paced time.Duration) (each [2]time.Duration, err error) {
	m, err := newMosquitto(ctx, dir)
	if err != nil {
		return each, err
	}
	defer m.end()
	k, err := newConsumer(m.addr, "paho", "1")
	if err != nil {
		return each, err
	}
	defer k.end()
	processes, err := processesFor(nodes, "-fleet-devices", m.addr)
	defer endAll(processes)
	if err != nil {
		return each, err
	}
	if err := warm(processes); err != nil {
		return each, err
	}
	received, err := k.count()
	if err != nil {
		return each, err
	}
	before, consumed := m.cpu(), k.cpu()
	if err := order(processes, fmt.Sprintf("pace %d", int(paced.Seconds()))); err != nil {
		return each, err
	}
	used := [2]time.Duration{m.cpu() - before, k.cpu() - consumed}
	now, err := k.count()
	if now-received < nodes*int(paced/leaseEvery)*9/10 {
		return each, errors.Join(fmt.Errorf("the consumer received %d leases of %d nodes", now-received, nodes), err)
	}
	for i := range each {
		each[i] = used[i] / time.Duration(now-received)
	}
	return each, nil
}

// A throughput is the number of leases that a broker delivers at full speed, and their cost.
type throughput struct {
	rate float64 // leases per second
	each time.Duration
}

// saturate lets devices send at full speed, and measures the middle of that time.
func saturate(processes []*deviceProcess, received func() (int, error),
	cpu func() time.Duration) (t throughput, err error) {
	if err := warm(processes); err != nil {
		return t, err
	}
	over := make(chan error, 1)
	go func() { over <- order(processes, fmt.Sprintf("burst %d", int((satFor+2*time.Second).Seconds()))) }()
	time.Sleep(time.Second)
	before, err := received()
	if err != nil {
		return t, err
	}
	used, began := cpu(), time.Now()
	time.Sleep(satFor)
	used, took := cpu()-used, time.Since(began)
	now, err := received()
	if err != nil {
		return t, err
	}
	n := max(1, now-before)
	return throughput{rate: float64(n) / took.Seconds(), each: used / time.Duration(n)}, <-over
}

func saturatedHub(ctx context.Context, hub, work string) (t throughput, err error) {
	a, err := harness.New(ctx, hub, filepath.Join(work, "saturated"), 0)
	if err != nil {
		return t, err
	}
	defer a.Close()
	processes, err := processesFor(satNodes, "-fleet-devices", a.Dev)
	defer endAll(processes)
	if err != nil {
		return t, err
	}
	return saturate(processes, func() (int, error) {
		text, err := a.Get(ctx, "/metrics")
		return int(metric(text, leaseTopic)), err
	}, a.CPU)
}

func saturatedBroker(ctx context.Context, dir string) (t throughput, err error) {
	m, err := newMosquitto(ctx, dir)
	if err != nil {
		return t, err
	}
	defer m.end()
	k, err := newConsumer(m.addr, "bare", "1")
	if err != nil {
		return t, err
	}
	defer k.end()
	processes, err := processesFor(satNodes, "-fleet-devices", m.addr)
	defer endAll(processes)
	if err != nil {
		return t, err
	}
	return saturate(processes, k.count, m.cpu)
}

// Sizes of the measurement of a leader behind a broker.
const (
	millionNodes = 1_000_000
	publishers   = 2 // processes, each with sixteen connections
	publishFor   = 10 * time.Second
)

// behindBroker measures what the leases of a million devices cost a leader behind Mosquitto, with
// one connection and with eight connections that share the subscription.
func behindBroker(ctx context.Context, dir string, out io.Writer) error {
	fmt.Fprintf(out, "Leases of %d devices through Mosquitto to one consumer (paho), for %s; all share the "+
		"processors:\n\n", millionNodes, publishFor)
	fmt.Fprintf(out, "| connections | offered, a second | received, a second | consumer, a lease | Mosquitto, a lease | "+
		"consumer's memory |\n|---|---|---|---|---|---|\n")
	for _, c := range []struct{ connections, rate int }{{1, 5_000}, {8, 5_000}, {1, 20_000}, {8, 20_000}, {1, 100_000},
		{8, 100_000}} {
		row, err := behind(ctx, dir, c.connections, c.rate)
		if err != nil {
			return fmt.Errorf("%d connections at %d/s: %w", c.connections, c.rate, err)
		}
		fmt.Fprintln(out, row)
	}
	fmt.Fprintln(out)
	return ctx.Err()
}

func behind(ctx context.Context, dir string, connections, rate int) (string, error) {
	m, err := newMosquitto(ctx, dir)
	if err != nil {
		return "", err
	}
	defer m.end()
	k, err := newConsumer(m.addr, "paho", fmt.Sprint(connections), "-consume-nodes", fmt.Sprint(millionNodes))
	if err != nil {
		return "", err
	}
	defer k.end()
	var processes []*deviceProcess
	defer func() { endAll(processes) }()
	for i := range publishers {
		p, err := newCrew("-publish", m.addr, "-fleet-from", fmt.Sprint(i*millionNodes/publishers), "-fleet-to",
			fmt.Sprint((i+1)*millionNodes/publishers))
		if err != nil {
			return "", err
		}
		processes = append(processes, p)
	}
	publish := func(d time.Duration) error {
		return order(processes, fmt.Sprintf("publish %d %d", rate/publishers, int(d.Seconds())))
	}
	if err := publish(time.Second); err != nil {
		return "", err
	}
	received, err := k.count()
	if err != nil {
		return "", err
	}
	used, consumed, began := m.cpu(), k.cpu(), time.Now()
	if err := publish(publishFor); err != nil {
		return "", err
	}
	took := time.Since(began)
	used, consumed = m.cpu()-used, k.cpu()-consumed
	now, err := k.count()
	if err != nil {
		return "", err
	}
	n := max(1, now-received)
	each := func(d time.Duration) string { return fmt.Sprintf("%.1f µs", float64(d.Nanoseconds())/1e3/float64(n)) }
	return fmt.Sprintf("| %d | %d | %.0f | %s | %s | %.0f MB |", connections, rate, float64(n)/took.Seconds(),
		each(consumed), each(used), float64(harness.StatusOf(k.cmd.Process.Pid, "VmRSS:"))/1e6), nil
}

// leaseOf is a node's lease packet.
func leaseOf(node string, l wire.Lease) []byte {
	return harness.Packet(0x30, append(harness.Text(nil, wire.NodePrefix(wire.DefaultPrefix,
		node)+string(wire.ChannelLease)),
		wire.AppendLease(nil, l)...))
}
