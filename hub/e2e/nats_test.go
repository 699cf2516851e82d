package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// natsServer builds the nats-server of testdata/nats once.
var natsServer = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "flotilla-nats-")
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "nats-server"), nil
})

// A member is one server of a NATS cluster.
type member struct {
	address, conf string
	*process
}

func (m *member) up(t testing.TB, path string) {
	m.process = start(t, path, "-c", m.conf)
}

// natsCluster writes a cluster's configuration with the hub's command, adapts it to one machine,
// and starts the cluster.
func (h *hub) natsCluster(addresses []string) (path string, members []*member, dir string) {
	t := h.t
	t.Helper()
	path, err := natsServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(path)) })
	// Without a cache the build takes minutes, so it runs beside other tests.
	build := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-s -w", "-o", path,
		"github.com/nats-io/nats-server/v2")
	build.Dir, build.Env = filepath.Join("testdata", "nats"), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		need(t, "nats-server cannot be built: %v\n%s", err, out)
	}
	dir = h.configure("nats", addresses)
	var routes []string
	for range addresses {
		routes = append(routes, freePort(t))
	}
	rules := filepath.Join(dir, "devices.conf")
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	spy := strings.Replace(string(text), "users: [",
		"users: [\n    { user: \"CN=observer:spy,O=flotilla:observers\", permissions: { subscribe: [\">\"] } }", 1)
	if err := os.WriteFile(rules, []byte(spy), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, a := range addresses {
		host, port, _ := strings.Cut(a, ":")
		m := &member{address: a, conf: filepath.Join(dir, fmt.Sprintf("nats-%s-%s.conf", host, port))}
		text, err := os.ReadFile(m.conf)
		if err != nil {
			t.Fatal(err)
		}
		if info, _ := os.Stat(m.conf); info.Mode().Perm() != 0o600 {
			t.Errorf("%s contains a password but has mode %s, want 0600", m.conf, info.Mode())
		}
		conf := strings.NewReplacer("127.0.0.1:4222", freePort(t), "0.0.0.0:6222", routes[i], "0.0.0.0:", "127.0.0.1:",
			dir+"/jetstream", filepath.Join(t.TempDir(), "js")).Replace(string(text))
		n := 0
		conf = regexp.MustCompile(`@127\.0\.0\.1:6222`).ReplaceAllStringFunc(conf,
			func(string) string { n++; return "@" + routes[n-1] })
		if err := os.WriteFile(m.conf, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		m.up(t, path)
		members = append(members, m)
	}
	for _, m := range members {
		listens(t, m.process, m.address)
	}
	return path, members, dir
}

// rewrite updates NATS's access rules, which name each device.
func (h *hub) rewrite(dir string, addresses []string, members []*member) {
	h.t.Helper()
	output(h.t, program(h.t, "hub", here), "broker-config", "nats", "--data-dir", h.dir, "--out", dir, "--address",
		strings.Join(addresses, ","), "--access-only")
	for _, m := range members {
		if err := m.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			h.t.Fatal(err)
		}
	}
}

func TestAFleetSurvivesMembersOfANATSCluster(t *testing.T) {
	t.Parallel()
	addresses := []string{freePort(t), freePort(t), freePort(t)}
	// natsGrace is longer than usual, because JetStream may need more than 5 s to accept a device
	// while a member is missing.
	const natsGrace = 20 * time.Second
	h := behindBroker(t, addresses, "--lease-interval", "2s", "--node-monitor-grace-period", natsGrace.String(),
		"--node-startup-grace-period", natsGrace.String())
	var devices []*testDevice
	for i := range 6 {
		devices = append(devices, h.testDevice(fmt.Sprintf("pi-%d.room", i)))
	}
	thief := h.testDevice("thief")
	path, members, dir := h.natsCluster(addresses)
	for _, d := range devices {
		d.run()
	}
	h.allReady(6)
	devices[0].runs(h, "before")
	attack(t, h, devices[0], devices[5], thief, true)
	done := h.neverUnknown(t)
	killed := members
	if !testLong {
		killed = members[:1]
	}
	for i, m := range killed {
		m.kill()
		time.Sleep(natsGrace + 2*time.Second) // a lost node would become Unknown in this time
		devices[i].runs(h, fmt.Sprintf("without-%d", i))
		m.up(t, path)
		listens(t, m.process, m.address)
		time.Sleep(5 * time.Second) // the member joins the cluster
	}
	late := h.testDevice("late")
	h.rewrite(dir, addresses, members)
	late.run()
	h.allReady(7)
	done()
	if err := h.ready("late", corev1.ConditionTrue); err != nil {
		t.Error(err)
	}
}
