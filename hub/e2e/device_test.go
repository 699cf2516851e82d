package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// An engine is a real container engine. The tests reach it without the product's client.
type engine struct {
	name, socket string
	client       *http.Client
}

// A container is the part of a container that tests compare.
type container struct {
	ID      string
	Kind    string // app, init or sandbox
	Pod     string // UID of the pod
	Name    string // container's name in the pod; empty for a sandbox
	Running bool
	Started string
}

const (
	labelAgent     = "flotilla.dev/agent"
	labelKind      = "flotilla.dev/kind"
	labelPod       = "flotilla.dev/pod-uid"
	labelContainer = "flotilla.dev/container"
	toolImage      = "flotilla.test/tool:1"
)

// engines runs a test on every real engine of this machine with the test image.
func engines(t *testing.T, f func(t *testing.T, e *engine)) {
	for _, e := range []struct{ name, env, socket string }{
		{"docker", "DOCKER_SOCK", "/var/run/docker.sock"},
		{"podman", "PODMAN_SOCK", "/run/flotilla-test/podman.sock"},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			f(t, findEngine(t, e.name, e.env, e.socket))
		})
	}
}

func findEngine(t testing.TB, name, env, socket string) *engine {
	t.Helper()
	if s := os.Getenv(env); s != "" {
		socket = s
	}
	e := engineAt(name, socket)
	if _, err := e.ask(http.MethodGet, "/images/"+toolImage+"/json"); err != nil {
		need(t, "%s at %s does not have %s (.ci/services brings it): %v", name, socket, toolImage, err)
	}
	return e
}

func engineAt(name, socket string) *engine {
	return &engine{name: name, socket: socket, client: &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

func (e *engine) ask(method, path string) ([]byte, error) { return e.send(method, path, "") }

func (e *engine) send(method, path, body string) ([]byte, error) {
	r, err := http.NewRequest(method, "http://localhost/v1.40"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := e.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode/100 != 2 && answer.StatusCode != http.StatusNotModified {
		err = fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return text, err
}

// containers returns an agent's containers by id.
func (e *engine) containers(node string) ([]container, error) {
	filters, _ := json.Marshal(map[string][]string{"label": {labelAgent + "=" + node}})
	text, err := e.ask(http.MethodGet, "/containers/json?all=1&filters="+url.QueryEscape(string(filters)))
	if err != nil {
		return nil, err
	}
	var list []struct {
		ID     string `json:"Id"`
		Labels map[string]string
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	out := make([]container, 0, len(list))
	for _, c := range list {
		text, err := e.ask(http.MethodGet, "/containers/"+c.ID+"/json")
		if err != nil {
			return nil, err
		}
		var one struct {
			State struct {
				Running   bool
				StartedAt string
			}
		}
		if err := json.Unmarshal(text, &one); err != nil {
			return nil, err
		}
		out = append(out, container{c.ID, c.Labels[labelKind], c.Labels[labelPod], c.Labels[labelContainer],
			one.State.Running, one.State.StartedAt})
	}
	slices.SortFunc(out, func(a, b container) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// running returns an agent's running application containers.
func (e *engine) running(node string) ([]container, error) {
	all, err := e.containers(node)
	return slices.DeleteFunc(all, func(c container) bool { return c.Kind != "app" || !c.Running }), err
}

// remove removes every container of an agent. It removes sandboxes last.
func (e *engine) remove(t testing.TB, node string) {
	t.Helper()
	list, err := e.containers(node)
	if err != nil {
		t.Errorf("clean up: %v", err)
	}
	for _, kind := range []string{"app", "init", "sandbox"} {
		for _, c := range list {
			if c.Kind != kind {
				continue
			}
			if _, err := e.ask(http.MethodDelete, "/containers/"+c.ID+"?force=1&v=1"); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
	}
	// The network can be removed only without containers. An agent without pods has no network.
	_, _ = e.ask(http.MethodDelete, "/networks/flotilla-"+node)
}

// A device is a joined agent with its own state directory.
type device struct {
	*process
	t      testing.TB
	node   string
	dir    string
	engine *engine
	mirror string // address at which the engine pulls the hub's images; "" if it does not
}

var devicesMade atomic.Int32

// join creates a device and runs the join command that the hub printed.
func (h *hub) join(site string, e *engine) *device { return h.joinThrough(h, site, e) }

// joinThrough is join at another hub of the same database.
func (h *hub) joinThrough(at *hub, site string, e *engine) *device {
	h.t.Helper()
	d := &device{t: h.t, engine: e, dir: filepath.Join(h.t.TempDir(), site),
		node: fmt.Sprintf("e2e-%d-%d-%s", os.Getpid(), devicesMade.Add(1), site)}
	line := output(h.t, program(h.t, "hub", here), "token", "create", "--data-dir", h.dir, "--site", site)
	words := strings.Fields(line)
	if len(words) != 5 || words[0] != "flotilla-device" || words[1] != "join" {
		h.t.Fatalf("token create printed %q, not a command", line)
	}
	if at != h {
		words[2] = "https://" + at.https
	}
	printed := output(h.t, program(h.t, "device", here), append(words[1:], "--state-dir", d.dir, "--node-name", d.node,
		"--label", "floor=2")...)
	if !strings.Contains(printed, d.node+" on site "+site) {
		h.t.Fatalf("join printed %q", printed)
	}
	h.t.Cleanup(func() {
		if e != nil {
			e.remove(h.t, d.node)
		}
		forgetVolatile(h.t, d.dir)
	})
	return d
}

// anyDisk disables eviction for disk space. Otherwise the agent would remove images that other
// tests on this machine need.
const anyDisk = "nodefs.available<0,nodefs.inodesFree<0,imagefs.available<0,imagefs.inodesFree<0"

// run starts the agent.
func (d *device) run() {
	d.t.Helper()
	socket := "none"
	if d.engine != nil {
		socket = d.engine.socket
	}
	d.process = start(d.t, program(d.t, "device", here), "run", "--state-dir", d.dir, "--engine", socket,
		"--eviction-hard", anyDisk,
		"--image-mirror", d.mirror)
}
