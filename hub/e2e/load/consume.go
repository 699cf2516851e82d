package main

import (
	"bufio"
	"context"
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

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/hub/e2e/harness"
	"flotilla.dev/shared/wire"
)

// A consumer is a process that subscribes to all leases.
type consumer struct{ *deviceProcess }

func newConsumer(addr, how, connections string, args ...string) (*consumer, error) {
	k, err := newCrew(append([]string{"-consume", addr, "-consume-how", how, "-consume-connections", connections},
		args...)...)
	if err != nil {
		return nil, err
	}
	if line, err := k.out.ReadString('\n'); line != "ready\n" {
		k.end()
		return nil, fmt.Errorf("the consumer did not start: %q %w", line, err)
	}
	return &consumer{k}, nil
}

func (k *consumer) cpu() time.Duration { return harness.CPUOf(k.cmd.Process.Pid) }

// count returns the number of received leases.
func (k *consumer) count() (int, error) {
	if _, err := fmt.Fprintln(k.in, "count"); err != nil {
		return 0, err
	}
	line, err := k.out.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line))
}

// leaseTable handles a lease as the hub does: it looks up the node, compares boot and seq, and
// stores the time and the acknowledged generation.
type leaseTable struct {
	received atomic.Int64
	nodes    sync.Map // node name → *entry
}

type entry struct {
	boot   atomic.Pointer[string]
	seq    atomic.Uint64
	seen   atomic.Int64
	stored atomic.Int64
}

func (b *leaseTable) lease(topic string, payload []byte) {
	at, err := wire.ParseTopic(wire.DefaultPrefix, topic)
	if err != nil || at.Channel != wire.ChannelLease {
		return
	}
	l, err := wire.ParseLease(payload)
	if err != nil {
		return
	}
	v, ok := b.nodes.Load(at.Node)
	if !ok {
		v, _ = b.nodes.LoadOrStore(at.Node, new(entry))
	}
	e := v.(*entry)
	if boot := e.boot.Load(); boot == nil || *boot != l.Boot {
		e.boot.Store(&l.Boot)
	}
	if l.Seq > e.seq.Load() {
		e.seq.Store(l.Seq)
		e.seen.Store(time.Now().UnixNano())
		e.stored.Store(l.Desired)
	}
	b.received.Add(1)
}

// consume is the main function of a consumer.
func consume(ctx context.Context, addr, how string, connections, nodes int) error {
	var b leaseTable
	for i := range nodes {
		b.nodes.Store(millionName(i), new(entry))
	}
	filter := wire.NodePrefix(wire.DefaultPrefix, "+") + string(wire.ChannelLease)
	if how == "bare" {
		c, err := newBare(addr)
		if err != nil {
			return err
		}
		if _, err := c.Write(harness.Packet(0x82, append(harness.Text([]byte{0, 1}, filter), 0))); err != nil {
			return err
		}
		go func() {
			if err := count(c, &b.received); ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, "load:", err)
				os.Exit(1)
			}
		}()
	} else {
		if connections > 1 {
			filter = "$share/hub/" + filter
		}
		for i := range connections {
			o := mqtt.NewClientOptions().AddBroker("tcp://" +
				addr).SetClientID(fmt.Sprintf("hub-%d", i)).SetKeepAlive(30 * time.Second)
			o.SetConnectionLostHandler(func(_ mqtt.Client, err error) {
				fmt.Fprintln(os.Stderr, "load: the consumer lost its connection:", err)
				os.Exit(1)
			})
			c := mqtt.NewClient(o)
			if t := c.Connect(); t.WaitTimeout(20*time.Second) && t.Error() != nil {
				return t.Error()
			}
			t := c.Subscribe(filter, 0, func(_ mqtt.Client, m mqtt.Message) { b.lease(m.Topic(), m.Payload()) })
			if !t.WaitTimeout(20*time.Second) || t.Error() != nil {
				return errors.Join(errors.New("subscribe to "+filter), t.Error())
			}
		}
	}
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(b.received.Load())
	}
	return nil
}

// newBare connects to the broker without a client library.
func newBare(addr string) (net.Conn, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	answer := make([]byte, 4)
	if _, err = c.Write(harness.Packet(0x10,
		harness.Text(append(harness.Text(nil, "MQTT"), 4, 2, 0, 0),
			fmt.Sprintf("bare-%d-%d", os.Getpid(), time.Now().UnixNano())))); err == nil {
		_, err = io.ReadFull(c, answer)
	}
	if err != nil || answer[3] != 0 {
		_ = c.Close()
		return nil, fmt.Errorf("CONNACK %x: %w", answer, err)
	}
	return c, nil
}

// count counts PUBLISH packets and drops them.
func count(from io.Reader, received *atomic.Int64) error {
	r := bufio.NewReaderSize(from, 256<<10)
	for {
		head, err := r.ReadByte()
		if err != nil {
			return err
		}
		n, err := binary.ReadUvarint(r)
		if err != nil {
			return err
		}
		if _, err := r.Discard(int(n)); err != nil {
			return err
		}
		if head>>4 == 3 {
			received.Add(1)
		}
	}
}

func millionName(i int) string { return fmt.Sprintf("pi-%07d", i) }

// publish is the main function of a process that publishes leases of many devices over few
// connections, as a cluster's brokers forward them. It reads lines "publish RATE SECONDS" from
// stdin; RATE is in leases per second.
func publish(addr string, from, to int) error {
	const connections = 16
	out := make([]*bufio.Writer, connections)
	for i := range out {
		c, err := newBare(addr)
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(io.Discard, c) }()
		out[i] = bufio.NewWriterSize(c, 16<<10)
	}
	const tick = 10 * time.Millisecond
	sent := 0
	for in := bufio.NewScanner(os.Stdin); in.Scan(); fmt.Println("done") {
		var rate, seconds int
		if _, err := fmt.Sscanf(in.Text(), "publish %d %d", &rate, &seconds); err != nil {
			return fmt.Errorf("unknown command %q to publishers: %w", in.Text(), err)
		}
		began, first := time.Now(), sent
		for end := began.Add(time.Duration(seconds) * time.Second); time.Now().Before(end); time.Sleep(tick) {
			due := first + int(time.Since(began).Seconds()*float64(rate))
			for ; sent < due && time.Now().Before(end); sent++ {
				p := leaseOf(millionName(from+sent%(to-from)),
					wire.Lease{Boot: "boot-1", Seq: uint64(1 + sent/(to-from)), Status: 1, Desired: 1, Time: time.Now()})
				if _, err := out[sent%connections].Write(p); err != nil {
					return err
				}
			}
			for _, w := range out {
				if err := w.Flush(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
