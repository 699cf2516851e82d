package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/e2e/kubectltest"
)

// boxYAML is a pod with a web server, a container that prints lines, and a container that repeats
// its input.
const boxYAML = `apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: "flotilla.test/tool:1", imagePullPolicy: Never, args: [serve, ":8080"]}
  - {name: talker, image: "flotilla.test/tool:1", imagePullPolicy: Never, args: [lines, "1000000", 100ms]}
  - {name: parrot, image: "flotilla.test/tool:1", imagePullPolicy: Never, stdin: true, args: [cat, "-"]}
`

// copied is the size of the file that is copied in both directions.
const copied = 10_000_000

// exec, cp, attach, port-forward and logs work in real containers.
func TestKubectlInContainers(t *testing.T) {
	engines(t, func(t *testing.T, e *engine) {
		h := newHub(t)
		d := h.join("oslo", e)
		d.run()
		await(t, d.node+" is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
		h.kubectlWith(boxYAML, "apply", "-f", "-")
		h.kubectl("wait", "--for=condition=Ready", "pod/box", "--timeout=3m")
		h.enters(t, e, d)

		s := kubectltest.Start(t, kubectl(t), h.config, "exec", "box", "-c", "web", "--", "/tool", "print",
			"begun", "then", "wait")
		s.Await("begun\n")
		h.stop()
		if rest, code := s.End(); code != 1 || !strings.Contains(rest, "the hub is shutting down") {
			t.Errorf("kubectl exec, when the hub stops: output %q, code %d; want the reason and code 1", rest, code)
		}
		h.start()
		await(t, d.node+" is back", patience, func() error {
			if out, errs, code := kubectltest.Run(t, kubectl(t), h.config, "exec", "box", "-c", "web", "--", "/tool", "print",
				"again"); code != 0 || out != "again\n" {
				return errors.New(out + errs)
			}
			return nil
		})
		d.stop()
		await(t, "the hub notices the lost device", patience, func() error {
			_, errs, code := kubectltest.Run(t, kubectl(t), h.config, "exec", "box", "-c", "web", "--", "/tool", "print", "x")
			if code != 1 || !strings.Contains(errs, "the device of node "+d.node+" is not connected to the hub") {
				return errors.New(errs)
			}
			return nil
		})
		d.run() // the agent removes its containers at the end of the test
		await(t, d.node+" is ready again", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
		h.kubectl("delete", "pod", "box")
	})
}

// enters uses every way into a container.
func (h *hub) enters(t *testing.T, e *engine, d *device) {
	t.Helper()
	h.executes(t)
	h.terminal(t)
	h.copies(t)
	h.attaches(t, e)
	h.forwards(t)
	h.follows(t, e)
	h.runsOnce(t)
	h.vanishes(t, e, d)
}

func (h *hub) executes(t *testing.T) {
	t.Helper()
	for _, c := range []struct {
		args      []string
		stdin     string
		code      int
		out, errs string
	}{
		{args: []string{"/tool", "print", "out", "then", "complain", "err", "then", "exit", "3"}, code: 3, out: "out\n", errs: "err\ncommand terminated with exit code 3\n"},
		{args: []string{"/tool", "cat", "-"}, stdin: "what goes in", out: "what goes in"},
		{args: []string{"/tool", "hostname"}, out: "box\n"},
	} {
		args := append([]string{"exec", "-i", "box", "-c", "web", "--"}, c.args...)
		out, errs, code := kubectltest.RunInput(t, kubectl(t), h.config, c.stdin, args...)
		if out != c.out || errs != c.errs || code != c.code {
			t.Errorf("%v: code %d, %q, %q", args, code, out, errs)
		}
	}
	if out, errs, code := kubectltest.Run(t, kubectl(t), h.config, "exec", "box", "-c", "web", "--",
		"/nothing"); code == 0 || !strings.Contains(out+errs, "/nothing") {
		t.Errorf("exec of an unknown program must fail and name it: code %d, %q, %q", code, out, errs)
	}
}

// terminal runs kubectl on a real terminal. The container's terminal gets its size, and later
// changes of the size.
func (h *hub) terminal(t *testing.T) {
	t.Helper()
	s := kubectltest.StartTerminal(t, kubectl(t), h.config, "exec", "-it", "box", "-c", "web", "--", "/tool", "size", "80",
		"24", "then", "size", "132", "50", "then", "cat", "-")
	s.Await("the terminal is 80 by 24\r\n")
	s.Resize(132, 50)
	s.Await("the terminal is 132 by 50\r\n")
	s.Say("hello\r")
	s.Await("hello\r\nhello\r\n") // the terminal and cat each echo the line
	s.Say("\x04")                 // Ctrl-D ends the input
	if rest, code := s.End(); code != 0 {
		t.Errorf("code %d: %q", code, rest)
	}
}

// copies copies a large file to the container and back.
func (h *hub) copies(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	was, _ := io.ReadAll(io.LimitReader(rand.NewChaCha8([32]byte{7}), copied))
	if err := os.WriteFile(filepath.Join(dir, "there"), was, 0o600); err != nil {
		t.Fatal(err)
	}
	h.slowly(t, nil, "cp", "-c", "web", filepath.Join(dir, "there"), "box:/tmp/there")
	h.slowly(t, nil, "cp", "-c", "web", "box:/tmp/there", filepath.Join(dir, "back"))
	is, err := os.ReadFile(filepath.Join(dir, "back"))
	if err != nil || !bytes.Equal(is, was) {
		t.Errorf("%d bytes were copied, and %d other bytes copied back, %v", len(was), len(is), err)
	}
	want := fmt.Sprintf("%d %x\n", len(was), sha256.Sum256(was))
	if printed := h.slowly(t, bytes.NewReader(was), "exec", "-i", "box", "-c", "web", "--", "/tool",
		"sum"); printed != want {
		t.Errorf("the container has read %q, want %q", printed, want)
	}
}

// slowly runs kubectl with a long time limit: a device sends at most a megabyte per second.
func (h *hub) slowly(t *testing.T, stdin io.Reader, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, kubectl(t), args...)
	cmd.Env, cmd.Stdin = kubectltest.Env(t, h.config), stdin
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		_ = errors.As(err, &exit)
		t.Fatalf("kubectl %s: %v: %s%s", strings.Join(args, " "), err, out, exit.Stderr)
	}
	return string(out)
}

