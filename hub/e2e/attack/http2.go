package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"flotilla.dev/hub/e2e/harness"
)

// http2Attacks use HTTP/2 frames: requests that are reset at once, endless headers, unread
// responses.
func http2Attacks() []attack {
	return []attack{
		{name: "rapid-resets", slow: true, by: "stranger", does: "requests over HTTP/2, each reset at once, " +
			"for 20 s", run: frameFlood(false, rapidResets)},
		{name: "endless-headers", slow: true, by: "stranger", does: "a header over HTTP/2 that CONTINUATION frames " +
			"continue for ever", run: frameFlood(false, endlessHeaders)},
		{name: "indexed-headers", slow: true, by: "stranger", does: "a long field in HPACK's table, and headers that " +
			"refer to it 16,000 times with a byte each", run: frameFlood(false, indexedHeaders)},
		{name: "unread-pings", slow: true, by: "stranger", does: "PING and SETTINGS over HTTP/2 as fast as possible; no " +
			"response is read", run: frameFlood(true, pingsAndSettings)},
		{name: "closed-windows", slow: true, by: "stranger", does: "100 requests at once over HTTP/2 for the page's " +
			"largest file, with a window of zero", run: frameFlood(true, closedWindows)},
		{name: "small-frames", slow: true, by: "stranger", does: "WINDOW_UPDATE, PRIORITY, frames of an unknown type " +
			"and empty DATA over HTTP/2, as fast as possible", run: frameFlood(false, smallFrames)},
	}
}

// frameFlood sends frames on eight connections for 20 s, and reconnects closed connections. The hub
// may use half of a processor core.
func frameFlood(unread bool, play func(*http2.Framer, *fields, int) error) func(context.Context,
	*harness.Hub) (string, error) {
	const long = 20 * time.Second
	return func(ctx context.Context, a *harness.Hub) (string, error) {
		before := a.CPU()
		var rounds, connections atomic.Int64
		end := time.Now().Add(long)
		harness.Each(ctx, 8, 8, func(int) {
			for time.Now().Before(end) && ctx.Err() == nil {
				c, err := dialFrames(a)
				if err != nil {
					harness.Pause(ctx, time.Second)
					continue
				}
				connections.Add(1)
				_ = c.SetWriteDeadline(end)
				if !unread {
					go func() { _, _ = io.Copy(io.Discard, c) }()
				}
				var f fields
				framer := http2.NewFramer(c, nil)
				for round := 0; time.Now().Before(end) && play(framer, &f, round) == nil; round++ {
					rounds.Add(1)
				}
				if unread && time.Now().Before(end) {
					harness.Pause(ctx, time.Second)
				}
				_ = c.Close()
				harness.Pause(ctx, 100*time.Millisecond)
			}
		})
		spent := a.CPU() - before
		seen := fmt.Sprintf("%d rounds on %d connections, %s of CPU in %s", rounds.Load(), connections.Load(), spent, long)
		if rounds.Load() == 0 {
			return seen, errors.New("no frames were sent")
		}
		if spent > long/2 {
			return seen, errors.New("frames of an unauthenticated client cost the hub more than half of a core")
		}
		return seen, nil
	}
}

// dialFrames opens an HTTP/2 connection and sends only the preface.
func dialFrames(a *harness.Hub) (net.Conn, error) {
	raw, err := net.DialTimeout("tcp", a.HTTPS, 5*time.Second)
	if err != nil {
		return nil, err
	}
	c := tls.Client(raw, &tls.Config{RootCAs: a.Roots, ServerName: "127.0.0.1", NextProtos: []string{"h2"}})
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err = io.WriteString(c, http2.ClientPreface); err == nil {
		err = http2.NewFramer(c, nil).WriteSettings()
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	_ = c.SetDeadline(time.Time{})
	return c, nil
}

// fields encodes headers. Each connection has its own table.
type fields struct {
	out bytes.Buffer
	enc *hpack.Encoder
}

func (f *fields) encode(more ...hpack.HeaderField) []byte {
	if f.enc == nil {
		f.enc = hpack.NewEncoder(&f.out)
	}
	f.out.Reset()
	for _, field := range append([]hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"},
		{Name: ":authority", Value: "127.0.0.1"}, {Name: ":path", Value: "/static/vendor/xterm/xterm.js"}}, more...) {
		_ = f.enc.WriteField(field)
	}
	return f.out.Bytes()
}

func rapidResets(w *http2.Framer, f *fields, round int) error {
	id := uint32(2*round + 1)
	if err := w.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.encode(), EndHeaders: true,
		EndStream: true}); err != nil {
		return err
	}
	return w.WriteRSTStream(id, http2.ErrCodeCancel)
}

func endlessHeaders(w *http2.Framer, f *fields, round int) error {
	if round == 0 {
		return w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.encode()})
	}
	f.out.Reset()
	_ = f.enc.WriteField(hpack.HeaderField{Name: "x-more", Value: strings.Repeat("m", 8000), Sensitive: true})
	return w.WriteContinuation(1, false, f.out.Bytes())
}

func indexedHeaders(w *http2.Framer, f *fields, round int) error {
	block := f.encode(hpack.HeaderField{Name: "x-long", Value: strings.Repeat("l", 3900)})
	block = append(bytes.Clone(block), bytes.Repeat([]byte{0x80 | 62}, 16_000-len(block))...)
	return w.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*round + 1), BlockFragment: block, EndHeaders: true,
		EndStream: true})
}

func pingsAndSettings(w *http2.Framer, _ *fields, round int) error {
	if round%2 == 0 {
		return w.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(4096 - round%4096)})
	}
	return w.WritePing(false, [8]byte{byte(round)})
}

func closedWindows(w *http2.Framer, f *fields, round int) error {
	if round == 0 {
		if err := w.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
			return err
		}
	}
	if round >= 100 { // the limit of concurrent streams
		time.Sleep(100 * time.Millisecond)
		return w.WritePing(true, [8]byte{})
	}
	return w.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*round + 1), BlockFragment: f.encode(),
		EndHeaders: true, EndStream: true})
}

func smallFrames(w *http2.Framer, f *fields, round int) error {
	switch {
	case round == 0:
		return w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.encode(), EndHeaders: true})
	case round%5 == 1:
		return w.WriteWindowUpdate(0, 1)
	case round%5 == 2:
		return w.WriteWindowUpdate(1, 1)
	case round%5 == 3:
		return w.WritePriority(uint32(2*(round%1000)+1), http2.PriorityParam{Weight: 3})
	case round%5 == 4:
		return w.WriteRawFrame(0xbe, 0, 0, nil)
	}
	return w.WriteData(1, false, nil)
}
