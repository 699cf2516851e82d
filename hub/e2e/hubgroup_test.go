package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/join"
	"flotilla.dev/hub/e2e/kubectltest"
	"flotilla.dev/hub/e2e/postgrestest"
)

// A hubGroup is several hubs on one PostgreSQL database. The devices have the addresses of all
// hubs.
type hubGroup struct {
	t        *testing.T
	hubs     []*hub
	server   *postgrestest.Server
	database string
}

// newHubGroup starts the hubs; the first becomes the leader.
func newHubGroup(t *testing.T, count int, args ...string) *hubGroup {
	t.Helper()
	c := &hubGroup{t: t, server: postgrestest.Start(t, "fsync=on", "full_page_writes=on")}
	c.database = c.server.Database()
	var https, mqtt []string
	for range count {
		https, mqtt = append(https, freePort(t)), append(mqtt, freePort(t))
	}
	addresses := ownAddresses(t)
	for i := range count {
		h := &hub{t: t, dir: filepath.Join(t.TempDir(), "hub"), https: https[i], dev: freePort(t)}
		h.args = append([]string{
			"serve", "--data-dir", h.dir, "--https-listen", h.https, "--mqtt-listen", mqtt[i], "--mqtt-dev-listen", h.dev,
			"--peer-listen", freePort(t), "--database", c.database,
			"--lease-interval", leaseInterval.String(), "--node-monitor-grace-period", "40s", "--node-startup-grace-period",
			"60s", "--cluster-cidr", addresses,
			"--https-addresses", strings.Join(https, ","),
		}, args...)
		if !slices.Contains(args, "--broker") {
			h.args = append(h.args, "--mqtt-addresses", strings.Join(mqtt, ","))
		}
		if i > 0 {
			h.copySecretsKey(c.hubs[0])
		}
		h.start()
		c.hubs = append(c.hubs, h)
	}
	return c
}

