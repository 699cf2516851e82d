package remote

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/labstack/echo/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/ask"
)

type command func(ctx context.Context, s ask.IO) error

// serving serves one command with echo, as the hub does, until ctx ends. An error of Serve is the
// answer's body.
func serving(t *testing.T, ctx context.Context, h func(w http.ResponseWriter, r *http.Request) error) *httptest.Server {
	t.Helper()
	e := echo.New()
	e.Any("/", func(c echo.Context) error {
		if err := h(c.Response(), c.Request()); err != nil {
			var known apierrors.APIStatus
			if !errors.As(err, &known) {
				return err
			}
			st := known.Status()
			return c.JSON(int(st.Code), st)
		}
		return nil
	})
	srv := httptest.NewUnstartedServer(e)
	srv.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	srv.Start()
	t.Cleanup(func() {
		srv.Close()
		nothingLeft(t)
	})
	return srv
}

// nothingLeft fails if a session's goroutine still runs after client and server have ended.
func nothingLeft(t *testing.T) {
	t.Helper()
	all := make([]byte, 1<<20)
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		stacks := string(all[:runtime.Stack(all, true)])
		var left []string
		for s := range strings.SplitSeq(stacks, "\n\n") {
			if (strings.Contains(s, "kube/remote.") || strings.Contains(s, "spdystream.")) &&
				!strings.Contains(s, "testing.tRunner") {
				left = append(left, s)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%d goroutines are left:\n%s", len(left), strings.Join(left, "\n\n"))
			return
		}
	}
}

func serve(t *testing.T, enabled Streams, run command) *httptest.Server {
	return serving(t, t.Context(), func(w http.ResponseWriter, r *http.Request) error { return Serve(w, r, enabled, run) })
}

// each runs a test in every protocol.
func each(t *testing.T, enabled Streams, run command, test func(t *testing.T, c tester)) {
	t.Helper()
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) { test(t, p.open(t, serve(t, enabled, run), enabled)) })
	}
}

func TestOutputsAreSeparateAndTheExitCodeComesLast(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 64<<10) // one MiB
	each(t, Streams{Stdout: true, Stderr: true}, func(_ context.Context, s ask.IO) error {
		if s.Stdin != nil || s.Resize != nil {
			return errors.New("the command has an input that was not requested")
		}
		_, _ = io.WriteString(s.Stderr, "oh")
		_, _ = io.WriteString(s.Stdout, big)
		_, _ = io.WriteString(s.Stderr, " no")
		return &ask.ExitError{Code: 3}
	}, func(t *testing.T, c tester) {
		if got := c.rest(corev1.StreamTypeStdout); got != big {
			t.Errorf("stdout has %d bytes, want %d", len(got), len(big))
		}
		if got := c.rest(corev1.StreamTypeStderr); got != "oh no" {
			t.Errorf("stderr is %q", got)
		}
		st := status(t, c)
		if st.Status != metav1.StatusFailure || st.Reason != "NonZeroExitCode" || len(st.Details.Causes) != 1 ||
			st.Details.Causes[0].Type != "ExitCode" || st.Details.Causes[0].Message != "3" ||
			st.Message != "command terminated with exit code 3" {
			t.Errorf("the command ended with %+v, want exit code 3", st)
		}
	})
}

func TestHowACommandEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want metav1.Status
	}{
		{"code 0 is success", nil, metav1.Status{Status: "Success"}},
		{"an error keeps its text", fmt.Errorf("pod a/b: %w", ask.ErrLost),
			metav1.Status{Status: "Failure", Reason: "InternalError", Code: 500,
				Message: "pod a/b: the device's response was interrupted"}},
		{"an API error is not changed", apierrors.NewBadRequest("no"), apierrors.NewBadRequest("no").ErrStatus},
	} {
		t.Run(tt.name, func(t *testing.T) {
			each(t, Streams{Stdout: true}, func(context.Context, ask.IO) error { return tt.err }, func(t *testing.T, c tester) {
				got := status(t, c)
				if got.Status != tt.want.Status || got.Reason != tt.want.Reason || got.Code != tt.want.Code ||
					got.Message != tt.want.Message {
					t.Errorf("ended with %+v, want %+v", got, tt.want)
				}
			})
		})
	}
}

