package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The released ARM agents run in an emulator, in the root directory of a board. They join a hub
// over TLS, report the board, run a pod with a GPIO chip, and renew their certificates.
func TestARMAgentsRunInTheRootsOfBoards(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		need(t, "needs root, to change the root directory")
	}
	docker := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	h := newHub(t)
	for _, c := range []struct {
		board string
		platform
		emulator, machine, profile string
	}{
		{"raspberrypi-4", platform{"arm64", ""}, "qemu-aarch64-static", "aarch64", "raspberrypi4"},
		{"raspberrypi-3", platform{"arm", "7"}, "qemu-arm-static", "armv7l", "raspberrypi3"},
		{"raspberrypi-armv6", platform{"arm", "6"}, "qemu-arm-static", "armv6l", "raspberrypi-zero-w"},
	} {
		t.Run(c.String(), func(t *testing.T) {
			if c.arm == "7" && !testLong {
				t.Skip("make test-long: behaves like ARMv6")
			}
			b := newBoard(t, c.board, c.emulator, program(t, "device", c.platform))
			node := fmt.Sprintf("e2e-%d-%s", os.Getpid(), c.board)
			t.Cleanup(func() { docker.remove(t, node) })
			b.engine(docker.socket, c.arch, c.machine)

			line := strings.Fields(output(t, program(t, "hub", here), "token", "create", "--data-dir", h.dir, "--site", "oslo"))
			printed, err := b.command(append(line[1:], "--node-name", node)...).CombinedOutput()
			if err != nil || !strings.Contains(string(printed), node+" on site oslo") {
				t.Fatalf("join: %v: %s", err, printed)
			}
			agent := startCommand(t, b.command("run", "--engine", "/run/docker.sock", "--eviction-hard", anyDisk))
			await(t, "the node is Ready", patience, func() error { return h.ready(node, corev1.ConditionTrue) })
			n, err := h.node(node)
			if err != nil {
				t.Fatal(err)
			}
			for label, want := range map[string]string{corev1.LabelArchStable: c.arch, "flotilla.dev/board": c.profile} {
				if got := n.Labels[label]; got != want {
					t.Errorf("label %s is %q, want %q", label, got, want)
				}
			}
			var info struct{ Architecture string }
			if text, err := json.Marshal(n.Status.NodeInfo); err != nil || json.Unmarshal(text, &info) != nil ||
				info.Architecture != c.arch {
				t.Errorf("the node's architecture is %q, %v; want %q", info.Architecture, err, c.arch)
			}
			if got := h.kubectl("get", "devicereport", node, "-o", "jsonpath={.hardware.board.name}"); got != c.profile {
				t.Errorf("the reported board is %q, want %q", got, c.profile)
			}
			for _, r := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods,
				"flotilla.dev/gpiochip", "flotilla.dev/i2c-1"} {
				if q := n.Status.Allocatable[r]; q.Sign() <= 0 {
					t.Errorf("the node has no allocatable %s: %v", r, n.Status.Allocatable)
				}
			}

			h.kubectlWith(fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {"nodeSelector": {"kubernetes.io/arch": %q, "flotilla.dev/board": %q},
				"containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never", "args": ["wait"], "resources": {"limits": {"flotilla.dev/gpiochip": 1}}}]}}`,
				c.board, c.arch, c.profile, toolImage), "create", "-f", "-")
			await(t, "the board's pod runs", patience, func() error {
				var p corev1.Pod
				if err := h.read("/api/v1/namespaces/default/pods/"+c.board, &p); err != nil ||
					p.Status.Phase != corev1.PodRunning || p.Spec.NodeName != node {
					return fmt.Errorf("%v: %s on %q: %+v", err, p.Status.Phase, p.Spec.NodeName, p.Status.ContainerStatuses)
				}
				return nil
			})
			running, err := docker.running(node)
			if err != nil || len(running) != 1 {
				t.Fatalf("%d containers run: %v", len(running), err)
			}
			if text, err := docker.ask(http.MethodGet, "/containers/"+running[0].ID+"/json"); err != nil ||
				!strings.Contains(string(text), `"PathInContainer":"/dev/gpiochip0"`) {
				t.Errorf("the container has no GPIO chip: %v in %s", err, text)
			}

			output(t, program(t, "hub", here), "ca", "rotate", "--intermediate", "--data-dir", h.dir)
			await(t, "the agent renews its certificate", 3*patience, func() error {
				if printed := agent.output.String(); !strings.Contains(printed, "the certificate was renewed") {
					return fmt.Errorf("the agent printed %s", tail(printed, 3))
				}
				return nil
			})
			h.kubectl("delete", "pod", c.board)
			agent.stop()
		})
	}
}

// A board is a root directory like a board's, with an agent's program and its emulator.
type board struct {
	t    *testing.T
	root string
}

func newBoard(t *testing.T, name, emulator, program string) *board {
	t.Helper()
	b := &board{t, t.TempDir()}
	if err := os.CopyFS(b.root, os.DirFS(filepath.Join("../../firmware-configs/testdata", name, "root"))); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath(emulator)
	if err != nil {
		need(t, "%s is not installed (Debian's qemu-user-static)", emulator)
	}
	for from, to := range map[string]string{path: "emulator", program: "flotilla-device"} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(b.root, to), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// A repository cannot contain device files, so each file here becomes one.
	dev := filepath.Join(b.root, "dev")
	err = filepath.WalkDir(dev, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Type() == fs.ModeSymlink {
			return err
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		return mknod(path)
	})
	if err == nil {
		err = mknod(filepath.Join(dev, "null"))
	}
	for _, dir := range []string{"run", "tmp", "var/lib"} {
		if err == nil {
			err = os.MkdirAll(filepath.Join(b.root, dir), 0o755)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// mknod creates a device like /dev/null.
func mknod(path string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o666, 1<<8|3) }

// command runs the program in the board's root directory, in a private mount namespace.
func (b *board) command(args ...string) *exec.Cmd {
	cmd := exec.Command("/emulator", append([]string{"/flotilla-device"}, args...)...)
	cmd.Dir, cmd.Env = "/", environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: b.root, Unshareflags: syscall.CLONE_NEWNS, Setpgid: true,
		Pdeathsig: syscall.SIGKILL}
	return cmd
}

// engine creates a socket in the board's root that answers like an engine on the board's processor.
// The real engine behind it runs programs of this machine, and finds the board's files at their
// paths here. The sandbox image is for the board's processor, so another program waits instead.
func (b *board) engine(socket, arch, machine string) {
	b.t.Helper()
	l, err := net.Listen("unix", filepath.Join(b.root, "run/docker.sock"))
	if err != nil {
		b.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "localhost"})
	proxy.FlushInterval, proxy.ErrorLog = -1, log.New(io.Discard, "", 0) // forward an event stream at once; it ends with its client
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	proxy.ModifyResponse = func(r *http.Response) error {
		switch {
		case strings.HasSuffix(r.Request.URL.Path, "/version"):
			return rewrite(&r.Body, &r.ContentLength, r.Header, func(v map[string]any) { v["Arch"] = arch })
		case strings.HasSuffix(r.Request.URL.Path, "/info"):
			return rewrite(&r.Body, &r.ContentLength, r.Header, func(v map[string]any) { v["Architecture"] = machine })
		}
		return nil
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/containers/create") {
				r.URL.RawQuery = dropped(r.URL, "platform")
				if err := rewrite(&r.Body, &r.ContentLength, r.Header, b.place); err != nil {
					http.Error(w, err.Error(), http.StatusBadRequest)
					return
				}
			}
			proxy.ServeHTTP(w, r)
		})}
	go func() { _ = s.Serve(l) }()
	b.t.Cleanup(func() { _ = s.Close() })
}

// place replaces the board's paths in a container by this machine's paths.
func (b *board) place(spec map[string]any) {
	host, _ := spec["HostConfig"].(map[string]any)
	if labels, _ := spec["Labels"].(map[string]any); labels[labelKind] == "sandbox" {
		spec["Entrypoint"], spec["Cmd"], host["Mounts"] = []string{"/tool", "wait"}, []string{}, nil
	}
	for list, field := range map[string]string{"Mounts": "Source", "Devices": "PathOnHost"} {
		entries, _ := host[list].([]any)
		for _, e := range entries {
			if e, _ := e.(map[string]any); e[field] != nil {
				e[field] = filepath.Join(b.root, fmt.Sprint(e[field]))
			}
		}
	}
}

func dropped(u *url.URL, key string) string {
	q := u.Query()
	q.Del(key)
	return q.Encode()
}

// rewrite changes a JSON body.
func rewrite(body *io.ReadCloser, length *int64, header http.Header, change func(map[string]any)) error {
	text, err := io.ReadAll(*body)
	if err != nil {
		return err
	}
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	change(v)
	if text, err = json.Marshal(v); err != nil {
		return err
	}
	*body, *length = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	header.Set("Content-Length", fmt.Sprint(len(text)))
	return nil
}
