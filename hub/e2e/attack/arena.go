package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"flotilla.dev/shared/loopback"
	"sigs.k8s.io/yaml"
)

// An arena is a fresh hub, and what its administrator has in the hand.
type arena struct {
	program, dir     string
	https, mqtt, dev string // addresses
	args             []string
	files            int
	said             paper
	cmd              *exec.Cmd
	over             chan struct{}
	down             atomic.Bool   // from kill to the end of start
	past             time.Duration // CPU of hubs that have ended
	roots            *x509.CertPool
	admin            *http.Client
}

// A paper takes what the hub says.
type paper struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (p *paper) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *paper) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// nextPort is the port that is tried next: hubs may start side by side.
// freeAddresses fills in loopback addresses for programs of this process alone.
func freeAddresses(to ...*string) (err error) {
	for _, addr := range to {
		if *addr, err = loopback.Address(); err != nil {
			return err
		}
	}
	return nil
}

func newArena(ctx context.Context, program, dir string, files int, more ...string) (*arena, error) {
	a := &arena{program: program, dir: filepath.Join(dir, "hub"), files: files}
	for tries := 0; ; tries++ {
		if err := freeAddresses(&a.https, &a.mqtt, &a.dev); err != nil {
			return nil, err
		}
		a.args = []string{"serve", "--data-dir", a.dir, "--https-listen", a.https, "--mqtt-listen", a.mqtt, "--mqtt-dev-listen", a.dev, "--log-level", "warn"}
		a.args = append(a.args, more...)
		err := a.start(ctx)
		if err == nil {
			return a, nil
		}
		a.close()
		if tries == 4 || !strings.Contains(err.Error(), "in use") { // somebody else was quicker
			return nil, err
		}
	}
}

// start starts the hub, again or for the first time.
func (a *arena) start(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(a.dir), 0o700); err != nil {
		return err
	}
	a.cmd = exec.Command(a.program, a.args...)
	if a.files > 0 {
		a.cmd = exec.Command("sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, a.files), a.program}, a.args...)...)
	}
	a.cmd.Stdout, a.cmd.Stderr = &a.said, &a.said
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := a.cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	a.over = over
	go func(cmd *exec.Cmd) { _ = cmd.Wait(); close(over) }(a.cmd)
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // on a machine that others use, too
		var err error
		if a.admin == nil {
			a.admin, err = a.as(ctx, "admin", "root")
		}
		if err == nil {
			err = a.answers(ctx, 2*time.Second)
		}
		if err == nil {
			a.down.Store(false)
			return nil
		}
		select {
		case <-a.over:
			return fmt.Errorf("the hub has ended: %s", a.said.String())
		default:
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// kill ends the hub as a power cut does.
func (a *arena) kill() {
	if a.cmd == nil || a.cmd.Process == nil {
		return
	}
	a.down.Store(true)
	a.past += a.cpu()
	_ = a.cmd.Process.Kill()
	<-a.over
}

func (a *arena) close() { a.kill() }

// command runs flotilla-hub beside the hub, with a line of input.
func (a *arena) command(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, a.program, append(args, "--data-dir", a.dir)...)
	cmd.Stdin = strings.NewReader(input)
	var out, bad bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &bad
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("flotilla-hub %s: %w: %s", args[0], err, bad.String())
	}
	return strings.TrimSpace(out.String()), nil
}

// as is a client with a certificate of its own.
func (a *arena) as(ctx context.Context, role, user string) (*http.Client, error) {
	text, err := a.command(ctx, "", "kubeconfig", "--role", role, "--user", user)
	if err != nil {
		return nil, err
	}
	var k struct {
		Clusters []struct {
			Cluster struct {
				CA []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal([]byte(text), &k); err != nil {
		return nil, err
	}
	if len(k.Clusters) == 0 || len(k.Users) == 0 {
		return nil, errors.New("the kubeconfig is empty")
	}
	pair, err := tls.X509KeyPair(k.Users[0].User.Cert, k.Users[0].User.Key)
	if err != nil {
		return nil, err
	}
	a.roots = x509.NewCertPool()
	a.roots.AppendCertsFromPEM(k.Clusters[0].Cluster.CA)
	return a.client(pair), nil
}

// client is a web client that believes the hub, as whom it has certificates for.
func (a *arena) client(pairs ...tls.Certificate) *http.Client {
	return &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.roots, Certificates: pairs}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 512},
	}
}

func (a *arena) url(path string) string { return "https://" + a.https + path }

// answers is nil when the hub says within a time that it is well.
func (a *arena) answers(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	code, body, err := a.call(ctx, a.admin, http.MethodGet, "/readyz", "", "")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/readyz answers %d: %s", code, body)
	}
	return err
}

// call asks and reads the answer.
func (a *arena) call(ctx context.Context, c *http.Client, method, path, kind, body string) (code int, answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, a.url(path), strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	resp, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	return resp.StatusCode, string(text), err
}

// get is call for the administrator, who must succeed.
func (a *arena) get(ctx context.Context, path string) (string, error) {
	code, body, err := a.call(ctx, a.admin, http.MethodGet, path, "", "")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("GET %s: %d: %.200s", path, code, body)
	}
	return body, err
}

// create makes an object as the administrator, who must succeed.
func (a *arena) create(ctx context.Context, path, body string) error {
	code, answer, err := a.call(ctx, a.admin, http.MethodPost, path, "application/json", body)
	if err == nil && code/100 != 2 {
		err = fmt.Errorf("POST %s: %d: %.200s", path, code, answer)
	}
	return err
}

// peak is the most memory that the running hub was resident with, since newPeak if there was one.
func (a *arena) peak() int64 { return a.status("VmHWM:") }

// newPeak lets peak count from now on: the start of a hub is a peak of its own.
func (a *arena) newPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", a.cmd.Process.Pid), []byte("5"), 0)
}

// status is one of the kernel's figures of the hub, in bytes.
func (a *arena) status(what string) int64 { return statusOf(a.cmd.Process.Pid, what) }

// statusOf is one of the kernel's figures of a process, in bytes.
func statusOf(pid int, what string) int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, what); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

// cpu is the time that the hub has computed, user and system.
func (a *arena) cpu() time.Duration { return a.past + cpuOf(a.cmd.Process.Pid) }

// cpuOf is the time that a process has computed, user and system; 0: it has ended.
func cpuOf(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// wrote is how many bytes the hub has sent to the disk.
func (a *arena) wrote() int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", a.cmd.Process.Pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "write_bytes:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n
		}
	}
	return 0
}

// panicked is what no hub may ever say.
func (a *arena) panicked() string {
	said := a.said.String()
	for _, bad := range []string{"panic: ", "fatal error: ", "DATA RACE", "panic in", ": panic"} {
		if i := strings.Index(said, bad); i >= 0 {
			return fmt.Sprintf("%.300q", said[i:])
		}
	}
	return ""
}

// until asks again and again, for a bounded time, until it is so.
func until(ctx context.Context, within time.Duration, what string, so func() (bool, error)) error {
	var last error
	for end := time.Now().Add(within); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		ok, err := so()
		if ok {
			return nil
		}
		last = err
	}
	return errors.Join(fmt.Errorf("%s: not within %s", what, within), last)
}
