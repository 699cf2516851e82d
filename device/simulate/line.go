package main

import (
	"context"
	"net"
	"sync"
	"time"
)

// A line is the network between a device and the hub. While it is cut, no byte passes, and a closed
// connection is not noticed at the other end.
type line struct {
	dial func(ctx context.Context) (net.Conn, error)
	over <-chan struct{} // closed when the simulation ends

	mu      sync.Mutex
	whole   chan struct{} // closed while the line works
	rate    int64         // bytes per second; 0: unlimited
	latency time.Duration // delay of one direction
	open    map[net.Conn]bool
}

func newLine(dial func(ctx context.Context) (net.Conn, error), over <-chan struct{}) *line {
	whole := make(chan struct{})
	close(whole)
	return &line{dial: dial, over: over, whole: whole, open: map[net.Conn]bool{}}
}

// set sets whether the line is cut, its rate and its latency.
func (l *line) set(cut bool, rate int64, latency time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate, l.latency = rate, latency
	select {
	case <-l.whole:
		if cut {
			l.whole = make(chan struct{})
		}
	default:
		if !cut {
			close(l.whole)
		}
	}
}

func (l *line) state() (whole <-chan struct{}, rate int64, latency time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.whole, l.rate, l.latency
}

// drop closes the device's ends of its connections, as a power cut does. The hub notices once the
// line works again.
func (l *line) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		_ = c.Close()
	}
}

// connect opens a connection of the device.
func (l *line) connect(ctx context.Context) (net.Conn, error) {
	whole, _, latency := l.state()
	select {
	case <-whole:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if latency > 0 {
		select {
		case <-time.After(2 * latency): // one round trip
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	hub, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	l.mu.Lock()
	l.open[ours] = true
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.carry(theirs, hub) })
	both.Go(func() { l.carry(hub, theirs) })
	go func() {
		both.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, ours)
	}()
	return ours, nil
}

// carry copies from one end to the other until either end closes. If an end closes while the line
// is cut, the other stays open.
func (l *line) carry(from, to net.Conn) {
	defer func() { _ = to.Close(); _ = from.Close() }()
	chunk := make([]byte, 4<<10)
	for {
		n, err := from.Read(chunk)
		whole, rate, latency := l.state()
		select {
		case <-whole:
		default:
			select {
			case <-whole:
			case <-l.over:
				return
			}
		}
		if n > 0 && (rate > 0 || latency > 0) {
			pause := latency
			if rate > 0 {
				pause += time.Duration(n) * time.Second / time.Duration(rate)
			}
			time.Sleep(pause)
		}
		if n > 0 {
			if _, err := to.Write(chunk[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
