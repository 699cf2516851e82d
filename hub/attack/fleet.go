package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"flotilla.dev/shared/wire"
)

const (
	heapBytes  = "go_memstats_heap_alloc_bytes"
	stackBytes = "go_memstats_stack_inuse_bytes"
	leaseEvery = 10 * time.Second
	perProcess = 9000 // devices
)

// measureFleets is `make bench-fleet`: what fleets of good devices cost their hub, a row
// for each listener and number of nodes. Connections are real, nodes registered, and each
// renews its lease every ten seconds. The devices are processes of their own, since a
// process has few files, and so that nothing of theirs is counted.
func measureFleets(ctx context.Context, hub, sizes string, listeners []bool, pings string, paced time.Duration, out io.Writer) error {
	work, hub, err := prepare(ctx, "fleet", hub)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	fmt.Fprintf(out, "| Listener | Nodes | Idle | Peak | RSS | a node | Heap | Stack | All in after | CPU a lease |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, secure := range listeners {
		kind := listenerName(secure)
		for _, size := range strings.Split(sizes, ",") {
			n, err := strconv.Atoi(size)
			if err != nil || n < 1 {
				return fmt.Errorf("-fleet %s: %q is no number of nodes; write -fleet 1000,5000", sizes, size)
			}
			f, err := measureFleet(ctx, hub, filepath.Join(work, kind+size), n, secure, pings, paced)
			if err != nil {
				return fmt.Errorf("%d nodes: %w", n, err)
			}
			each := func(v int64) string { return fmt.Sprintf("%.1f kB", float64(v)/float64(n)/1e3) }
			more := func(v int64) string {
				if v < 0 {
					return "less than idle" // pages of the program itself were let go of
				}
				return each(v)
			}
			mb := func(v int64) string { return fmt.Sprintf("%.0f MB", float64(v)/1e6) }
			fmt.Fprintf(out, "| %s | %d | %s | %s | %s | %s | %s | %s | %s | %.0f µs |\n", kind, n, mb(f.idle), mb(f.peak), mb(f.resident), more(f.resident-f.idle), each(f.heap), each(f.stack),
				f.in.Round(100*time.Millisecond), float64(f.lease.Nanoseconds())/1e3)
		}
	}
	return nil
}

// A fleetCost is what one fleet costs.
type fleetCost struct {
	idle, peak, resident, heap, stack, goroutines int64
	in, lease                                     time.Duration // until all are registered; of the processor for each lease
}

func measureFleet(ctx context.Context, hub, dir string, n int, secure bool, pings string, paced time.Duration) (c fleetCost, err error) {
	a, err := newArena(ctx, hub, dir, 0)
	if err != nil {
		return c, err
	}
	defer a.close()
	crews, err := a.crews(ctx, n, secure, "-ping="+pings)
	defer func() { endAll(crews) }()
	if err != nil {
		return c, err
	}
	if err := order(crews, "join"); err != nil {
		return c, err
	}
	pause(ctx, 3*time.Second)
	c.idle = a.resident()
	text, err := a.get(ctx, "/metrics")
	if err != nil {
		return c, err
	}
	heap, stack := metric(text, heapBytes), metric(text, stackBytes)
	if err := a.newPeak(); err != nil {
		return c, err
	}
	began := time.Now()
	if err := order(crews, "connect"); err != nil {
		return c, err
	}
	c.in = time.Since(began)
	c.peak = a.peak()
	if err := order(crews, fmt.Sprintf("pace %d", int(leaseEvery.Seconds()))); err != nil { // what registering left is tidied up
		return c, err
	}
	before, sent := a.cpu(), time.Duration(n)*paced/leaseEvery
	if err := order(crews, fmt.Sprintf("pace %d", int(paced.Seconds()))); err != nil {
		return c, err
	}
	c.lease = (a.cpu() - before) / max(sent, 1)
	c.resident, c.peak = a.resident(), max(c.peak, a.peak())
	if text, err = a.get(ctx, "/metrics"); err != nil {
		return c, err
	}
	if got := metric(text, "flotilla_mqtt_sessions"); got != int64(n) {
		return c, fmt.Errorf("%d of %d nodes are connected at the end: %.300s", got, n, a.said.String())
	}
	if got := metric(text, `flotilla_mqtt_messages_total{channel="lease"}`); got < int64(n)+int64(sent) {
		return c, fmt.Errorf("the hub heard %d leases, want %d", got, int64(n)+int64(sent))
	}
	c.heap, c.stack, c.goroutines = metric(text, heapBytes)-heap, metric(text, stackBytes)-stack, metric(text, "go_goroutines")
	return c, nil
}

// metric is a number of /metrics.
func metric(text, name string) int64 {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, _ := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			return int64(v)
		}
	}
	return -1
}

// resident is the memory that the hub is resident with now.
func (a *arena) resident() int64 { return a.status("VmRSS:") }

