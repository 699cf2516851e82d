package kube

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/kubectltest"
)

// Versions of kubectl use different protocols: 1.29 uses SPDY, 1.32 and 1.37 use WebSockets.
func TestKubectlStreams(t *testing.T) {
	for _, minor := range kubectltest.Minors {
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			k := &streamer{kubectltest.Build(t, minor), serveTLS(t, streaming(), "operator")}
			t.Run("one line each", k.lines)
			t.Run("exec on a terminal", k.terminal)
			t.Run("attach", k.attach)
			t.Run("cp", k.copies)
			t.Run("port-forward", k.forward)
			t.Run("as viewer", func(t *testing.T) {
				k := &streamer{k.program, serveTLS(t, streaming(), "viewer")}
				for _, args := range [][]string{{"exec", "kiosk-1", "--", "true"}, {"attach", "kiosk-1"},
					{"port-forward", "kiosk-1", ":80"}} {
					out, errs, code := kubectltest.Run(t, k.program, k.config, args...)
					if want := `User "viewer" cannot create resource "pods/`; code != 1 || !strings.Contains(errs, want) {
						t.Errorf("%v: exit %d, %s%s", args, code, out, errs)
					}
				}
			})
		})
	}
}

type streamer struct{ program, config string }

// run runs kubectl. Versions up to 1.32 open their streams in the background; data that arrives
// before a stream is open is lost, with a message. In that case run tries again.
func (k *streamer) run(t *testing.T, stdin string, args ...string) (out, errs string, code int) {
	t.Helper()
	for range 5 {
		out, errs, code = kubectltest.RunInput(t, k.program, k.config, stdin, args...)
		if !strings.Contains(errs, "Unknown stream id") {
			break
		}
	}
	return out, errs, code
}

func (k *streamer) lines(t *testing.T) {
	long := strings.Repeat("a long line of input\n", 50_000) // one MiB
	for _, c := range []struct {
		args      []string
		stdin     string
		code      int
		out, errs string // the whole output and errors
		part      bool   // out and errs are only parts
	}{
		{args: []string{"exec", "kiosk-1", "--", "echo", "hi"}, out: "hi\n"},
		{args: []string{"exec", "kiosk-1", "--", "sh", "-c", "echo out; echo err >&2; exit 3"}, code: 3, out: "out\n", errs: "err\ncommand terminated with exit code 3\n"},
		{args: []string{"exec", "kiosk-1", "--", "sh", "-c", "kill -9 $$"}, code: 1, errs: "error: pod default/kiosk-1: signal: killed\n"},
		{args: []string{"exec", "-i", "kiosk-1", "--", "cat"}, stdin: "what goes in", out: "what goes in"},
		{args: []string{"exec", "-i", "kiosk-1", "--", "wc", "-c"}, stdin: long, out: fmt.Sprintln(len(long))},
		{args: []string{"exec", "-i", "kiosk-1", "--", "cat"}, stdin: long, out: long},
		{args: []string{"exec", "-i", "kiosk-1", "--", "true"}, stdin: long, part: true}, // kubectl may report unread input
		{args: []string{"exec", "kiosk-1", "--", "cat"}},
		{args: []string{"exec", "deploy/none", "--", "true"}, code: 1, errs: `deployments.apps "none" not found`, part: true},
		{args: []string{"exec", "nope", "--", "true"}, code: 1, errs: `pods "nope" not found`, part: true},
		{args: []string{"exec", "two", "-c", "nope", "--", "true"}, code: 1, errs: `container nope is not valid for pod two`, part: true},
		{args: []string{"exec", "two", "-c", "side", "--", "true"}, code: 1, errs: `container side of pod two is not running: it is waiting: CrashLoopBackOff`, part: true},
		{args: []string{"exec", "kiosk-2", "--", "true"}, code: 1, errs: `pod kiosk-2 does not have a host assigned`, part: true},
		{args: []string{"exec", "done", "--", "true"}, code: 1, errs: `completed pod`, part: true},
		{args: []string{"exec", "guarded", "--", "true"}, code: 1, errs: `the device of node pi-2 is not connected to the hub`, part: true},
		{args: []string{"port-forward", "guarded", ":80"}, code: 1, errs: `the device of node pi-2 is not connected to the hub`, part: true},
		{args: []string{"logs", "guarded"}, code: 1, errs: `the device of node pi-2 is not connected to the hub`, part: true},
		{args: []string{"attach", "kiosk-1"}, out: "attached to main of kiosk-1\n", errs: "If you don't see a command prompt", part: true},
		{args: []string{"debug", "kiosk-1", "--image=busybox:1"}, code: 1, errs: "the agent of node pi-1 does not support ephemeral containers: update flotilla-device there", part: true},
		{args: []string{"debug", "node/pi-1", "--image=busybox:1"}, code: 1, errs: "spec.hostNetwork: Forbidden", part: true},
		{args: []string{"logs", "kiosk-1"}, out: `kiosk-1 {"container":"main"}` + "\n"},
		{args: []string{"logs", "kiosk-1", "-f", "--tail=3", "--timestamps"}, out: `kiosk-1 {"container":"main","follow":true,"timestamps":true,"tailLines":3}` + "\n"},
		{args: []string{"logs", "kiosk-1", "-p", "--since=90s", "--limit-bytes=5"}, out: `kiosk-1 {"container":"main","previous":true,"sinceSeconds":90,"limitBytes":5}` + "\n"},
		{args: []string{"logs", "kiosk-1", "--since-time=2026-11-20T12:00:00Z"}, out: `kiosk-1 {"container":"main","sinceTime":"2026-11-20T12:00:00Z"}` + "\n"},
		{args: []string{"logs", "two", "--all-containers", "--prefix"}, out: "[pod/two/first] two {\"container\":\"first\"}\n[pod/two/main] two {\"container\":\"main\"}\n[pod/two/side] two {\"container\":\"side\"}\n"},
		{args: []string{"logs", "two", "-c", "nope"}, code: 1, errs: "container nope is not valid for pod two", part: true},
	} {
		out, errs, code := k.run(t, c.stdin, c.args...)
		if slices.Contains(c.args, "--all-containers") { // kubectl may print the containers in any order
			out = strings.Join(slices.Sorted(strings.Lines(out)), "")
		}
		if code != c.code || !c.part && (out != c.out || errs != c.errs) || !strings.Contains(out, c.out) ||
			!strings.Contains(errs, c.errs) {
			t.Errorf("%v: exit %d, want %d; %d bytes of output, want %d\n%.300s%.300s", c.args, code, c.code, len(out),
				len(c.out), out, errs)
		}
	}
}