// copySecretsKey copies the key of the secrets from the first hub, as an administrator does.
func (h *hub) copySecretsKey(first *hub) {
	h.t.Helper()
	key, err := os.ReadFile(filepath.Join(first.dir, "secrets.key"))
	if err == nil {
		err = os.MkdirAll(h.dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(h.dir, "secrets.key"), key, 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// leader waits until exactly one hub is the leader.
func (c *hubGroup) leader() (leader *hub, standbys []*hub) {
	c.t.Helper()
	await(c.t, "exactly one hub leads", patience, func() error {
		leader, standbys = nil, nil
		for _, h := range c.hubs {
			switch {
			case h.ended():
			case !leads(h):
				standbys = append(standbys, h)
			case leader != nil:
				c.t.Fatalf("both %s and %s lead", leader.dir, h.dir)
			default:
				leader = h
			}
		}
		if leader == nil {
			return errors.New("none leads")
		}
		return nil
	})
	return leader, standbys
}

// Real devices join over TLS, one of them through a standby. After a kill of the leader they
// connect to the remaining hub and renew their certificates there.
func TestADeviceSurvivesTheHubItJoinedThrough(t *testing.T) {
	t.Parallel()
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	c := newHubGroup(t, 2)
	a, standbys := c.leader()
	b := standbys[0]
	one := a.join("oslo", e)
	two := a.joinThrough(b, "bergen", e)
	for _, d := range []*device{one, two} {
		d.run()
	}
	a.allReady(2)
	for d, at := range map[*device]*hub{one: a, two: b} {
		if id, err := join.Load(d.dir); err != nil || id.HubURL != "https://"+at.https ||
			!slices.Equal(id.Hubs, []string{a.https, b.https}) || len(id.Brokers) != 2 {
			t.Errorf("%s has the identity %+v, %v; want both hubs and both brokers", d.node, id, err)
		}
	}
	a.kill()
	if next, _ := c.leader(); next != b {
		t.Fatal("the remaining hub must lead after the kill")
	}
	b.allReady(2)
	output(t, program(t, "hub", here), "ca", "rotate", "--root", "--data-dir", b.dir) // a new root makes each device renew
	for _, d := range []*device{one, two} {
		await(t, d.node+" renews at the remaining hub", patience, func() error {
			id, err := join.Load(d.dir)
			if err == nil && (id.HubURL != "https://"+b.https || strings.Count(id.CA, "BEGIN") != 2) {
				err = errors.New("the device's hub is " + id.HubURL)
			}
			return err
		})
	}
	if events := b.kubectl("get", "events", "-A"); strings.Contains(events, "NodeNotReady") {
		t.Errorf("a node became NotReady during the change of leaders:\n%s", events)
	}
}

// The usual kubectl commands work at a standby.
func TestKubectlThroughAStandby(t *testing.T) {
	t.Parallel()
	c := newHubGroup(t, 2)
	a, standbys := c.leader()
	b := standbys[0]
	start(t, program(t, "simulate", here), "--hub", "mqtt://"+b.dev+",mqtt://"+a.dev, "--count", "8", "--sites", "3",
		"--log-level", "error")
	b.allReady(8)
	b.workingDay(t)
	if leader, _ := c.leader(); leader != a {
		t.Error("the leader must stay the leader")
	}
}

// exec, attach, logs, cp and port-forward work at a standby, and still after it becomes the leader.
func TestKubectlInContainersThroughAStandby(t *testing.T) {
	t.Parallel()
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	c := newHubGroup(t, 2)
	a, standbys := c.leader()
	b := standbys[0]
	d := a.joinThrough(b, "oslo", e)
	d.run()
	b.allReady(1)
	b.kubectlWith(boxYAML, "apply", "-f", "-")
	b.kubectl("wait", "--for=condition=Ready", "pod/box", "--timeout=3m")
	b.enters(t, e, d)

	s := kubectltest.Start(t, kubectl(t), b.config, "exec", "box", "-c", "web", "--", "/tool", "print",
		"begun", "then", "wait")
	s.Await("begun\n")
	a.kill()
	if rest, code := s.End(); code == 0 {
		t.Errorf("kubectl exec, when the leader was killed: output %q, code %d, want a failure", rest, code)
	}
	await(t, "a command runs at the new leader", patience, func() error {
		if out, errs, code := kubectltest.Run(t, kubectl(t), b.config, "exec", "box", "-c", "web", "--", "/tool", "print",
			"again"); code != 0 || out != "again\n" {
			return errors.New(out + errs)
		}
		return nil
	})
	b.kubectl("delete", "pod", "box")
}

// A client like client-go watches configmaps at a standby, which then becomes the leader. The
// client receives each change in order, or is told to list again.
func TestAWatchSurvivesANewLeader(t *testing.T) {
	t.Parallel()
	c := newHubGroup(t, 2)
	a, standbys := c.leader()
	b := standbys[0]
	const base = "/api/v1/namespaces/default/configmaps"
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	n := &ackLog{counts: map[string]int{}, deleted: map[string]bool{}}
	writing, stopWriting := context.WithCancel(ctx)
	defer stopWriting()
	for i, h := range c.hubs {
		g.Go(func() { h.write(writing, n, i) })
	}
	w := &watcher{seen: map[string]uint64{}}
	g.Go(func() { w.follow(ctx, b, base) })
	time.Sleep(2 * time.Second)
	a.kill()
	if next, _ := c.leader(); next != b {
		t.Fatal("the watch's hub must lead after the kill")
	}
	time.Sleep(2 * time.Second)
	a.start()
	time.Sleep(2 * time.Second)
	b.stop() // the watch's hub is stopped for a while
	if next, _ := c.leader(); next != a {
		t.Fatal("the restarted hub must lead after the stop")
	}
	b.start()
	time.Sleep(2 * time.Second)
	stopWriting()
	await(t, "the watcher has all objects", patience, func() error {
		var l corev1.ConfigMapList
		if err := a.read(base, &l); err != nil {
			return err
		}
		return w.knows(l.Items)
	})
	cancel()
	g.Wait()
	if w.wrong != "" {
		t.Error(w.wrong)
	}
	seen(t, fmt.Sprintf("a watcher received %d changes in %d watches and %d lists, each once and in order", w.events,
		w.watches, w.lists))
}

// A watcher does what client-go's reflector does.
type watcher struct {
	mu                     sync.Mutex
	seen                   map[string]uint64
	events, watches, lists int
	wrong                  string
}

func (w *watcher) knows(all []corev1.ConfigMap) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range all {
		if fmt.Sprint(w.seen[c.Name]) != c.ResourceVersion {
			return fmt.Errorf("%s has revision %s, the watcher's newest is %d", c.Name, c.ResourceVersion, w.seen[c.Name])
		}
	}
	if len(all) < 5 { // even a slow machine writes about forty
		return fmt.Errorf("only %d config maps were written", len(all))
	}
	return nil
}

func (w *watcher) follow(ctx context.Context, h *hub, base string) {
	client := &http.Client{Transport: h.client.Transport} // a watch needs a client without a timeout
	rev := uint64(0)
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if rev == 0 {
			var l corev1.ConfigMapList
			if h.read(base, &l) != nil {
				continue
			}
			w.mu.Lock()
			w.lists++
			for _, c := range l.Items {
				w.seen[c.Name], _ = strconv.ParseUint(c.ResourceVersion, 10, 64)
			}
			w.mu.Unlock()
			rev, _ = strconv.ParseUint(l.ResourceVersion, 10, 64)
		}
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://%s%s?watch=1&resourceVersion=%d",
			h.https, base, rev), nil)
		answer, err := client.Do(r)
		if err != nil {
			continue
		}
		if answer.StatusCode == http.StatusGone {
			rev = 0
		} else if answer.StatusCode == http.StatusOK {
			rev = w.read(answer.Body, rev)
		}
		_ = answer.Body.Close()
	}
}