// A crew is a process of devices.
type crew struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func newCrew(args ...string) (*crew, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	k := &crew{cmd: exec.Command(self, args...)}
	k.cmd.Stderr = os.Stderr
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if k.in, err = k.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	k.out = bufio.NewReader(out)
	return k, k.cmd.Start()
}

// cpuOfAll is the time that crews have computed.
func cpuOfAll(crews []*crew) (sum time.Duration) {
	for _, k := range crews {
		sum += cpuOf(k.cmd.Process.Pid)
	}
	return sum
}

func (k *crew) end() {
	_ = k.in.Close()
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait()
}

// order tells all crews the same, and waits until each has done it.
func order(crews []*crew, what string) error {
	for _, k := range crews {
		if _, err := fmt.Fprintln(k.in, what); err != nil {
			return fmt.Errorf("tell devices to %s: %w", what, err)
		}
	}
	for _, k := range crews {
		if line, err := k.out.ReadString('\n'); line != "done\n" {
			return fmt.Errorf("devices did not %s: %q %w", what, line, err)
		}
	}
	return nil
}

// A sailor is one device of a crew.
type sailor struct {
	device
	tls    *tls.Config // over TLS
	conn   net.Conn
	in     atomic.Bool   // registered
	lost   chan struct{} // closed when the connection has ended
	ponged chan struct{} // has one: the hub has answered a ping
	mu     sync.Mutex
	stored int64 // generation of its desired state
}

