package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/spdystream"
	corev1 "k8s.io/api/core/v1"
)

// fakePod dials a pod with these ports: 7 echoes until the end, 9 only reads, 19 sends without end,
// 25 sends something and closes. All other ports refuse connections.
func fakePod(t *testing.T) (dial Dial, closed <-chan int32) {
	ends := make(chan int32, 100)
	return func(ctx context.Context, port int32) (io.ReadWriteCloser, error) {
		ours, pods := net.Pipe()
		go func() {
			defer func() { ends <- port }()
			defer func() { _ = pods.Close() }()
			switch port {
			case 7:
				b := make([]byte, 32<<10)
				for err, n := error(nil), 0; err == nil && !bytes.HasSuffix(b[:n], []byte{4}); {
					n, err = pods.Read(b)
					_, _ = pods.Write(b[:n])
				}
			case 9:
				_, _ = io.Copy(io.Discard, pods)
			case 19:
				for err := error(nil); err == nil; {
					_, err = pods.Write(make([]byte, 1000))
				}
			case 25:
				_, _ = io.WriteString(pods, "bye")
			}
		}()
		if port > 25 {
			_ = ours.Close()
			return nil, errors.New("connection refused by port " + strconv.Itoa(int(port)))
		}
		return halfPipe{ours}, nil
	}, ends
}

// halfPipe sends the byte 4 as the end of data, because a pipe cannot be half-closed.
type halfPipe struct{ net.Conn }

func (h halfPipe) CloseWrite() error { _, err := h.Write([]byte{4}); return err }

func forwardTo(t *testing.T, ctx context.Context, dial Dial) *httptest.Server {
	return serving(t, ctx, func(w http.ResponseWriter, r *http.Request) error { return Forward(w, r, dial) })
}

func header(kind, port, id string) http.Header {
	return http.Header{corev1.StreamType: {kind}, corev1.PortHeader: {port}, corev1.PortForwardRequestIDHeader: {id}}
}

// connect opens a pair of streams.
func connect(t *testing.T, conn *spdystream.Connection, id string, port int) (data, fault *spdystream.Stream) {
	t.Helper()
	fault = openStream(t, conn, header(corev1.StreamTypeError, strconv.Itoa(port), id))
	_ = fault.Close() // kubectl only reads this stream
	return openStream(t, conn, header(corev1.StreamTypeData, strconv.Itoa(port), id)), fault
}

func eachForwarder(t *testing.T, test func(t *testing.T, raw net.Conn, conn *spdystream.Connection,
	closed <-chan int32)) {
	for _, f := range forwarders {
		t.Run(f.name, func(t *testing.T) {
			dial, closed := fakePod(t)
			raw, conn := f.open(t, forwardTo(t, t.Context(), dial))
			test(t, raw, conn, closed)
		})
	}
}

func rest(t *testing.T, s *spdystream.Stream) string {
	t.Helper()
	b, err := io.ReadAll(s)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func TestConnectionsAreForwardedSideBySide(t *testing.T) {
	eachForwarder(t, func(t *testing.T, _ net.Conn, conn *spdystream.Connection, closed <-chan int32) {
		slow, slowFault := connect(t, conn, "1", 7)
		data, fault := connect(t, conn, "2", 7)
		sent := bytes.Repeat([]byte("forward "), 64<<10) // half a MiB of data
		go func() {
			for b := sent; len(b) > 0; b = b[32<<10:] {
				_, _ = data.Write(b[:32<<10])
			}
		}()
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(data, got); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("the echo differs: %v", err)
		}
		_ = data.Close()
		if got := rest(t, data); got != "\x04" {
			t.Errorf("the pod sends %q after the end of its input", got)
		}
		if got := rest(t, fault); got != "" {
			t.Errorf("the error stream has %q", got)
		}
		<-closed
		_, _ = slow.Write([]byte("still here"))
		b := make([]byte, 10)
		if _, err := io.ReadFull(slow, b); err != nil || string(b) != "still here" {
			t.Errorf("the other connection got %q, want still here: %v", b, err)
		}
		_ = slow.Reset()
		if got := rest(t, slowFault); got != "" {
			t.Errorf("the error stream has %q", got)
		}
	})
}

