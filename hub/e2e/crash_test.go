package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	_ "modernc.org/sqlite" // reads a killed hub's database

	"flotilla.dev/hub/e2e/kubectltest"
)

const writers = 3

// kills is the number of kills. It is larger under make faults.
func kills() int {
	if alone() {
		return 200
	}
	return 20
}

// An ackLog records the writes that the hub has acknowledged, outside of the hub.
type ackLog struct {
	mu      sync.Mutex
	counts  map[string]int  // newest acknowledged count by object
	deleted map[string]bool // objects with an acknowledged deletion
	acks    int
}

func (n *ackLog) note(name string, count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counts[name], n.acks = count, n.acks+1
}

// has returns nil when at least this many writes are acknowledged.
func (n *ackLog) has(acks int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.acks < acks {
		return fmt.Errorf("%d of %d writes are acknowledged", n.acks, acks)
	}
	return nil
}

func (n *ackLog) gone(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.deleted[name], n.acks = true, n.acks+1
}

// The hub is killed repeatedly during writes. Afterwards all acknowledged writes exist, and no
// container has restarted.
func TestKillingTheHubLosesNothing(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.simulate(4, 2)
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before := h.lives()

	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("FLOTILLA_TEST_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("FLOTILLA_TEST_SEED=%d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))

	n := &ackLog{counts: map[string]int{}, deleted: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	for w := range writers {
		g.Go(func() { h.write(ctx, n, w) })
	}
	g.Go(func() { h.apply(ctx, t, n) })
	var starts []time.Duration
	for i := range kills() {
		time.Sleep(time.Duration(50+dice.IntN(500)) * time.Millisecond)
		await(t, "a write for each kill is acknowledged", patience, func() error { return n.has(i + 1) }) // slow machines start slowly
		h.kill()
		began := time.Now()
		h.start()
		starts = append(starts, time.Since(began))
	}
	cancel()
	g.Wait()
	h.kill()
	sound(t, h.dir)
	h.start()
	h.checkNotes(n)
	slices.Sort(starts)
	usual, slowest := starts[len(starts)*9/10], starts[len(starts)-1]
	if alone() && usual > 3*time.Second {
		t.Errorf("a tenth of the starts take %s or more, want at most 3 s", usual)
	}
	if n.acks < kills() {
		t.Errorf("only %d writes were acknowledged: the test proves nothing", n.acks)
	}
	if events := h.kubectl("get", "events", "-A"); strings.Contains(events, "NodeNotReady") {
		t.Errorf("a node became NotReady during a restart of the hub:\n%s", events)
	}
	seen(t, fmt.Sprintf("%d kills, none of %d acknowledged writes to %d objects lost, database sound; nine starts of "+
		"ten within %.2f s, all within %.2f s; no node NotReady", kills()+1, n.acks, len(n.counts), usual.Seconds(),
		slowest.Seconds()))

	h.allReady(4)
	await(t, "every device reports its pods", patience, func() error { return h.available("sign", 2) })
	if after := h.lives(); !slices.Equal(before, after) {
		t.Errorf("containers before:\n%v\nafter:\n%v", before, after)
	}
}

// write lets one writer create, count up and delete objects in turn.
func (h *hub) write(ctx context.Context, n *ackLog, writer int) {
	const base = "/api/v1/namespaces/default/configmaps"
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("w%d-%d", writer, i)
		body := func(count int) []byte {
			b, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{"name": name}, "data": map[string]string{"count": strconv.Itoa(count)}})
			return b
		}
		if _, err := h.ask(ctx, http.MethodPost, base, "application/json", body(1)); err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		n.note(name, 1)
		for count := 2; count < 5; count++ {
			if _, err := h.ask(ctx, http.MethodPut, base+"/"+name, "application/json", body(count)); err != nil {
				break
			}
			n.note(name, count)
		}
		if i%4 == 0 {
			if _, err := h.ask(ctx, http.MethodDelete, base+"/"+name, "", nil); err == nil {
				n.gone(name)
			}
		}
	}
}

// apply runs kubectl apply repeatedly.
func (h *hub) apply(ctx context.Context, t *testing.T, n *ackLog) {
	program := kubectl(t)
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("applied-%d", i/3) // each object is created once and changed twice
		text := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata: {count: %q}\n", name,
			strconv.Itoa(i%3+1))
		if _, _, code := kubectltest.RunInput(t, program, h.config, text, "apply", "-f", "-"); code == 0 {
			n.note(name, i%3+1)
		}
	}
}

// checkNotes compares the hub's objects with its acknowledgements.
func (h *hub) checkNotes(n *ackLog) {
	h.t.Helper()
	var l corev1.ConfigMapList
	if err := h.read("/api/v1/namespaces/default/configmaps", &l); err != nil {
		h.t.Fatal(err)
	}
	have := map[string]int{}
	for _, c := range l.Items {
		have[c.Name], _ = strconv.Atoi(c.Data["count"])
	}
	for name, count := range n.counts {
		got, ok := have[name]
		switch {
		case n.deleted[name] && ok:
			h.t.Errorf("%s exists although its deletion was acknowledged", name)
		case n.deleted[name]:
		case !ok && name[0] == 'w' && deletes(name): // the hub may have deleted it without an acknowledgement
		case !ok:
			h.t.Errorf("%s is lost although it was acknowledged", name)
		case got < count:
			h.t.Errorf("the count of %s is %d, but %d was acknowledged", name, got, count)
		}
	}
}

// deletes reports whether the writer deletes this object at the end.
func deletes(name string) bool {
	var writer, i int
	_, _ = fmt.Sscanf(name, "w%d-%d", &writer, &i) // the name always matches
	return i%4 == 0
}

// sound checks a copy of a killed hub's database.
func sound(t testing.TB, dir string) {
	t.Helper()
	into := t.TempDir()
	for _, name := range []string{"hub.db", "hub.db-wal"} {
		body, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(into, name), body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("sqlite", filepath.Join(into, "hub.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("integrity of the killed hub's database: %q, %v", verdict, err)
	}
}

// lives lists the identity, start time and restarts of every container.
func (h *hub) lives() []string {
	h.t.Helper()
	pods, err := h.pods("sign", "")
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, p := range pods {
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running != nil {
				out = append(out, fmt.Sprintf("%s %s %s since %s, %d restarts", p.Name, p.Spec.NodeName, c.ContainerID,
					c.State.Running.StartedAt.UTC().Format(time.RFC3339), c.RestartCount))
			}
		}
	}
	slices.Sort(out)
	return out
}

// A hub that stops normally does not wait for clients that stay connected. The next start has all
// objects.
func TestTheHubStopsDespiteConnectedClients(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.simulate(4, 2)
	watch := start(t, kubectl(t), "--kubeconfig", h.config, "get", "nodes", "-w")
	await(t, "kubectl watches", patience, func() error {
		if watch.output.String() == "" {
			return fmt.Errorf("kubectl has no output")
		}
		return nil
	})
	h.stop()
	watch.end(syscall.SIGTERM)
	h.start()
	h.allReady(4)
}