func (h *hub) attaches(t *testing.T, e *engine) {
	t.Helper()
	s := kubectltest.Start(t, kubectl(t), h.config, "attach", "-i", "box", "-c", "parrot")
	s.Say("hello\n")
	s.Await("hello\n")
	if printed := h.kubectl("logs", "box", "-c", "parrot"); printed != "hello\n" {
		t.Errorf("the container's log is %q, want hello", printed)
	}
	s.Signal(os.Interrupt)
	_, _ = s.End()
	if e.name == "podman" {
		return // Podman closes the container's input when the first client leaves
	}
	s = kubectltest.Start(t, kubectl(t), h.config, "attach", "-i", "box", "-c", "parrot") // the container continues after the first client
	s.Say("hello again\n")
	s.Await("hello again\n")
	s.Kill()
}

func (h *hub) forwards(t *testing.T) {
	t.Helper()
	s := kubectltest.Start(t, kubectl(t), h.config, "port-forward", "--address", "127.0.0.1", "pod/box", ":8080")
	local := regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(s.Await(" -> 8080\n"))
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, get := range []struct{ path, want string }{{"/hostname", "box"}, {"/", "hello"}, {"/hostname", "box"}} {
		answer, err := client.Get("http://" + local + get.path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || strings.TrimSpace(string(b)) != get.want {
			t.Errorf("GET %s: %q, %v; want %q", get.path, b, err, get.want)
		}
	}
	for range 100 { // more connections than a device allows at a time
		c, err := net.Dial("tcp", local)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	if answer, err := client.Get("http://" + local + "/hostname"); err != nil {
		t.Errorf("request after a hundred connections without data: %v", err)
	} else {
		_ = answer.Body.Close()
	}
	s.Signal(os.Interrupt)
	_, _ = s.End()
	s = kubectltest.Start(t, kubectl(t), h.config, "port-forward", "--address", "127.0.0.1", "pod/box", ":9")
	local = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(s.Await(" -> 9\n"))
	if answer, err := client.Get("http://" + local); err == nil {
		_ = answer.Body.Close()
		t.Error("a port without a listener must not answer")
	}
	if rest, code := s.End(); code != 1 || !strings.Contains(rest, "connection refused") {
		t.Errorf("code %d: %s", code, rest)
	}
}

func (h *hub) follows(t *testing.T, e *engine) {
	t.Helper()
	s := kubectltest.Start(t, kubectl(t), h.config, "logs", "-f", "box", "-c", "talker", "--tail=3")
	var first int
	if _, err := fmt.Sscanf(s.Await("\n"), "line %d\n", &first); err != nil || first < 1 {
		t.Errorf("first line of the followed log: %v", err)
	}
	for last := first; last < first+10; {
		printed, next := s.Await("\n"), 0
		_, err := fmt.Sscanf(printed, "line %d\n", &next)
		// Podman 4.3 can lose a line between the stored log and the first new line.
		if err != nil || next <= last || next != last+1 && e.name != "podman" {
			t.Fatalf("printed %q after line %d", printed, last)
		}
		last = next
	}
	s.Kill()
	if printed := h.kubectl("logs", "box", "-c", "talker", "--limit-bytes=14"); printed != "line 1\nline 2\n" {
		t.Errorf("logs --limit-bytes=14 prints %q, want the first two lines", printed)
	}
	var crowd errgroup.Group
	for range 40 { // more logs than a device serves at a time
		crowd.Go(func() error {
			printed, err := h.get("/api/v1/namespaces/default/pods/box/log?container=talker&limitBytes=14")
			if err == nil && string(printed) != "line 1\nline 2\n" {
				err = fmt.Errorf("one of many concurrent logs prints %q", printed)
			}
			return err
		})
	}
	if err := crowd.Wait(); err != nil {
		t.Error(err)
	}
	if printed := h.kubectl("logs", "box", "-c", "talker", "--tail=1",
		"--timestamps"); !regexp.MustCompile(`^20\S+Z line \d+\n$`).MatchString(printed) {
		t.Errorf("logs --tail=1 prints %q, want one line with its time", printed)
	}
	if printed := h.kubectl("logs", "box", "--all-containers", "--tail=1", "--prefix"); !strings.Contains(printed,
		"[pod/box/web] serving on :8080\n") || !strings.Contains(printed, "[pod/box/talker] line ") {
		t.Errorf("logs --all-containers prints %q, want lines of web and talker", printed)
	}
	if _, errs, code := kubectltest.Run(t, kubectl(t), h.config, "logs", "-p", "box", "-c", "talker"); code != 1 ||
		!strings.Contains(errs, `previous terminated container "talker" in pod "box" not found`) {
		t.Errorf("code %d: %s", code, errs)
	}
}

// runsOnce runs a pod with kubectl run --rm, which deletes the pod at the end.
func (h *hub) runsOnce(t *testing.T) {
	t.Helper()
	s := kubectltest.StartTerminal(t, kubectl(t), h.config, "run", "once", "-it", "--rm", "--restart=Never",
		"--image="+toolImage, "--image-pull-policy=Never",
		"--", "size", "80", "24", "then", "cat", "-", "then", "exit", "7")
	s.Await("the terminal is 80 by 24\r\n")
	s.Say("hello\r")
	s.Await("hello\r\nhello\r\n")
	s.Say("\x04")
	if rest, code := s.End(); code != 7 || !strings.Contains(rest, `pod "once" deleted`) {
		t.Errorf("code %d: %q", code, rest)
	}
}

// vanishes checks that a command in a container ends when its kubectl is killed.
func (h *hub) vanishes(t *testing.T, e *engine, d *device) {
	t.Helper()
	await(t, "the former commands have ended", patience, func() error { return e.executing(d.node, 0) })
	for _, end := range []os.Signal{os.Interrupt, syscall.SIGKILL} {
		s := kubectltest.Start(t, kubectl(t), h.config, "exec", "-i", "box", "-c", "web", "--", "/tool", "print",
			"begun", "then", "wait")
		s.Await("begun\n")
		await(t, "the container runs one command", patience, func() error { return e.executing(d.node, 1) })
		s.Signal(end)
		await(t, "the command ended with kubectl", patience, func() error { return e.executing(d.node, 0) })
	}
}

// executing returns nil when this number of commands run in the containers of a node.
func (e *engine) executing(node string, want int) error {
	list, err := e.running(node)
	if err != nil {
		return err
	}
	got := 0
	for _, c := range list {
		text, err := e.ask(http.MethodGet, "/containers/"+c.ID+"/json")
		if err != nil {
			return err
		}
		var one struct{ ExecIDs []string }
		if err := json.Unmarshal(text, &one); err != nil {
			return err
		}
		for _, id := range one.ExecIDs {
			text, err := e.ask(http.MethodGet, "/exec/"+id+"/json")
			if err != nil {
				continue // the process has ended
			}
			var x struct{ Running bool }
			if err := json.Unmarshal(text, &x); err != nil {
				return err
			}
			if x.Running {
				got++
			}
		}
	}
	if got != want {
		return fmt.Errorf("%d commands run, want %d", got, want)
	}
	return nil
}
