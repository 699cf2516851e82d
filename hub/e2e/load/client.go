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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/e2e/harness"
	"flotilla.dev/shared/wire"
)

// A mqttClient is one device of a deviceProcess.
type mqttClient struct {
	harness.Device
	tls    *tls.Config // nil without TLS
	conn   net.Conn
	in     atomic.Bool   // whether the device is registered
	lost   chan struct{} // closed when the connection has ended
	ponged chan struct{} // holds a token unless a ping waits for its response
	mu     sync.Mutex
	stored int64 // generation of the stored desired state
}

// fleetDevices is the main function of a deviceProcess. It reads commands, one per line: join,
// connect, pace <seconds>, burst <seconds>, return, renew, half <seconds>.
func fleetDevices(ctx context.Context, addr, url, token string, from, to int, pings string) error {
	devices := make([]*mqttClient, to-from)
	a := &harness.Hub{HTTPS: strings.TrimPrefix(url, "https://"), MQTT: addr, Dev: addr}
	var first atomic.Pointer[error]
	all := func(workers int, do func(i int) error) error {
		harness.Each(ctx, len(devices), workers, func(i int) {
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
				s := &mqttClient{Device: harness.Device{Hub: a, Machine: machine, Boot: "boot-" + machine}}
				s.ID.Node = node
				devices[i] = s
				if token == "" {
					return nil
				}
				return harness.Until(ctx, 5*time.Minute, "join", func() (bool, error) {
					d, err := a.Join(ctx, token, node, machine)
					if err == nil {
						s.Device = *d
						s.tls, err = s.ID.TLS(time.Now())
					}
					if err != nil {
						return false, err
					}
					s.tls.ServerName, _, _ = net.SplitHostPort(addr)
					s.tls.InsecureSkipVerify = true // a real device verifies the hub's chain with its own processor
					return true, nil
				})
			})
		case "connect":
			go wait(waiting, devices)
			most := 256
			if arg != "" {
				most, _ = strconv.Atoi(arg)
			}
			err = all(most, func(i int) error { return devices[i].register(ctx, (from+i)/50) })
		case "pace":
			paced()
			seconds, _ := strconv.Atoi(arg)
			err = pace(devices, time.Duration(seconds)*time.Second, pings)
		case "return":
			err = all(len(devices), func(i int) error { return devices[i].comeBack(ctx, (from+i)/50) })
		case "renew":
			err = renewAll(ctx, devices)
		case "half":
			seconds, _ := strconv.Atoi(arg)
			var on []*mqttClient
			for i := 0; i < len(devices); i += 2 {
				on = append(on, devices[i])
			}
			err = pace(on, time.Duration(seconds)*time.Second, pings)
		case "burst":
			seconds, _ := strconv.Atoi(arg)
			err = burst(devices, time.Duration(seconds)*time.Second)
		default:
			err = fmt.Errorf("unknown command %q to devices", verb)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// register connects like an agent, and waits until the hub has its status.
func (s *mqttClient) register(ctx context.Context, site int) error {
	conn, err := (&net.Dialer{Timeout: time.Minute}).DialContext(ctx, "tcp", s.Hub.Dev)
	if err != nil {
		return err
	}
	user := s.ID.Node
	if s.tls != nil {
		conn, user = tls.Client(conn, s.tls), ""
	}
	s.conn = conn
	flags, prefix := byte(2), wire.NodePrefix(wire.DefaultPrefix, s.ID.Node)
	if user != "" {
		flags |= 0x80
	}
	hello := harness.Text(append(harness.Text(nil, "MQTT"), 4, flags|4|1<<3, 0, 30), s.ClientID())
	hello = harness.Text(harness.Text(hello, prefix+"presence"), `{"boot":"`+s.Boot+`","state":"lost"}`)
	if user != "" {
		hello = harness.Text(hello, user)
	}
	filters := []byte{0, 1}
	for _, f := range wire.Filters(wire.DefaultPrefix, s.ID.Node) {
		filters = append(harness.Text(filters, f), 0)
	}
	status := s.Good(nil, map[string]any{"registration": map[string]any{"labels": map[string]string{"topology.kubernetes.io/zone": fmt.Sprintf("site-%d", site)}}})
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	for _, p := range [][]byte{harness.Packet(0x10, hello), harness.Packet(0x82, filters),
		harness.Packet(0x32, append(append(harness.Text(nil, prefix+"status"), 0, 2), status...))} {
		if _, err := conn.Write(p); err != nil {
			return fmt.Errorf("register %s: %w", s.ID.Node, err)
		}
	}
	answers := make([]byte, 4+6+4) // CONNACK, SUBACK and PUBACK; the desired state follows
	r := bufio.NewReaderSize(conn, 64)
	for at := 0; at < len(answers); {
		head, err := r.Peek(2)
		if err != nil {
			return fmt.Errorf("register %s: %w", s.ID.Node, err)
		}
		if head[0]>>4 == 3 {
			if err := s.awaitDesired(r); err != nil {
				return err
			}
			continue
		}
		n, err := io.ReadFull(r, answers[at:at+2+int(head[1])])
		if at += n; err != nil {
			return fmt.Errorf("register %s: %w", s.ID.Node, err)
		}
	}
	if answers[3] != 0 || answers[10] != 0x40 {
		return fmt.Errorf("register %s: the hub answers %x", s.ID.Node, answers)
	}
	_ = conn.SetDeadline(time.Time{})
	s.in.Store(true)
	lost := make(chan struct{})
	s.lost, s.ponged = lost, make(chan struct{}, 1)
	go func() {
		defer close(lost)
		for err := error(nil); err == nil; {
			if err = s.awaitDesired(r); err == nil {
				err = s.renew("")
			}
		}
	}()
	return s.renew("")
}

// awaitDesired reads packets until a desired state arrives.
func (s *mqttClient) awaitDesired(r *bufio.Reader) error {
	for {
		head, err := r.ReadByte()
		if err != nil {
			return err
		}
		n, err := binary.ReadUvarint(r)
		if err != nil || n > wire.MaxToDevice+1024 {
			return fmt.Errorf("%s receives a packet of %d bytes: %w", s.ID.Node, n, err)
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
		if string(body[2:2+topic]) != wire.Topic(wire.DefaultPrefix, s.ID.Node, wire.ChannelDesired) {
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

func (s *mqttClient) renew(pings string) error {
	s.mu.Lock()
	s.Lease++
	l := wire.AppendLease(nil, wire.Lease{Boot: s.Boot, Seq: s.Lease, Status: s.Seq, Desired: s.stored, Time: time.Now()})
	s.mu.Unlock()
	p := harness.Packet(0x30, append(harness.Text(nil, wire.NodePrefix(wire.DefaultPrefix, s.ID.Node)+"lease"), l...))
	if pings == "along" {
		p = append(p, 0xc0, 0)
	}
	_, err := s.conn.Write(p)
	if err != nil {
		return fmt.Errorf("renew the lease of %s: %w", s.ID.Node, err)
	}
	return nil
}

// wait renews the leases of registered devices while other devices register.
func wait(ctx context.Context, devices []*mqttClient) {
	for harness.Pause(ctx, leaseEvery/2); ctx.Err() == nil; harness.Pause(ctx, leaseEvery/2) {
		for _, s := range devices {
			if s.in.Load() && ctx.Err() == nil {
				_ = s.renew("") // pace reports a lost connection later
			}
		}
	}
}

// pace lets each device renew its lease once per interval, spread evenly. A device pings with its
// lease, half an interval apart, or never.
func pace(devices []*mqttClient, during time.Duration, pings string) error {
	began, step := time.Now(), leaseEvery/time.Duration(len(devices))
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
				errs[w] = devices[i%len(devices)].renew(pings)
				if other := (i + len(devices)/2) % len(devices); pings == "apart" && errs[w] == nil { // this device sent its lease half an interval ago
					_, errs[w] = devices[other].conn.Write([]byte{0xc0, 0})
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// burst lets each device renew its lease as fast as possible.
func burst(devices []*mqttClient, during time.Duration) error {
	end := time.Now().Add(during)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for w := range errs {
		wg.Go(func() {
			for i := w; errs[w] == nil && time.Now().Before(end); i += len(errs) {
				errs[w] = devices[i%len(devices)].renew("none")
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