// Input arrives in order. It ends with an EOF if the protocol can send one.
func TestInputAndItsEnd(t *testing.T) {
	upper := func(_ context.Context, s ask.IO) error {
		b := make([]byte, 1000)
		for {
			n, err := s.Stdin.Read(b)
			if _, err := io.WriteString(s.Stdout, strings.ToUpper(string(b[:n]))); err != nil {
				return err
			}
			if err != nil || strings.Contains(string(b[:n]), "\x04") {
				return nil
			}
		}
	}
	each(t, Streams{Stdin: true, Stdout: true}, upper, func(t *testing.T, c tester) {
		c.send(corev1.StreamTypeStdin, []byte("hello"))
		if got := c.read(corev1.StreamTypeStdout, 5); got != "HELLO" {
			t.Errorf("the command printed %q, want HELLO", got)
		}
		c.send(corev1.StreamTypeStdin, []byte(" you"))
		c.shut()
		if strings.HasPrefix(t.Name(), "TestInputAndItsEnd/v4") { // v4 over a WebSocket has no message for the end of input
			c.send(corev1.StreamTypeStdin, []byte("\x04"))
			if got := c.rest(corev1.StreamTypeStdout); got != " YOU\x04" {
				t.Errorf("the command's output is %q", got)
			}
		} else if got := c.rest(corev1.StreamTypeStdout); got != " YOU" {
			t.Errorf("the command's output is %q", got)
		}
		if st := status(t, c); st.Status != metav1.StatusSuccess {
			t.Errorf("the command ended with %+v, want success", st)
		}
	})
}

// A command's output arrives even if the command does not read its input.
func TestUnreadInput(t *testing.T) {
	begin := make(chan struct{})
	each(t, Streams{Stdin: true, Stdout: true}, func(_ context.Context, s ask.IO) error {
		<-begin
		_, _ = io.WriteString(s.Stdout, "done")
		return &ask.ExitError{Code: 1}
	}, func(t *testing.T, c tester) {
		for range 20 {
			c.send(corev1.StreamTypeStdin, make([]byte, 16<<10))
		}
		begin <- struct{}{}
		for range 20 {
			c.send(corev1.StreamTypeStdin, make([]byte, 16<<10))
		}
		if got := c.rest(corev1.StreamTypeStdout); got != "done" {
			t.Errorf("stdout is %q", got)
		}
		if st := status(t, c); st.Reason != "NonZeroExitCode" {
			t.Errorf("the command ended with %+v, want NonZeroExitCode", st)
		}
	})
}

// A terminal has one output. Only the newest size counts; an invalid size is ignored.
func TestATerminal(t *testing.T) {
	each(t, Streams{Stdin: true, Stdout: true, Stderr: true, TTY: true}, func(_ context.Context, s ask.IO) error {
		if s.Stderr != nil {
			return errors.New("a terminal with two outputs")
		}
		if _, err := io.ReadFull(s.Stdin, make([]byte, 1)); err != nil { // input arrives although the size was not read
			return err
		}
		for size := range s.Resize {
			_, _ = fmt.Fprintf(s.Stdout, "%dx%d\n", size.Width, size.Height)
			if size.Height == 50 {
				break
			}
		}
		return nil
	}, func(t *testing.T, c tester) {
		for _, size := range []string{`{"Width":80,"Height":24}`, `{"Width":81,"Height":24}`, `{"Width":132,"Height":50}`} {
			c.send(corev1.StreamTypeResize, []byte(size))
		}
		c.send(corev1.StreamTypeStdin, []byte("x"))
		if got := c.rest(corev1.StreamTypeStdout); !strings.HasSuffix(got, "132x50\n") {
			t.Errorf("the command got the sizes %q, want 132x50 as the last", got)
		}
		if st := status(t, c); st.Status != metav1.StatusSuccess {
			t.Errorf("the command ended with %+v, want success", st)
		}
	})
}