func TestThePodsLastDataArrivesBeforeTheEnd(t *testing.T) {
	eachForwarder(t, func(t *testing.T, _ net.Conn, conn *spdystream.Connection, _ <-chan int32) {
		data, fault := connect(t, conn, "1", 25)
		if got := rest(t, data); got != "bye" {
			t.Errorf("the client receives %q, want bye", got)
		}
		if got := rest(t, fault); got != "" {
			t.Errorf("the error stream has %q", got)
		}
	})
}

func TestARefusedPortIsReportedAndOthersContinue(t *testing.T) {
	eachForwarder(t, func(t *testing.T, _ net.Conn, conn *spdystream.Connection, _ <-chan int32) {
		data, fault := connect(t, conn, "1", 80)
		if got := rest(t, fault); got != "connection refused by port 80" {
			t.Errorf("the error stream has %q", got)
		}
		if got := rest(t, data); got != "" {
			t.Errorf("the data stream has %q", got)
		}
		data, _ = connect(t, conn, "2", 25)
		if got := rest(t, data); got != "bye" {
			t.Errorf("the next connection has the error %q", got)
		}
	})
}

// kubectl resets the stream of a closed local connection. The connection to the pod then ends,
// whether the pod sends, reads or does neither.
func TestAStreamThatIsResetEndsThePodsConnection(t *testing.T) {
	eachForwarder(t, func(t *testing.T, _ net.Conn, conn *spdystream.Connection, closed <-chan int32) {
		for i, port := range []int{7, 9, 19} {
			data, fault := connect(t, conn, strconv.Itoa(i), port)
			_ = data.Reset()
			if got := <-closed; got != int32(port) {
				t.Errorf("port %d ended, want %d", got, port)
			}
			if got := rest(t, fault); got != "" {
				t.Errorf("the error stream of port %d has %q", port, got)
			}
		}
	})
}

func TestAClientThatVanishesEndsItsConnections(t *testing.T) {
	eachForwarder(t, func(t *testing.T, raw net.Conn, conn *spdystream.Connection, closed <-chan int32) {
		for i, port := range []int{7, 9, 19} {
			data, _ := connect(t, conn, strconv.Itoa(i), port)
			t.Cleanup(func() { _ = data.Reset() }) // the client can only end when this stream has ended
		}
		_ = raw.Close()
		for range 3 {
			<-closed
		}
	})
}

func TestEachConnectionGetsTheShutdown(t *testing.T) {
	for _, f := range forwarders {
		t.Run(f.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			dial, _ := fakePod(t)
			_, conn := f.open(t, forwardTo(t, ctx, dial))
			data, fault := connect(t, conn, "1", 7)
			_, _ = data.Write([]byte("x"))
			_, _ = data.Read(make([]byte, 1))
			stop()
			if got := rest(t, fault); got != "the hub is shutting down" {
				t.Errorf("the error stream has %q, want the shutdown", got)
			}
			<-conn.CloseChan()
		})
	}
}

func TestStreamsWithoutAPairAreRefused(t *testing.T) {
	dial, _ := fakePod(t)
	for _, tt := range []struct {
		name           string
		kind, port, id string
	}{
		{"a stream of another type", "stdin", "7", "1"},
		{"a stream without a port", "data", "", "1"},
		{"port 0", "data", "0", "1"},
		{"a port above 65535", "data", "65536", "1"},
		{"a port that is a name", "data", "http", "1"},
		{"a stream without an id", "data", "7", ""},
		{"a second stream of one type", "error", "7", "taken"},
		{"a port that differs from the pair's first stream", "data", "9", "taken"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, conn := forwarders[0].open(t, forwardTo(t, t.Context(), dial))
			openStream(t, conn, header("error", "7", "taken"))
			s, err := conn.CreateStream(header(tt.kind, tt.port, tt.id), nil, false)
			if err == nil {
				err = s.WaitTimeout(patience)
			}
			if !errors.Is(err, spdystream.ErrReset) {
				t.Errorf("read of the stream: %v, want a reset", err)
			}
		})
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	dial, _ := fakePod(t)
	_, conn := forwarders[0].open(t, forwardTo(t, t.Context(), dial))
	for i := range maxConnections {
		openStream(t, conn, header("error", "7", strconv.Itoa(i)))
	}
	s, err := conn.CreateStream(header("error", "7", strconv.Itoa(maxConnections)), nil, false)
	if err == nil {
		err = s.WaitTimeout(patience)
	}
	if err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("connection over the limit of %d: %v", maxConnections, err)
	}
}