// read reads one watch to its end, and returns the revision to continue from, or 0 to list again.
func (w *watcher) read(body io.Reader, rev uint64) uint64 {
	w.mu.Lock()
	w.watches++
	w.mu.Unlock()
	for d := json.NewDecoder(body); ; {
		var e struct {
			Type   string
			Object struct {
				metav1.ObjectMeta `json:"metadata"`
				Code              int
			}
		}
		if d.Decode(&e) != nil {
			return rev
		}
		if e.Type == "ERROR" {
			return 0
		}
		is, _ := strconv.ParseUint(e.Object.ResourceVersion, 10, 64)
		w.mu.Lock()
		w.events++
		if is <= rev || is <= w.seen[e.Object.Name] {
			w.wrong = fmt.Sprintf("%s %s has revision %d after %d and %d", e.Type, e.Object.Name, is, rev, w.seen[e.Object.Name])
		}
		if rev, w.seen[e.Object.Name] = is, is; e.Type == "DELETED" {
			delete(w.seen, e.Object.Name)
		}
		w.mu.Unlock()
	}
}

// Each transaction takes eight seconds, longer than a standby waits for a heartbeat. The leader
// stays the leader, and forwarded requests continue.
func TestALeaderWithASlowDatabaseStays(t *testing.T) {
	t.Parallel()
	c := newHubGroup(t, 2)
	a, standbys := c.leader()
	b := standbys[0]
	const base = "/api/v1/namespaces/default/configmaps"
	body := []byte(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "slow-"}}`)
	if _, err := b.ask(t.Context(), http.MethodPost, base, "application/json", body); err != nil {
		t.Fatal(err)
	}
	watch := start(t, kubectl(t), "--kubeconfig", b.config, "get", "configmaps", "-w", "--watch-only", "-o", "name")
	c.server.Do(c.database, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(8); RETURN NULL; END $$;
		CREATE TRIGGER slow AFTER INSERT ON changes FOR EACH STATEMENT EXECUTE FUNCTION slow()`)
	if _, err := b.ask(t.Context(), http.MethodPost, base, "application/json", body); err != nil {
		t.Errorf("a write in a slow transaction: %v", err)
	}
	await(t, "the standby tries twice to take the lead", patience, func() error {
		_, _ = b.ask(t.Context(), http.MethodPost, base, "application/json", body)
		if n := strings.Count(b.output.String(), "the leader is alive"); n < 2 {
			return fmt.Errorf("the standby has tried %d times", n)
		}
		return nil
	})
	c.server.Do(c.database, "DROP TRIGGER slow ON changes")
	await(t, "a write is acknowledged again", patience, func() error {
		_, err := b.ask(t.Context(), http.MethodPost, base, "application/json", body)
		return err
	})
	if a.ended() || b.ended() || !leads(a) || leads(b) {
		t.Error("a slow database must not cost the lead")
	}
	await(t, "the watch at the standby continues", patience, func() error {
		if n := strings.Count(watch.output.String(), "configmap/slow-"); n < 3 {
			return fmt.Errorf("the watch received %d changes", n)
		}
		return nil
	})
}

