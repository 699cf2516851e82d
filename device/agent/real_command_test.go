package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/request"
	"flotilla.dev/device/request/requesttest"
	"flotilla.dev/shared/wire"
)

// A realRequestHub is a hub with one stream.
type realRequestHub struct {
	*device
	stream *requesttest.Stream
}

func (s realRequestHub) Stream(string) request.Stream { return s.stream }

// request sends a request to the agent of a device with a real engine.
func (d *realDevice) request(r wire.Request) *requesttest.Stream {
	d.t.Helper()
	a := requesttest.New()
	d.agent.SetHub(realRequestHub{&device{}, a})
	d.agent.Request("r"+time.Now().Format("150405.000000000"), r)
	return a
}

// ends waits for the last reply.
func ends(t *testing.T, a *requesttest.Stream) wire.Reply {
	t.Helper()
	select {
	case r := <-a.End:
		return r
	case <-time.After(time.Minute):
		t.Fatalf("the request did not end; its output is %q so far", a.Stdout())
		return wire.Reply{}
	}
}

// send sends an input.
func send(t *testing.T, a *requesttest.Stream, r wire.Request) {
	t.Helper()
	select {
	case a.Inputs <- r:
	case end := <-a.End:
		t.Fatalf("the request has ended: %+v", end)
	case <-time.After(time.Minute):
		t.Fatal("the input is not read")
	}
}

// Exec, attach and port-forward work in a pod of three containers on one network. One container
// listens only on 127.0.0.1.
func TestRealEngineServesRequests(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		marker := "marker-" + d.node
		p := makePod("talks", "serve 127.0.0.1:8080", "cat -", "wait")
		p.UID = types.UID("uid-talks-" + d.node)
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		p.Spec.Containers[1].Stdin, p.Spec.Containers[1].TTY = true, true
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p}}); err != nil {
			t.Fatal(err)
		}
		d.await("all containers run", func() bool { return ready(d.pod("talks")) })
		request := func(kind, container, words string) wire.Request {
			return wire.Request{Type: kind, Pod: string(p.UID), Container: container, Command: strings.Fields(words)}
		}

		a := d.request(request(wire.RequestExec, "c2", "/tool print out then complain err then exit 5"))
		if end := ends(t, a); a.Stdout() != "out\n" || a.Stderr() != "err\n" || end.ExitCode != 5 || end.Error != "" {
			t.Errorf("a command prints %q and %q, and ends with %+v", a.Stdout(), a.Stderr(), end)
		}

		r := request(wire.RequestExec, "c2", "/tool sum")
		r.Stdin = true
		a = d.request(r)
		for range 100 {
			send(t, a, wire.Request{Type: wire.RequestStdin, Data: bytes.Repeat([]byte{0x10, 0x11, 0}, 10_000)})
		}
		send(t, a, wire.Request{Type: wire.RequestCloseStdin})
		if end := ends(t, a); !strings.HasPrefix(a.Stdout(), "3000000 ") || end.Error != "" {
			t.Errorf("of 3000000 bytes the command has read %q; %+v", a.Stdout(), end)
		}

		r = request(wire.RequestExec, "c2", "/tool size 123 45")
		r.Stdin, r.TTY = true, true
		a = d.request(r)
		send(t, a, wire.Request{Type: wire.RequestResize, Width: 80, Height: 24})
		send(t, a, wire.Request{Type: wire.RequestResize, Width: 123, Height: 45})
		if end := ends(t, a); a.Stdout() != "the terminal is 123 by 45\r\n" || end.ExitCode != 0 {
			t.Errorf("a terminal prints %q, and ends with %+v", a.Stdout(), end)
		}

		r = request(wire.RequestExec, "c2", "/tool print "+marker+" then wait")
		a = d.request(r)
		d.await("the command has begun", func() bool { return a.Stdout() == marker+"\n" && runs(marker) })
		close(a.Lost)
		d.await("the command has ended with its client", func() bool { return !runs(marker) })

		a = d.request(wire.Request{Type: wire.RequestAttach, Pod: string(p.UID), Container: "c1", Stdin: true})
		send(t, a, wire.Request{Type: wire.RequestStdin, Data: []byte("hello\n")})
		// the terminal's echo, and the program's output
		d.await("the container's output", func() bool { return strings.Count(a.Stdout(), "hello") == 2 })
		close(a.Lost)

		a = d.request(wire.Request{Type: wire.RequestPortForward, Pod: string(p.UID), Port: 8080})
		send(t, a, wire.Request{Type: wire.RequestStdin,
			Data: []byte("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")})
		if end := ends(t, a); !strings.HasPrefix(a.Stdout(), "HTTP/1.1 200 OK") || end.Error != "" {
			t.Errorf("the port returns %q, and ends with %+v", a.Stdout(), end)
		}
		a = d.request(wire.Request{Type: wire.RequestPortForward, Pod: string(p.UID), Port: 8081})
		if end := ends(t, a); end.Error != "connection refused: nothing listens on port 8081" {
			t.Errorf("a port without a listener ends with %+v", end)
		}

		a = d.request(wire.Request{Type: wire.RequestUsage})
		end := ends(t, a)
		u, err := wire.ParseUsage([]byte(a.Stdout()))
		if err != nil || end.Error != "" || len(u.Pods) != 1 || len(u.Pods[0].Containers) != 3 {
			t.Fatalf("the usage is %+v, error %v, last reply %+v; want one pod with three containers", u, err, end)
		}
		for _, c := range u.Pods[0].Containers {
			if m := c.Usage.Memory().Value(); m < 100<<10 || m > 64<<20 {
				t.Errorf("container %s uses %d bytes", c.Name, m)
			}
		}
	})
}

// runs reports whether this machine runs a process with a word in its command line.
func runs(word string) bool {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte(word)) {
			return true
		}
	}
	return false
}
