package control_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/lifecycle"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// A modelWorld is a hub's loop with all its deciders, a store in memory, and simulated devices. The
// model checks every commit.
type modelWorld struct {
	t      *testing.T
	seed   uint64
	rand   *rand.Rand
	model  *model
	loop   *node.Devices // nil: the hub is down
	stop   func()
	robots []*robot
	dark   map[string]bool // sites that are cut off
	tags   int

	mu   sync.Mutex // guards all fields below, and the model while the loop runs
	rows map[state.Key][]byte
	rev  uint64
	did  []string
}

// A robot is a device with its usual messages at their usual times.
type robot struct {
	name, site string
	boot       string
	boots      int
	seq, says  uint64 // numbers of leases, and of statuses and lists of pods
	listed     uint64
	joined     bool
	cut        bool // its own connection is cut
	ready      corev1.ConditionStatus
	reached    bool // the hub was reachable a second ago
	next       time.Time
	stored     int64
	has        map[types.UID]*robotPod
	dirty      bool

	inbox []wire.Desired // guarded by modelWorld.mu, like all fields below
	asked bool
	anew  bool // the device needs a new boot id
}

type robotPod struct {
	pod  corev1.Pod
	stop time.Time // zero: it should run
}

func newModelWorld(t *testing.T, seed uint64) *modelWorld {
	w := &modelWorld{
		t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 11)), model: newModel(),
		dark: map[string]bool{}, rows: map[state.Key][]byte{},
	}
	w.model.held = func(node string, uid types.UID) bool {
		for _, d := range w.robots {
			if d.name == node {
				return d.has[uid] != nil
			}
		}
		return false
	}
	return w
}

// Commit implements control.Store. The world waits for it.
func (w *modelWorld) Commit(_ context.Context, rows []control.Row, rev uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rev = rev
	for _, r := range rows {
		if w.rows[r.Key] = r.Object; r.Object == nil {
			delete(w.rows, r.Key)
		}
	}
	w.model.saw(rows, rev, time.Now())
	return nil
}

// Publish, Request and Disconnect implement node.Broker.
func (w *modelWorld) Publish(node string, c wire.Channel, payload ...[]byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var d wire.Desired
	if err := json.Unmarshal(payload[0], &d); err != nil {
		return err
	}
	for _, r := range w.robots {
		if r.name == node {
			r.inbox = append(r.inbox, d)
		}
	}
	return nil
}

func (w *modelWorld) Request(node, _ string, r wire.Request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.robots {
		if d.name == node && r.Type == wire.RequestRefresh {
			d.asked, d.anew = true, d.anew || r.NewBoot
		}
	}
	return nil
}

func (w *modelWorld) Disconnect(string) {}

// up starts the hub from the stored rows.
func (w *modelWorld) up() {
	w.t.Helper()
	var objects []state.Object
	w.mu.Lock()
	for k, raw := range w.rows {
		o, err := state.New(k.Kind)
		if err == nil {
			err = state.Decode(raw, o)
		}
		if err != nil {
			w.t.Fatalf("seed %d: read %s again: %v", w.seed, k, err)
		}
		objects = append(objects, o)
	}
	w.model.start(time.Now())
	w.mu.Unlock()
	log := slog.New(slog.DiscardHandler)
	if *modelSeed != 0 {
		log = slog.New(slog.NewTextHandler(w, nil))
	}
	w.loop = node.New(node.Config{Broker: w, LeaseInterval: 10 * time.Second, Grace: lifecycle.Defaults.Grace},
		control.Config{Log: log, Store: w, Start: state.Load(state.Empty("story", time.Now()), objects, w.rev),
			Deciders: deciders()})
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- w.loop.Run(ctx) }()
	w.stop = func() {
		cancel()
		<-over
		w.loop = nil
		w.mu.Lock()
		w.model.up = false
		w.mu.Unlock()
	}
}

// do passes news to the hub if it is up.
func (w *modelWorld) do(what string, news func(s state.Snapshot, now time.Time) []state.Change) {
	if w.loop == nil {
		return
	}
	w.say("%s", what)
	if _, err := w.loop.Do(context.Background(),
		func(s state.Snapshot, now time.Time) ([]state.Change, error) { return news(s, now), nil }); err != nil {
		w.t.Fatalf("seed %d: %s: %v", w.seed, what, err)
	}
}

func (w *modelWorld) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.did = append(w.did, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// story returns the last events, with -model.seed also the hub's log.
func (w *modelWorld) story() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.did[max(0, len(w.did)-150):], "\n")
}

// Write appends a line of the hub's log.
func (w *modelWorld) Write(line []byte) (int, error) {
	_, text, _ := strings.Cut(string(line), " msg=")
	w.say("    = %s", strings.TrimSpace(text))
	return len(line), nil
}

// wait advances the time. Once a second the devices act and the model checks.
func (w *modelWorld) wait(d time.Duration) {
	for end := time.Now().Add(d); ; {
		rest := time.Until(end)
		if rest <= 0 {
			return
		}
		time.Sleep(min(rest, time.Second))
		for _, r := range w.robots {
			w.robot(r)
		}
		w.mu.Lock()
		if w.loop != nil {
			w.model.look(time.Now(), true)
		}
		wrong := w.model.wrong
		w.mu.Unlock()
		if wrong != "" {
			w.t.Fatalf("seed %d: %s\n\n%s", w.seed, wrong, w.story())
		}
	}
}