func TestAClientThatVanishesEndsTheCommand(t *testing.T) {
	ended := make(chan struct{})
	each(t, Streams{Stdin: true, Stdout: true}, func(ctx context.Context, s ask.IO) error {
		_, _ = io.WriteString(s.Stdout, "hi")
		<-ctx.Done()
		ended <- struct{}{}
		return ctx.Err()
	}, func(t *testing.T, c tester) {
		_ = c.read(corev1.StreamTypeStdout, 2)
		c.vanish()
		<-ended
	})
}

// A lost client is an error, not an EOF. Otherwise the command would take half of a file for the
// whole file.
func TestALostClientIsNotTheEndOfInput(t *testing.T) {
	ends := make(chan error)
	each(t, Streams{Stdin: true, Stdout: true}, func(_ context.Context, s ask.IO) error {
		if _, err := io.ReadFull(s.Stdin, make([]byte, 4)); err != nil {
			return err
		}
		_, _ = io.WriteString(s.Stdout, "hi")
		_, err := io.ReadAll(s.Stdin)
		ends <- err
		return err
	}, func(t *testing.T, c tester) {
		c.send(corev1.StreamTypeStdin, []byte("half"))
		_ = c.read(corev1.StreamTypeStdout, 2)
		c.vanish()
		if err := <-ends; err == nil {
			t.Error("the input of a lost client must end with an error")
		}
	})
}

// The client receives the hub's shutdown as the reason, even if other errors follow from it.
func TestTheClientGetsTheShutdown(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			enabled := Streams{Stdout: true}
			srv := serving(t, ctx, func(w http.ResponseWriter, r *http.Request) error {
				return Serve(w, r, enabled, func(ctx context.Context, s ask.IO) error {
					_, _ = io.WriteString(s.Stdout, "hi")
					<-ctx.Done()
					return ask.ErrLost
				})
			})
			c := p.open(t, srv, enabled)
			_ = c.read(corev1.StreamTypeStdout, 2)
			stop()
			if st := status(t, c); st.Status != metav1.StatusFailure || st.Message != "the hub is shutting down" {
				t.Errorf("the command ended with %+v, want the shutdown as the reason", st)
			}
		})
	}
}

// The first message to a v4 client says that the streams are open.
func TestTheFirstMessageIsEmpty(t *testing.T) {
	for want, enabled := range map[byte]Streams{1: {Stdout: true, Stderr: true}, 2: {Stderr: true}, 3: {Stdin: true}} {
		c := openSocket(t, serve(t, enabled, func(context.Context, ask.IO) error { return nil }), "v4.channel.k8s.io")
		_ = status(t, c)
		if len(c.first) != 1 || c.first[0] != want {
			t.Errorf("%+v: the first message is %v, want one on channel %d", enabled, c.first, want)
		}
	}
}