// fleetDevices is the process of a crew: it obeys the lines join, connect, pace <seconds>, burst <seconds>,
// return, renew, half <seconds>.
func fleetDevices(ctx context.Context, addr, url, token string, from, to int, pings string) error {
	crew := make([]*sailor, to-from)
	a := &arena{https: strings.TrimPrefix(url, "https://"), mqtt: addr, dev: addr}
	var first atomic.Pointer[error]
	all := func(workers int, do func(i int) error) error {
		each(ctx, len(crew), workers, func(i int) {
			if err := do(i); err != nil {
				first.CompareAndSwap(nil, &err)
			}
		})
		if err := first.Load(); err != nil {
			return *err
		}
		return nil
	}
	waiting, paced := context.WithCancel(ctx)
	defer paced()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); fmt.Println("done") {
		verb, arg, _ := strings.Cut(in.Text(), " ")
		var err error
		switch verb {
		case "join":
			err = all(16, func(i int) error {
				node, machine := fmt.Sprintf("pi-%05d", from+i), fmt.Sprintf("%016x", 0x1000+from+i)
				s := &sailor{device: device{a: a, machine: machine, boot: "boot-" + machine}}
				s.id.Node = node
				crew[i] = s
				if token == "" {
					return nil
				}
				return until(ctx, 5*time.Minute, "join", func() (bool, error) {
					d, err := a.join(ctx, token, node, machine)
					if err == nil {
						s.device = *d
						s.tls, err = s.id.TLS(time.Now())
					}
					if err != nil {
						return false, err
					}
					s.tls.ServerName, _, _ = net.SplitHostPort(addr)
					s.tls.InsecureSkipVerify = true // to judge the hub's chain is the work of a device's own processor
					return true, nil
				})
			})
		case "connect":
			go wait(waiting, crew)
			err = all(256, func(i int) error { return crew[i].register(ctx, (from+i)/50) })
		case "pace":
			paced()
			seconds, _ := strconv.Atoi(arg)
			err = pace(crew, time.Duration(seconds)*time.Second, pings)
		case "return":
			err = all(len(crew), func(i int) error { return crew[i].comeBack(ctx, (from+i)/50) })
		case "renew":
			err = renewAll(ctx, crew)
		case "half":
			seconds, _ := strconv.Atoi(arg)
			var on []*sailor
			for i := 0; i < len(crew); i += 2 {
				on = append(on, crew[i])
			}
			err = pace(on, time.Duration(seconds)*time.Second, pings)
		case "burst":
			seconds, _ := strconv.Atoi(arg)
			err = burst(crew, time.Duration(seconds)*time.Second)
		default:
			err = fmt.Errorf("devices do not know how to %q", verb)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// register connects, as an agent does, and waits until the hub has its status.
func (s *sailor) register(ctx context.Context, site int) error {
	conn, err := (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, "tcp", s.a.dev)
	if err != nil {
		return err
	}
	user := s.id.Node
	if s.tls != nil {
		conn, user = tls.Client(conn, s.tls), ""
	}
	s.conn = conn
	flags, prefix := byte(2), wire.NodePrefix(wire.DefaultPrefix, s.id.Node)
	if user != "" {
		flags |= 0x80
	}
	hello := text(append(text(nil, "MQTT"), 4, flags|4|1<<3, 0, 30), s.clientID())
	hello = text(text(hello, prefix+"presence"), `{"boot":"`+s.boot+`","state":"lost"}`)
	if user != "" {
		hello = text(hello, user)
	}
	filters := []byte{0, 1}
	for _, f := range wire.Filters(wire.DefaultPrefix, s.id.Node) {
		filters = append(text(filters, f), 0)
	}
	status := s.good(nil, map[string]any{"registration": map[string]any{"labels": map[string]string{"topology.kubernetes.io/zone": fmt.Sprintf("site-%d", site)}}})
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	for _, p := range [][]byte{packet(0x10, hello), packet(0x82, filters), packet(0x32, append(append(text(nil, prefix+"status"), 0, 2), status...))} {
		if _, err := conn.Write(p); err != nil {
			return fmt.Errorf("register %s: %w", s.id.Node, err)
		}
	}
	answers := make([]byte, 4+6+4) // CONNACK, SUBACK, PUBACK: what the hub wants of the node comes later
	r := bufio.NewReaderSize(conn, 64)
	for at := 0; at < len(answers); {
		head, err := r.Peek(2)
		if err != nil {
			return fmt.Errorf("register %s: %w", s.id.Node, err)
		}
		if head[0]>>4 == 3 {
			if err := s.hear(r); err != nil {
				return err
			}
			continue
		}
		n, err := io.ReadFull(r, answers[at:at+2+int(head[1])])
		if at += n; err != nil {
			return fmt.Errorf("register %s: %w", s.id.Node, err)
		}
	}
	if answers[3] != 0 || answers[10] != 0x40 {
		return fmt.Errorf("register %s: the hub answers %x", s.id.Node, answers)
	}
	_ = conn.SetDeadline(time.Time{})
	s.in.Store(true)
	lost := make(chan struct{})
	s.lost, s.ponged = lost, make(chan struct{}, 1)
	go func() {
		defer close(lost)
		for err := error(nil); err == nil; {
			if err = s.hear(r); err == nil {
				err = s.renew("")
			}
		}
	}()
	return s.renew("")
}

// hear reads packets of the hub until one brings a desired state.
func (s *sailor) hear(r *bufio.Reader) error {
	for {
		head, err := r.ReadByte()
		if err != nil {
			return err
		}
		n, err := binary.ReadUvarint(r)
		if err != nil || n > wire.MaxToDevice+1024 {
			return fmt.Errorf("%s hears a packet of %d bytes: %w", s.id.Node, n, err)
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(r, body); err != nil {
			return err
		}
		if head>>4 == 13 {
			select {
			case s.ponged <- struct{}{}:
			default:
			}
		}
		if head>>4 != 3 {
			continue
		}
		topic := int(binary.BigEndian.Uint16(body))
		if string(body[2:2+topic]) != wire.Topic(wire.DefaultPrefix, s.id.Node, wire.ChannelDesired) {
			continue
		}
		d, err := wire.ParseDesired(body[2+topic:])
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.stored = d.Generation
		s.mu.Unlock()
		return nil
	}
}

func (s *sailor) renew(pings string) error {
	s.mu.Lock()
	s.lease++
	l := wire.AppendLease(nil, wire.Lease{Boot: s.boot, Seq: s.lease, Status: s.seq, Desired: s.stored, Time: time.Now()})
	s.mu.Unlock()
	p := packet(0x30, append(text(nil, wire.NodePrefix(wire.DefaultPrefix, s.id.Node)+"lease"), l...))
	if pings == "along" {
		p = append(p, 0xc0, 0)
	}
	_, err := s.conn.Write(p)
	if err != nil {
		return fmt.Errorf("renew the lease of %s: %w", s.id.Node, err)
	}
	return nil
}

// wait keeps the leases of those who are in while others register.
func wait(ctx context.Context, crew []*sailor) {
	for pause(ctx, leaseEvery/2); ctx.Err() == nil; pause(ctx, leaseEvery/2) {
		for _, s := range crew {
			if s.in.Load() && ctx.Err() == nil {
				_ = s.renew("") // who cannot will say so when paced
			}
		}
	}
}

// pace lets each device renew its lease once per interval, evenly, and ping along with it, apart from it, or not at all.
func pace(crew []*sailor, during time.Duration, pings string) error {
	began, step := time.Now(), leaseEvery/time.Duration(len(crew))
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for w := range errs {
		wg.Go(func() {
			for i := w; errs[w] == nil; i += len(errs) {
				at := began.Add(time.Duration(i) * step)
				if at.Sub(began) >= during {
					return
				}
				time.Sleep(time.Until(at))
				errs[w] = crew[i%len(crew)].renew(pings)
				if other := (i + len(crew)/2) % len(crew); pings == "apart" && errs[w] == nil { // half an interval from its lease
					_, errs[w] = crew[other].conn.Write([]byte{0xc0, 0})
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// burst has each device renew its lease as often as it is taken.
func burst(crew []*sailor, during time.Duration) error {
	end := time.Now().Add(during)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for w := range errs {
		wg.Go(func() {
			for i := w; errs[w] == nil && time.Now().Before(end); i += len(errs) {
				errs[w] = crew[i%len(crew)].renew("none")
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
