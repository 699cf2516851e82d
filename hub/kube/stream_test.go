package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/ask"
)

// A stream that cannot be opened is refused with a Status, before the connection is upgraded.
func TestStreamsThatAreRefused(t *testing.T) {
	const out = "stdout=1&"
	for _, tt := range []struct {
		name string
		request
		code int
		want string
	}{
		{"a missing pod", request{path: "nope/exec?command=a&" + out}, 404, `pods "nope" not found`},
		{"a viewer may not run a command", request{role: "viewer", path: "kiosk-1/exec?command=a&" + out}, 403, `resource "pods/exec" in API group "" in the namespace "default": role "viewer" does not allow it`},
		{"a viewer may not attach", request{role: "viewer", path: "kiosk-1/attach?" + out}, 403, `resource "pods/attach" in API group "" in the namespace "default": role "viewer" does not allow it`},
		{"a viewer may not forward", request{role: "viewer", path: "kiosk-1/portforward"}, 403, `resource "pods/portforward" in API group "" in the namespace "default": role "viewer" does not allow it`},
		{"no authentication", request{role: "nobody", path: "kiosk-1/exec?command=a&" + out}, 401, "Unauthorized"},
		{"no command", request{path: "kiosk-1/exec?" + out}, 400, "you must specify a command"},
		{"an empty command", request{path: "kiosk-1/exec?command=&" + out}, 400, "you must specify a command"},
		{"no stream", request{path: "kiosk-1/exec?command=a&stdout=false&stdin=0"}, 400, "at least 1 of stdin, stdout, stderr"},
		{"no stream to attach to", request{path: "kiosk-1/attach"}, 400, "at least 1 of stdin, stdout, stderr"},
		{"an unknown container", request{path: "kiosk-1/exec?command=a&container=x&" + out}, 400, "container x is not valid for pod kiosk-1"},
		{"no container name for a pod with several", request{path: "two/exec?command=a&" + out}, 400, "a container name must be specified for pod two, choose one of: [main side] or one of the init containers: [first]"},
		{"a pod without a node", request{path: "kiosk-2/exec?command=a&" + out}, 400, "pod kiosk-2 does not have a host assigned"},
		{"a device that is not connected", request{path: "guarded/exec?command=a&" + out}, 503, "the device of node pi-2 is not connected to the hub: it was last seen at 2026-11-20T12:01:00Z"},
		{"port-forward to a device that is not connected", request{path: "guarded/portforward"}, 503, "the device of node pi-2 is not connected"},
		{"a waiting container", request{path: "two/exec?container=side&command=a&" + out}, 400, "container side of pod two is not running: it is waiting: CrashLoopBackOff"},
		{"a container that has ended", request{path: "two/exec?container=first&command=a&" + out}, 400, "container first of pod two is not running: it ended with code 0"},
		{"a container that has not started", request{path: "fresh/attach?" + out}, 400, "container main of pod fresh is not running: it has not started yet"},
		{"a pod that has ended", request{path: "done/exec?command=a&" + out}, 400, "pod done has ended: its phase is Succeeded"},
		{"port-forward to a pod that has not started", request{path: "fresh/portforward"}, 400, "pod fresh is not running: its phase is Pending"},
		{"exec without an upgrade", request{path: "kiosk-1/exec?command=a&" + out}, 400, "upgrade the connection"},
		{"port-forward without an upgrade", request{path: "kiosk-1/portforward"}, 400, "upgrade the connection"},
		{"an unsupported method", request{method: "PUT", path: "kiosk-1/exec?command=a&" + out}, 405, "not"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, method := range []string{"GET", "POST"} {
				q := tt.request
				if q.path = ns + "/pods/" + q.path; q.method == "" {
					q.method = method
				}
				w := q.do(streaming())
				var st metav1.Status
				if err := json.Unmarshal(w.Body.Bytes(), &st); err != nil || w.Code != tt.code || int(st.Code) != tt.code ||
					!strings.Contains(st.Message, tt.want) {
					t.Errorf("%s: %d %s, want %d with %q", q.method, w.Code, w.Body, tt.code, tt.want)
				}
			}
		})
	}
}

// Each method of a stream's subresource needs the right to create, also a GET.
func TestAStreamNeedsTheRightToCreate(t *testing.T) {
	s := streaming()
	s.Allow = func(_ access.Role, verb, _ string) bool { return verb == "get" }
	for _, sub := range []string{"exec?command=a&stdout=1", "attach?stdout=1", "portforward"} {
		if w := (request{method: "GET", path: ns + "/pods/kiosk-1/" + sub}).do(s); w.Code != http.StatusForbidden {
			t.Errorf("%s: %d %s; want 403", sub, w.Code, w.Body)
		}
	}
}