func (k *streamer) terminal(t *testing.T) {
	s := kubectltest.StartTerminal(t, k.program, k.config, "exec", "-it", "kiosk-1", "--", "sh")
	s.Say("until stty size | grep -x '24 80'; do sleep .1; done; echo $((20+22))\r")
	if printed := s.Await("42\r\n"); !strings.Contains(printed, "24 80\r\n") {
		t.Errorf("the terminal's size is missing in %q", printed)
	}
	s.Resize(132, 50)
	s.Say("until stty size | grep -x '50 132'; do sleep .1; done; echo $((6*7))\r")
	if printed := s.Await("42\r\n"); !strings.Contains(printed, "50 132\r\n") {
		t.Errorf("the new size is missing in %q", printed)
	}
	s.Say("cat\r")
	s.Say("it runs\r")
	s.Await("it runs\r\n") // the terminal's echo, possibly before the shell's prompt
	s.Await("it runs\r\n") // cat's output: cat has started, so it receives the signal
	s.Say("\x03")          // Ctrl-C interrupts cat, not the shell
	s.Await("^C\r\n")      // the shell's echo: cat no longer reads the input
	s.Say("exit 5\r")
	if rest, code := s.End(); code != 5 || !strings.Contains(rest, "command terminated with exit code 5") {
		t.Errorf("exit %d, want 5: %q", code, rest)
	}
}

func (k *streamer) attach(t *testing.T) {
	s := kubectltest.Start(t, k.program, k.config, "attach", "-i", "kiosk-1")
	s.Say("hello\n")
	s.Await("attached to main of kiosk-1\nhello\n")
	s.Say("end\n")
	if rest, code := s.End(); code != 0 || rest != "end\n" {
		t.Errorf("exit %d, want 0 after end: %q", code, rest)
	}
}

// copies copies files of several sizes, in both directions.
func (k *streamer) copies(t *testing.T) {
	from, there, back := t.TempDir(), t.TempDir(), t.TempDir()
	noise := rand.NewChaCha8([32]byte{1})
	for name, size := range map[string]int64{"empty": 0, "small": 100, "large": 3 << 20} {
		b, _ := io.ReadAll(io.LimitReader(noise, size))
		if err := os.WriteFile(filepath.Join(from, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"cp", from + "/.", "kiosk-1:" + there}, {"cp", "kiosk-1:" + there, back}} {
		if out, errs, code := k.run(t, "", args...); code != 0 {
			t.Fatalf("%v: exit %d: %s%s", args, code, out, errs)
		}
	}
	for _, name := range []string{"empty", "small", "large"} {
		was, _ := os.ReadFile(filepath.Join(from, name))
		is, err := os.ReadFile(filepath.Join(back, name))
		if err != nil || !bytes.Equal(is, was) {
			t.Errorf("%s: %d of %d bytes were copied back, %v", name, len(is), len(was), err)
		}
	}
}

func (k *streamer) forward(t *testing.T) {
	body := strings.Repeat("from the pod ", 100_000)
	pod := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.URL.Path+" "+body)
	}))
	defer pod.Close()
	_, port, _ := net.SplitHostPort(pod.Listener.Addr().String())
	s := kubectltest.Start(t, k.program, k.config, "port-forward", "--address", "127.0.0.1", "pod/kiosk-1", ":"+port)
	local := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(s.Await(" -> " + port + "\n"))
	client := &http.Client{Timeout: time.Minute}
	answers := make(chan error)
	for i := range 5 { // concurrent requests, each on its own connection
		go func() {
			answers <- func() error {
				r, _ := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s/%d", local, i), nil)
				r.Close = true
				answer, err := client.Do(r)
				if err != nil {
					return err
				}
				defer func() { _ = answer.Body.Close() }()
				b, err := io.ReadAll(answer.Body)
				if err == nil && string(b) != fmt.Sprintf("/%d %s", i, body) {
					err = fmt.Errorf("%d bytes: %.30s", len(b), b)
				}
				return err
			}()
		}()
	}
	for range 5 {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	s.Signal(os.Interrupt)
	if rest, code := s.End(); code > 0 {
		t.Errorf("exit %d after an interrupt, want 0: %s", code, rest)
	}
	// kubectl ends when the port has no listener, and prints the reason.
	s = kubectltest.Start(t, k.program, k.config, "port-forward", "--address", "127.0.0.1", "pod/kiosk-1", ":1")
	local = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(s.Await(" -> 1\n"))
	if _, err := client.Get("http://" + local); err == nil {
		t.Error("a port without a listener must not answer")
	}
	if rest, code := s.End(); code != 1 || !strings.Contains(rest, "connection refused") {
		t.Errorf("exit %d, want 1 with the refused connection: %s", code, rest)
	}
}