// A leader that loses the lead waits up to 20 s for an unresponsive database. It closes its ports
// first, so that clients go to another hub instead of waiting.
func TestAFormerLeaderAcceptsNoClients(t *testing.T) {
	t.Parallel()
	c := newHubGroup(t, 1)
	h, _ := c.leader()
	held := make(chan struct{})
	go func() {
		defer close(held)
		c.server.Do(c.database, "BEGIN; LOCK TABLE leader IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(25); COMMIT")
	}()
	await(t, "a statement of the leader waits for the lock", patience, func() error {
		if waits := c.server.Do(c.database, "SELECT count(*) FROM pg_locks WHERE NOT granted"); waits == "0" {
			return errors.New("no statement waits")
		}
		return nil
	})
	go func() { // one request is open
		_, _ = h.ask(t.Context(), http.MethodPost, "/api/v1/namespaces/default/configmaps", "application/json",
			[]byte(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}}`))
	}()
	for _, port := range []string{h.https, h.dev} {
		await(t, port+" is closed", patience, func() error {
			if h.ended() {
				t.Fatal("the hub must close its ports before it exits")
			}
			conn, err := net.Dial("tcp", port)
			if err == nil {
				_ = conn.Close()
				return errors.New("the port is open")
			}
			return nil
		})
	}
	await(t, "the hub exits", patience, func() error {
		if !h.ended() {
			return errors.New("the hub runs")
		}
		return nil
	})
	if printed := h.output.String(); !strings.Contains(printed, "this hub no longer leads") {
		t.Errorf("the hub must exit with the reason: %s", tail(printed, 5))
	}
	<-held
	h.start()
	c.leader()
}

// Three hubs lose one leader after the other until none is left; then one starts again.
func TestThreeHubs(t *testing.T) {
	t.Parallel()
	c := newHubGroup(t, 3)
	const base = "/api/v1/namespaces/default/configmaps"
	write := func(h *hub, name string) {
		t.Helper()
		body := []byte(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "` + name + `"}}`)
		await(t, "a write is acknowledged", patience, func() error {
			_, err := h.ask(t.Context(), http.MethodPost, base, "application/json", body)
			if r := (refusal{}); errors.As(err, &r) && r.code == http.StatusConflict { // done already, but the response was lost
				return nil
			}
			return err
		})
	}
	first, standbys := c.leader()
	write(standbys[0], "one")
	first.kill()
	second, standbys := c.leader()
	write(standbys[0], "two")
	second.kill()
	third, standbys := c.leader()
	if len(standbys) > 0 || third == first || third == second {
		t.Fatal("a killed hub must not answer")
	}
	write(third, "three")
	third.stop()
	first.start()
	if again, _ := c.leader(); again != first {
		t.Fatal("the only hub is not the leader")
	}
	second.start()
	third.start()
	for _, h := range c.hubs {
		for _, name := range []string{"one", "two", "three"} {
			if _, err := h.get(base + "/" + name); err != nil {
				t.Errorf("%s at %s: %v", name, h.dir, err)
			}
		}
	}

	// If a standby has the leader's address, it exits with the reason.
	second.stop()
	same := slices.Clone(second.args)
	i := slices.Index(first.args, "--peer-listen")
	r := command{path: program(t, "hub", here), args: append(same, "--peer-address", first.args[i+1])}.run(t)
	if r.code == 0 || !strings.Contains(r.err, "give each hub") || !strings.Contains(r.err, first.args[i+1]) {
		t.Errorf("a hub with the leader's address exited with code %d, want a failure with the reason: %s", r.code, r.err)
	}
	if !leads(first) {
		t.Error("the first hub must still lead")
	}
}