// Kubernetes' own suite and browsers use older forms: base64 text, and, before v4, a last message
// that is only the text of the error.
func TestOlderForms(t *testing.T) {
	echo := func(_ context.Context, s ask.IO) error {
		line := make([]byte, 4)
		if _, err := io.ReadFull(s.Stdin, line); err != nil {
			return err
		}
		_, err := s.Stdout.Write(append([]byte("said "), line...))
		return err
	}
	fails := func(context.Context, ask.IO) error { return &ask.ExitError{Code: 3} }
	for _, c := range []struct {
		protocol, input, output string
		kind                    int
		run                     func(context.Context, ask.IO) error
	}{
		{"channel.k8s.io", "\x00word", "\x01|\x01said word", websocket.BinaryMessage, echo},
		{"channel.k8s.io", "", "\x01|\x03" + (&ask.ExitError{Code: 3}).Error(), websocket.BinaryMessage, fails},
		{"base64.channel.k8s.io", "0d29yZA==", "1|1c2FpZCB3b3Jk", websocket.TextMessage, echo},
		{"v4.base64.channel.k8s.io", "0d29yZA==", "1|1c2FpZCB3b3Jk|3" + base64.StdEncoding.EncodeToString([]byte(`{"metadata":{},"status":"Success"}`)), websocket.TextMessage, echo},
	} {
		t.Run(c.protocol, func(t *testing.T) {
			d := websocket.Dialer{Subprotocols: []string{c.protocol}}
			conn, _, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(serve(t, Streams{Stdin: true, Stdout: true},
				c.run).URL, "http"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if c.input != "" {
				if err := conn.WriteMessage(c.kind, []byte(c.input)); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for {
				kind, m, err := conn.ReadMessage()
				if err != nil {
					break
				}
				if kind != c.kind {
					t.Errorf("a message has type %d, want %d", kind, c.kind)
				}
				got = append(got, string(m))
			}
			if s := strings.Join(got, "|"); s != c.output {
				t.Errorf("received %q, want %q", s, c.output)
			}
		})
	}
}

func TestRequestsThatCannotBeUpgraded(t *testing.T) {
	run := serving(t, t.Context(), func(w http.ResponseWriter, r *http.Request) error {
		return Serve(w, r, Streams{Stdout: true}, func(context.Context, ask.IO) error { return errors.New("it ran") })
	})
	forward := serving(t, t.Context(), func(w http.ResponseWriter, r *http.Request) error {
		return Forward(w, r, func(context.Context, int32) (io.ReadWriteCloser, error) { return nil, errors.New("it ran") })
	})
	ws := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}}
	spdy := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}}
	with := func(h http.Header, name, value string) http.Header {
		h = h.Clone()
		h.Set(name, value)
		return h
	}
	for _, tt := range []struct {
		name   string
		srv    *httptest.Server
		method string
		header http.Header
		want   string
	}{
		{"a plain request", run, "GET", nil, "upgrade the connection"},
		{"a WebSocket without a protocol", run, "GET", ws, "client supports []"},
		{"a WebSocket with an old protocol", run, "GET", with(ws, "Sec-WebSocket-Protocol", "v3.channel.k8s.io"), "server accepts [v5.channel.k8s.io v4.channel.k8s.io v4.base64.channel.k8s.io channel.k8s.io base64.channel.k8s.io]"},
		{"a WebSocket with an invalid key", run, "GET", with(with(ws, "Sec-WebSocket-Protocol", "v5.channel.k8s.io"), "Sec-WebSocket-Key", "x"), "Sec-WebSocket-Key"},
		{"a WebSocket by POST", run, "POST", with(ws, "Sec-WebSocket-Protocol", "v5.channel.k8s.io"), "not GET"},
		{"SPDY without a protocol", run, "POST", spdy, "client supports []"},
		{"SPDY with an old protocol", run, "POST", with(spdy, protocolHeader, "v2.channel.k8s.io, channel.k8s.io"), "server accepts [v4.channel.k8s.io]"},
		{"port-forward with channels", forward, "GET", with(ws, "Sec-WebSocket-Protocol", "v4.channel.k8s.io"), "server accepts [SPDY/3.1+portforward.k8s.io]"},
		{"port-forward with the protocol of exec", forward, "POST", with(spdy, protocolHeader, "v4.channel.k8s.io"), "server accepts [portforward.k8s.io]"},
		{"port-forward without an upgrade", forward, "POST", nil, "upgrade the connection"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := http.NewRequestWithContext(t.Context(), tt.method, tt.srv.URL, nil)
			r.Header = tt.header
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			var st metav1.Status
			if err := json.NewDecoder(answer.Body).Decode(&st); err != nil || answer.StatusCode != http.StatusBadRequest ||
				!strings.Contains(st.Message, tt.want) {
				t.Errorf("%d %+v, %v; want 400 with %q", answer.StatusCode, st, err, tt.want)
			}
		})
	}
}

// The 101 response also has the headers that were set before the upgrade. From one of them a standby
// learns the user.
func TestHeadersArePartOfAnUpgrade(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Flotilla-Caller", "kari")
		s, err := upgrade(w, r, "v4.channel.k8s.io")
		if err != nil {
			t.Error(err)
			return
		}
		s.markClosed()
		_ = s.conn.Close()
	}))
	defer srv.Close()
	d := websocket.Dialer{Subprotocols: []string{"v4.channel.k8s.io"}}
	conn, answer, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(srv.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if answer.Header.Get("Flotilla-Caller") != "kari" || conn.Subprotocol() != "v4.channel.k8s.io" {
		t.Errorf("the 101 response has the protocol %q and the headers %v", conn.Subprotocol(), answer.Header)
	}
}