// dialCommand opens a WebSocket for a command.
func dialCommand(t *testing.T, srv *httptest.Server, path string, header http.Header) (*websocket.Conn,
	*http.Response, error) {
	t.Helper()
	if header == nil {
		header = http.Header{"Authorization": {"Bearer operator"}}
	}
	d := websocket.Dialer{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, answer, err := d.DialContext(t.Context(), "ws"+strings.TrimPrefix(srv.URL, "http")+ns+path, header)
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, answer, err
}

// outcome reads a command's output and result until the stream ends.
func outcome(t *testing.T, conn *websocket.Conn) (out string, st metav1.Status) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	var status []byte
	for {
		_, m, err := conn.ReadMessage()
		switch {
		case err != nil && status == nil:
			t.Fatalf("the command printed %q and ended with %v", out, err)
		case err != nil:
			if err := json.Unmarshal(status, &st); err != nil {
				t.Fatal(err)
			}
			return out, st
		case m[0] == 3:
			status = append(status, m[1:]...)
		default:
			out += string(m[1:])
		}
	}
}

// A questioned is a fake that records its calls.
type questioned struct {
	commands
	exec   chan corev1.PodExecOptions
	attach chan corev1.PodAttachOptions
	err    error // result of each call; nil lets it run until ctx ends
	ended  atomic.Bool
}

func (a *questioned) Exec(ctx context.Context, _ *corev1.Pod, o corev1.PodExecOptions, _ ask.IO) error {
	a.exec <- o
	if a.err == nil {
		<-ctx.Done()
		time.Sleep(50 * time.Millisecond)
		a.ended.Store(true)
		return ctx.Err()
	}
	return a.err
}

func (a *questioned) Attach(_ context.Context, _ *corev1.Pod, o corev1.PodAttachOptions, _ ask.IO) error {
	a.attach <- o
	return a.err
}

func TestOptionsReachTheDevice(t *testing.T) {
	s := streaming()
	a := &questioned{exec: make(chan corev1.PodExecOptions, 1), attach: make(chan corev1.PodAttachOptions, 1),
		err: &ask.ExitError{Code: 1}}
	s.Streams = a
	var kept auditing
	s.Audit = &kept
	srv := mounted(s)
	defer srv.Close()
	conn, _, err := dialCommand(t, srv, "/pods/kiosk-1/exec?command=sh&command=-c&command=a%20b&stdin=1&stdout=true&tty=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, st := outcome(t, conn); st.Reason != "NonZeroExitCode" {
		t.Errorf("the command ended with %+v, want NonZeroExitCode", st)
	}
	o := <-a.exec
	if o.Container != "main" || strings.Join(o.Command, "|") != "sh|-c|a b" || !o.Stdin || !o.Stdout ||
		o.Stderr || !o.TTY {
		t.Errorf("the device received %+v, want stdin, stdout and a terminal for main", o)
	}
	if conn, _, err = dialCommand(t, srv, "/pods/kiosk-1/attach?container=main&stderr=1", nil); err != nil {
		t.Fatal(err)
	}
	_, _ = outcome(t, conn)
	if o := <-a.attach; o.Container != "main" || o.Stdin || o.Stdout || !o.Stderr || o.TTY {
		t.Errorf("the device received %+v, want only stderr of main", o)
	}
	want := []string{"operator create pods/exec default/kiosk-1 container main sh -c a b done",
		"operator create pods/attach default/kiosk-1 container main done"}
	if strings.Join(kept.lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("the audit has %q, want %q", kept.lines, want)
	}
}

func TestTheAuditCutsLongCommands(t *testing.T) {
	got := describeStream(&corev1.PodExecOptions{Container: "main", Command: []string{"sh", "-c",
		strings.Repeat("é", 5000), "\xff"}})
	if !strings.HasPrefix(got, "container main sh -c éé") || len(got) > 1010 || !utf8.ValidString(got) {
		t.Errorf("the audit describes the command in %d bytes, want at most 1010 of text: %.100s", len(got), got)
	}
}

func TestAnErrorOfTheDeviceNamesThePod(t *testing.T) {
	s := streaming()
	s.Streams = &questioned{exec: make(chan corev1.PodExecOptions, 1),
		err: fmt.Errorf("exec of node pi-1: %w", ask.ErrLost)}
	srv := mounted(s)
	defer srv.Close()
	conn, _, err := dialCommand(t, srv, "/pods/kiosk-1/exec?command=a&stdout=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, st := outcome(t, conn); st.Message != "pod default/kiosk-1: exec of node pi-1: the device's response was interrupted" {
		t.Errorf("the command ended with %+v, want an error with the pod's name", st)
	}
}

