package broker

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/shared/wire"
)

// ledger is a Handler that does the hub's work for a lease: it looks the node up, compares boot and
// sequence number, and stores the time.
type ledger struct {
	recorder
	leases atomic.Int64
	nodes  sync.Map // name → *record
	want   atomic.Int64
	done   chan struct{}
}

type record struct {
	boot string
	seq  atomic.Uint64
	seen atomic.Int64
}

func (l *ledger) Connected(p Peer) {
	l.nodes.Store(p.Node, &record{boot: "01JD8Y3QK8Z6M5N4P3R2S1T0VW"})
}
func (l *ledger) Disconnected(Peer) {}
func (l *ledger) Lease(p Peer, lease wire.Lease) {
	node := p.Node
	v, _ := l.nodes.Load(node)
	r := v.(*record)
	if r.boot == lease.Boot && lease.Seq > r.seq.Load() {
		r.seq.Store(lease.Seq)
		r.seen.Store(time.Now().UnixNano())
	}
	if l.leases.Add(1) == l.want.Load() {
		l.done <- struct{}{}
	}
}

// cpu returns the processor time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestMain also runs the other end of the benchmarks: a process with many devices. Its processor
// time does not count as the hub's.
func TestMain(m *testing.M) {
	if addr := os.Getenv("FLOTILLA_BENCH_DEVICES"); addr != "" {
		if err := devices(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// devices connects FLOTILLA_BENCH_COUNT nodes, prints "ready", and then reads commands. "burst N"
// sends N leases at full speed; "pace SECONDS" sends one per node every ten seconds.
func devices(addr string) error {
	count, _ := strconv.Atoi(os.Getenv("FLOTILLA_BENCH_COUNT"))
	conns, topics := make([]net.Conn, count), make([]string, count)
	for i := range conns {
		node := fmt.Sprintf("pi-%d", i)
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}
		if _, err := c.Write(encode(connectPacket(node, nil))); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			return err
		}
		conns[i], topics[i] = c, topicOf(node, wire.ChannelLease)
	}
	fmt.Println("ready")
	var seq uint64
	send := func(i int) error {
		seq++
		payload := wire.AppendLease(nil, wire.Lease{Boot: "01JD8Y3QK8Z6M5N4P3R2S1T0VW", Seq: seq, Status: 17, Pods: 52,
			Desired: 31, Time: time.Now()})
		_, err := conns[i].Write(leasePacket(topics[i], payload))
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		verb, arg, _ := strings.Cut(in.Text(), " ")
		n, _ := strconv.Atoi(arg)
		switch verb {
		case "burst":
			for i := range n {
				if err := send(i % count); err != nil {
					return err
				}
			}
		case "pace":
			began, step := time.Now(), 10*time.Second/time.Duration(count)
			for i := range count * n / 10 {
				time.Sleep(time.Until(began.Add(time.Duration(i) * step)))
				if err := send(i % count); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func leasePacket(topic string, payload []byte) []byte {
	p := binary.AppendUvarint([]byte{0x30}, uint64(2+len(topic)+len(payload)))
	p = binary.BigEndian.AppendUint16(p, uint16(len(topic)))
	return append(append(p, topic...), payload...)
}

// fleet starts the process that runs devices.
func fleet(b *testing.B, addr string, count int) io.Writer {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "FLOTILLA_BENCH_DEVICES="+addr, fmt.Sprintf("FLOTILLA_BENCH_COUNT=%d", count),
		"GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		b.Fatalf("the devices did not connect: %q, %v", line, err)
	}
	return in
}

func serve(b *testing.B, l net.Listener) (*ledger, *Broker) {
	d := &ledger{done: make(chan struct{}, 1)}
	br, err := New(Config{Handler: d, DevListen: l, Log: slog.New(slog.DiscardHandler), Limits: Limits{NodeRate: 1e9}})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- br.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	return d, br
}

// BenchmarkLease measures the whole path of a lease in the hub's process: TCP on loopback, packets,
// access rules, decoding, bookkeeping. The budget is 20 cpu-µs/lease.
func BenchmarkLease(b *testing.B) {
	for _, connections := range []int{1, 1000} {
		b.Run(fmt.Sprintf("tcp/connections=%d", connections), func(b *testing.B) {
			l := loopback(b)
			d, _ := serve(b, l)
			in := fleet(b, l.Addr().String(), connections)
			const batch = 20_000
			used, total := time.Duration(0), 0
			for b.Loop() {
				before := cpu()
				d.want.Store(d.leases.Load() + batch)
				fmt.Fprintf(in, "burst %d\n", batch)
				<-d.done
				used += cpu() - before
				total += batch
			}
			b.ReportMetric(float64(used.Microseconds())/float64(total), "cpu-µs/lease")
			b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "leases/s")
		})
	}
	b.Run("handler alone", func(b *testing.B) {
		d, br := serve(b, pipe.New())
		d.Connected(Peer{Node: "pi-1"})
		s := &session{peer: Peer{Node: "pi-1"}, lease: topicOf("pi-1", wire.ChannelLease), rate: newBucket(1e9)}
		body := leasePacket(s.lease, wire.AppendLease(nil, wire.Lease{Boot: "01JD8Y3QK8Z6M5N4P3R2S1T0VW", Seq: 4211,
			Time: time.Now()}))
		_, header := packetSize(body)
		body = body[header:]
		b.ReportAllocs()
		for b.Loop() {
			if !br.lease(s, body) {
				b.Fatal("the packet is not a lease")
			}
		}
	})
}

// BenchmarkFleet measures FLOTILLA_BENCH_LARGE nodes, each with a lease every ten seconds, for 20
// seconds. The budget is for 10000 nodes.
func BenchmarkFleet(b *testing.B) {
	connections, err := strconv.Atoi(os.Getenv("FLOTILLA_BENCH_LARGE"))
	if err != nil {
		b.Skip("set FLOTILLA_BENCH_LARGE to a number of connections, such as 10000; one run takes about half a minute")
	}
	l := loopback(b)
	d, br := serve(b, l)
	in := fleet(b, l.Addr().String(), connections)
	const seconds = 20
	for b.Loop() {
		before, began := cpu(), time.Now()
		d.want.Store(d.leases.Load() + int64(connections)*seconds/10)
		fmt.Fprintf(in, "pace %d\n", seconds)
		<-d.done
		took := time.Since(began)
		b.ReportMetric(100*float64(cpu()-before)/float64(took), "%core")
		b.ReportMetric(float64((cpu()-before).Microseconds())/float64(connections*seconds/10), "cpu-µs/lease")
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapAlloc+m.StackInuse)/float64(connections)/1024, "KiB/connection")
	b.Logf("%+v", br.Stats())
}