// robot runs the due actions of a device.
func (w *modelWorld) robot(r *robot) {
	now := time.Now()
	reach := w.loop != nil && r.joined && !r.cut && !w.dark[r.site]
	w.mu.Lock()
	asked, anew := r.asked, r.anew
	r.asked, r.anew = false, false
	if !reach {
		r.inbox, asked, anew = nil, false, false
	}
	if len(r.inbox) > 0 && w.rand.IntN(3) > 0 { // one desired state after the other, some of them late
		d := r.inbox[0]
		r.inbox = r.inbox[1:]
		for _, uid := range r.obey(d, now, w.rand) {
			if w.model.over[uid] {
				w.model.fail(now, "%s is told to start a pod that it has reported as stopped", r.name)
			}
		}
	}
	w.mu.Unlock()
	r.dirty = r.dirty || w.rand.IntN(30) == 0
	for uid, p := range r.has {
		if !p.stop.IsZero() && !now.Before(p.stop) {
			delete(r.has, uid)
			r.dirty = true
		}
	}
	if !reach {
		r.reached = false
		return
	}
	if anew {
		r.reboot()
	}
	if !r.reached || now.After(r.next) {
		r.seq++
		r.next = now.Add(10*time.Second + time.Duration(w.rand.Int64N(int64(400*time.Millisecond))))
		w.lease(r, now)
	}
	r.reached = true
	if asked {
		w.report(r)
		r.dirty = true
	}
	if r.dirty && w.heardOf(r) {
		w.list(r)
	}
}

func (w *modelWorld) heardOf(r *robot) bool {
	rec := w.loop.Snapshot().Record(r.name)
	return rec != nil && rec.Boot == r.boot
}

func (w *modelWorld) lease(r *robot, now time.Time) {
	if w.heardOf(r) {
		w.mu.Lock()
		w.model.lastSeen[r.name] = now
		w.mu.Unlock()
	}
	w.loop.Lease(node.Caller{Node: r.name}, wire.Lease{Boot: r.boot, Seq: r.seq, Status: r.says, Pods: r.listed,
		Desired: r.stored})
}

// report sends the status of a device.
func (w *modelWorld) report(r *robot) {
	r.says++
	w.mu.Lock()
	now := time.Now()
	w.model.lastSeen[r.name], w.model.ready[r.name] = now, readyReport{r.ready, now}
	w.mu.Unlock()
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"),
		corev1.ResourceMemory: resource.MustParse("2Gi"), corev1.ResourcePods: resource.MustParse("20")}
	st := wire.Status{Boot: r.boot, Seq: r.says,
		MachineID:    fmt.Sprintf("%016x", len(r.name)+int(r.name[len(r.name)-1])<<8),
		Registration: wire.Registration{Labels: map[string]string{corev1.LabelTopologyZone: r.site}},
		Status: corev1.NodeStatus{Capacity: list, Allocatable: list,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: r.ready, Reason: "Kubelet",
				Message: "as told"}}}}
	if err := w.loop.Status(context.Background(), node.Caller{Node: r.name}, st); err != nil {
		w.t.Fatalf("seed %d: status of %s: %v\n%s", w.seed, r.name, err, w.story())
	}
}

// list sends the pods of a device.
func (w *modelWorld) list(r *robot) {
	r.listed++
	pods := wire.Pods{Boot: r.boot, Seq: r.listed, Generation: r.stored}
	for uid, p := range r.has {
		ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
		pods.Pods = append(pods.Pods, wire.PodStatus{UID: uid, Namespace: p.pod.Namespace, Name: p.pod.Name,
			Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{ready}}})
	}
	slices.SortFunc(pods.Pods, func(a, b wire.PodStatus) int { return strings.Compare(a.Name, b.Name) })
	if err := w.loop.Pods(context.Background(), node.Caller{Node: r.name}, pods); err == nil {
		r.dirty = false
	}
}

// obey applies a desired state: it starts new pods, and stops deleted pods after a while.
func (r *robot) obey(d wire.Desired, now time.Time, rand *rand.Rand) (starts []types.UID) {
	if d.Generation <= r.stored {
		return nil
	}
	r.stored, r.dirty = d.Generation, true
	wanted := map[types.UID]bool{}
	for _, p := range d.Pods {
		wanted[p.UID] = p.DeletionTimestamp == nil
		if wanted[p.UID] && r.has[p.UID] == nil && p.Status.Phase != corev1.PodFailed {
			r.has[p.UID] = &robotPod{pod: p}
			starts = append(starts, p.UID)
		}
	}
	for uid, p := range r.has {
		if !wanted[uid] && p.stop.IsZero() {
			p.stop = now.Add(time.Duration(rand.Int64N(int64(5 * time.Second))))
		}
	}
	return starts
}

// reboot restarts the agent of a device; the desired state survives.
func (r *robot) reboot() {
	r.boots++
	r.boot = fmt.Sprintf("%s-%d", r.name, r.boots)
	r.seq, r.says, r.listed, r.reached, r.dirty = 0, 0, 0, false, true
}