// A page of another site cannot use the browser's certificate. The hub's own page can, and so can
// the page of a program on the caller's machine, such as Headlamp.
func TestAPageOfAnotherSiteRunsNoCommand(t *testing.T) {
	s := streaming()
	s.Access = certificate{}
	srv := mounted(s)
	defer srv.Close()
	for origin, may := range map[string]bool{
		"": true, "https://hub.example:8443": true,
		"http://localhost:4466": true, "http://127.0.0.1:4466": true, "http://[::1]:4466": true, "file://": true,
		"http://evil.example": false, "https://evil.example:8443": false, "https://hub.example": false, "null": false,
		"http://localhost.evil.example": false, "http://127.0.0.1.evil.example": false, "http://evil.example/localhost": false,
		"http://localhost@evil.example": false, "localhost": false, "://": false,
	} {
		conn, answer, err := dialCommand(t, srv, "/pods/kiosk-1/exec?command=echo&command=hi&stdout=1",
			http.Header{"Origin": {origin}, "Host": {"hub.example:8443"}})
		if !may {
			if err == nil || answer.StatusCode != http.StatusForbidden {
				t.Errorf("a page of %q must not run a command: %v", origin, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("a page of %q must run a command: %v", origin, err)
			continue
		}
		if out, _ := outcome(t, conn); out != "hi\n" {
			t.Errorf("the answer to a page of %q is %q", origin, out)
		}
	}
}

func TestOneUserCannotTakeAllSessions(t *testing.T) {
	s := streaming()
	sessions := 0
	for range maxSessions {
		if _, err := (&call{Server: s, user: access.User{Name: "vera"}}).enter(); err == nil {
			sessions++
		}
	}
	leave, err := (&call{Server: s, user: access.User{Name: "ola"}}).enter()
	if sessions != userSessions || err != nil {
		t.Fatalf("one user has %d sessions, want %d; another user's session: %v", sessions, userSessions, err)
	}
	leave()
}

func TestSessionsAreBounded(t *testing.T) {
	s := streaming()
	if !s.sessions.TryAcquire(maxSessions - 1) {
		t.Fatal("an ended session must free its place")
	}
	a := &questioned{exec: make(chan corev1.PodExecOptions, 1)}
	s.Streams = a
	srv := mounted(s)
	defer srv.Close()
	const path = "/pods/kiosk-1/exec?command=a&stdout=1"
	conn, _, err := dialCommand(t, srv, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	<-a.exec
	if _, answer, err := dialCommand(t, srv, path, nil); err == nil || answer.StatusCode != http.StatusTooManyRequests ||
		answer.Header.Get("Retry-After") != "10" {
		t.Errorf("session over the limit of %d: %v", maxSessions, err)
	}
	if w := (request{method: "GET", path: ns + "/pods/kiosk-1/log?follow=1"}).do(s); w.Code != http.StatusTooManyRequests {
		t.Errorf("followed log over the limit of sessions: %d %s; want 429", w.Code, w.Body)
	}
	if w := (request{method: "GET", path: ns + "/pods/kiosk-1/log"}).do(s); w.Code != http.StatusOK {
		t.Errorf("a log that ends must not count as a session: %d %s; want 200", w.Code, w.Body)
	}
	_ = conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.sessions.Acquire(ctx, 1); err != nil {
		t.Errorf("a closed session must free its place: %v", err)
	}
}

// Run waits until all sessions have sent their clients the reason of the shutdown.
func TestAShutdownEndsSessions(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	s := streaming()
	a := &questioned{exec: make(chan corev1.PodExecOptions, 1)}
	s.Streams = a
	srv := httptest.NewUnstartedServer(s)
	srv.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	srv.Start()
	defer srv.Close()
	conn, _, err := dialCommand(t, srv, "/pods/kiosk-1/exec?command=a&stdout=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	<-a.exec
	stop()
	over := make(chan error, 1)
	go func() {
		err := s.Run(ctx)
		if !a.ended.Load() {
			err = errors.New("Run must wait for sessions")
		}
		over <- err
	}()
	if _, st := outcome(t, conn); st.Message != "the hub is shutting down" {
		t.Errorf("the command ended with %+v, want the shutdown as the reason", st)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
}

func TestALogThatFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		code int
	}{
		{"the device is not connected", fmt.Errorf("logs of node pi-1: %w", ask.ErrOffline), 503},
		{"the device does not answer", fmt.Errorf("logs of node pi-1: %w", ask.ErrLost), 503},
		{"the device refuses", errors.New(`previous terminated container "main" in pod "kiosk-1" not found`), 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := seeded()
			f.logs = func(context.Context, *corev1.Pod, corev1.PodLogOptions, io.Writer) error { return tt.err }
			w := request{method: "GET", path: ns + "/pods/kiosk-1/log"}.do(newServer(f))
			if w.Code != tt.code || !strings.Contains(w.Body.String(), "node pi-1") &&
				!strings.Contains(w.Body.String(), "previous") {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tt.code)
			}
		})
	}
}
