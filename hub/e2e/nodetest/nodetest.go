// Package nodetest runs a hub's devices for tests: the loop with the deciders of package node, and
// a store and a broker that only record.
package nodetest

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/serve"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// Long is true under make test-long. Otherwise long tests, and tests with hundreds of cases, run
// only a part of them.
var Long = os.Getenv("FLOTILLA_LONG") != ""

// A Notebook is a store and a broker that record all calls.
type Notebook struct {
	mu       sync.Mutex
	commits  int
	bytes    int
	rows     map[state.Key][]byte
	fail     error
	desired  []wire.Desired
	requests []wire.Request
	cut      []string // nodes that were disconnected
}

// Commit records a commit.
func (b *Notebook) Commit(_ context.Context, rows []control.Row, _ uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return b.fail
	}
	b.commits++
	for _, r := range rows {
		b.rows[r.Key] = r.Object
		b.bytes += len(r.Object)
	}
	return nil
}

// Publish records a desired state.
func (b *Notebook) Publish(_ string, _ wire.Channel, payload ...[]byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	var d wire.Desired
	if err := json.Unmarshal(payload[0], &d); err != nil {
		return err
	}
	b.desired = append(b.desired, d)
	return nil
}

// Request records a request.
func (b *Notebook) Request(_, _ string, r wire.Request) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests = append(b.requests, r)
	return nil
}

// Disconnect records a disconnection.
func (b *Notebook) Disconnect(node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut = append(b.cut, node)
}

// FailWith makes commits fail with err, or succeed again with nil.
func (b *Notebook) FailWith(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fail = err
}

// Counts returns the number of commits, desired states and requests.
func (b *Notebook) Counts() (commits, desired, requests int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.commits, len(b.desired), len(b.requests)
}

// Requests returns the requests to devices.
func (b *Notebook) Requests() []wire.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

// NewNotebook returns an empty Notebook.
func NewNotebook() *Notebook { return &Notebook{rows: map[state.Key][]byte{}} }

// Start runs the devices with a hub's deciders from a snapshot, which may be nil, until the
// returned function is called.
func Start(t *testing.T, from *state.Snapshot) (*node.Devices, *Notebook, func()) {
	cfg := config.Default()
	cfg.AllocateNodeCIDRs = false
	return StartWith(t, cfg, from)
}

// StartWith is Start with other settings.
func StartWith(t *testing.T, cfg config.Config, from *state.Snapshot) (*node.Devices, *Notebook, func()) {
	book := NewNotebook()
	s := state.Empty("test", time.Now())
	if from != nil {
		s = *from
	}
	l := node.New(node.Config{Broker: book, LeaseInterval: cfg.LeaseInterval, Grace: cfg.NodeMonitorGracePeriod},
		control.Config{Store: book, Start: s, Deciders: serve.Deciders(cfg)})
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- l.Run(ctx) }()
	return l, book, func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

// Report returns a device's status.
func Report(boot string, seq uint64, ready corev1.ConditionStatus) wire.Status {
	return wire.Status{Boot: boot, Seq: seq, MachineID: "0123456789abcdef",
		Registration: wire.Registration{Labels: map[string]string{corev1.LabelTopologyZone: "oslo"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready,
			Reason: "KubeletReady", Message: "container engine is ready"}}}}
}

// Greet sends a device's first messages: its status, and a lease that acknowledges no desired
// state.
func Greet(t *testing.T, l *node.Devices, name string) {
	t.Helper()
	if err := l.Status(t.Context(), node.Caller{Node: name}, Report("b", 1, "True")); err != nil {
		t.Fatal(err)
	}
	l.Lease(node.Caller{Node: name}, wire.Lease{Boot: "b", Seq: 1, Status: 1})
	synctest.Wait()
}

// LastDesired returns the newest desired state.
func (b *Notebook) LastDesired(t *testing.T) wire.Desired {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.desired) == 0 {
		t.Fatal("nothing was published")
	}
	return b.desired[len(b.desired)-1]
}

// Rows returns every object as last committed; nil for a deleted object.
func (b *Notebook) Rows() map[state.Key][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.rows)
}

// Forget drops the rows to free memory.
func (b *Notebook) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.rows)
}

// Written returns the number of committed bytes.
func (b *Notebook) Written() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}

// Cut returns the nodes that were disconnected.
func (b *Notebook) Cut() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.cut)
}
