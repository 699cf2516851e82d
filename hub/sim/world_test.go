// Package sim is the simulated fleet: the real hub and real agents in a bubble of fake time.
//
// It has only tests. The hub's network and its disk's failures are simulated; package serve takes
// them as parameters. Everything else is the program's own code.
package sim

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/serve"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// long is set by make test-long. Otherwise tests of a whole day, or of hundreds of cases, run only
// a part.
var long = os.Getenv("FLOTILLA_LONG") != ""

// A world is a hub and its devices in one bubble of fake time. Everything is real (the loop with
// every decider, the broker, SQLite, the agents, their links), except the network, which is in
// memory, and the container engines, which are fakes. The inspector checks invariants at every
// change.
type world struct {
	t    *testing.T
	dir  string
	cfg  config.Config
	log  *slog.Logger
	seed uint64
	rand *rand.Rand
	born time.Time

	life      int  // number of the world, part of the names of boots
	clocksLie bool // devices report wrong times

	hub     *simHub    // nil: the hub does not run
	made    sync.Mutex // guards devices, because some are created while the fleet is checked
	devices []*simDevice
	lights  map[string]*light // see light; created before the hub starts
	day     context.Context   // context of the lights
	night   context.CancelFunc
	shining sync.WaitGroup
	look    *inspector

	full     atomic.Bool                               // the hub's disk accepts no new objects
	sick     atomic.Pointer[func([]control.Row) error] // failure of the hub's disk; nil: it works
	sickened atomic.Int64                              // number of failures of the hub's disk
	tls      bool                                      // devices join with tokens and use certificates

	mu    sync.Mutex
	net   *pipe.Net // MQTT network of the running hub; nil: the hub does not run
	web   *pipe.Net // HTTPS network of the hub
	tap   tap       // nil: packets pass unchanged
	links map[string]linkState
	lines lines
}

type linkState int

const (
	linkUp linkState = iota
	linkCut
	linkFrozen
)

// simulate runs a play in a bubble, and checks all invariants at the end.
func simulate(t *testing.T, play func(t *testing.T, w *world)) {
	t.Helper()
	simulateIn(t, t.TempDir(), play)
}

func simulateIn(t *testing.T, dir string, play func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, dir)
		defer w.end()
		play(t, w)
	})
}

func newWorld(t *testing.T, dir string) *world {
	w := &world{t: t, dir: dir, cfg: config.Default(), born: time.Now(), links: map[string]linkState{},
		lights: map[string]*light{}}
	w.cfg.DataDir = filepath.Join(dir, "hub")
	w.cfg.Discovery = false // a real network is not in a bubble
	w.log = slog.New(&w.lines)
	w.look = newInspector(w)
	w.day, w.night = context.WithCancel(context.Background())
	w.seeded(1)
	return w
}

// seeded makes the world's random choices depend on a seed, which a failing test prints.
func (w *world) seeded(seed uint64) { w.seed, w.rand = seed, rand.New(rand.NewPCG(seed, seed)) }

// end stops the world, and prints the log of a failed play.
func (w *world) end() {
	for _, d := range w.devices {
		d.kill()
	}
	w.night()
	w.shining.Wait()
	w.stopHub()
	if w.tls {
		time.Sleep(10 * time.Second) // TLS connections take time to close
	}
	for _, l := range w.lines.wrong() {
		w.t.Errorf("logged: %s", l)
	}
	if w.t.Failed() {
		w.t.Logf("seed %d; the end of the hub's log:\n%s", w.seed, w.lines.tail(150))
	}
}

// clock returns the time since the world began.
func (w *world) clock() time.Duration { return time.Since(w.born) }

// dial is the network of a device.
func (w *world) dial(ctx context.Context, d *simDevice) (net.Conn, error) {
	w.mu.Lock()
	n, tap := w.net, w.tap
	w.mu.Unlock()
	if n == nil {
		return nil, errors.New("dial: connection refused: no hub")
	}
	c, err := n.Dial(ctx, d.key)
	if err != nil || tap == nil {
		return c, err
	}
	return tapped(c, d.key, tap), nil
}

// cut, freeze and heal change the links of devices.
func (w *world) cut(ds ...*simDevice)    { w.relink(linkCut, ds) }
func (w *world) freeze(ds ...*simDevice) { w.relink(linkFrozen, ds) }
func (w *world) heal(ds ...*simDevice)   { w.relink(linkUp, ds) }

func (w *world) relink(to linkState, ds []*simDevice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range ds {
		w.links[d.key] = to
		w.apply(d.key, to)
	}
}

func (w *world) apply(key string, to linkState) {
	if w.net == nil {
		return
	}
	switch to {
	case linkCut:
		w.net.Cut(key)
	case linkFrozen:
		w.net.Freeze(key)
	default:
		w.net.Heal(key)
	}
}

// reached tells whether a device can reach the hub.
func (w *world) reached(d *simDevice) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.net != nil && w.links[d.key] == linkUp && d.agent != nil
}

// at returns the devices of a site.
func (w *world) at(site string) (out []*simDevice) {
	for _, d := range w.devices {
		if d.site == site {
			out = append(out, d)
		}
	}
	return out
}

// alter changes the list of devices, which the inspector reads concurrently.
func (w *world) alter(change func()) {
	w.made.Lock()
	defer w.made.Unlock()
	change()
}

// on returns the device of a node.
func (w *world) on(name string) *simDevice {
	w.made.Lock()
	defer w.made.Unlock()
	i := slices.IndexFunc(w.devices, func(d *simDevice) bool { return d.name == name && d.key == name })
	if i < 0 {
		return nil
	}
	return w.devices[i]
}

// runningOn returns the pods that run on a node's device; nil: the node has no device.
func (w *world) runningOn(name string) map[types.UID]string {
	if d := w.on(name); d != nil {
		return d.running()
	}
	if l := w.lights[name]; l != nil {
		return l.running()
	}
	return nil
}

func (w *world) snapshot() state.Snapshot { return w.hub.Loop.Snapshot() }
func (w *world) node(name string) *corev1.Node {
	w.t.Helper()
	n := w.snapshot().Node(name)
	if n == nil {
		w.t.Fatalf("there is no node %s", name)
	}
	return n
}

func (w *world) ready(name string) corev1.ConditionStatus { return state.ReadyOf(w.node(name)) }

// pods returns the pods of a deployment or daemon set.
func (w *world) pods(app string) (out []*corev1.Pod) {
	for p := range w.snapshot().Pods("default") {
		if p.Labels["app"] == app {
			out = append(out, p)
		}
	}
	return out
}

// do changes the fleet like a user.
func (w *world) do(news control.News) {
	w.t.Helper()
	if _, err := w.hub.Loop.Do(context.Background(), news); err != nil {
		w.t.Fatal(err)
	}
}

// put creates or replaces an object after admission, like the API.
func (w *world) put(o state.Object) {
	w.t.Helper()
	w.do(func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		old := s.Get(state.KeyOf(o))
		if old != nil {
			o.SetUID(old.GetUID())
			o.SetCreationTimestamp(old.GetCreationTimestamp())
			o.SetGeneration(old.GetGeneration() + 1)
		} else {
			o.SetCreationTimestamp(metav1.NewTime(now))
			o.SetGeneration(1)
		}
		if _, errs := admission.Admit(o, old, serve.AdmissionSettings(w.cfg)); len(errs) > 0 {
			return nil, errs.ToAggregate()
		}
		return []state.Change{state.Put(o, "")}, nil
	})
}

func template(app string, edits []func(*corev1.PodSpec)) corev1.PodTemplateSpec {
	t := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.org/" + app + ":1"}}},
	}
	for _, edit := range edits {
		edit(&t.Spec)
	}
	return t
}

func (w *world) deploy(app string, replicas int32, edits ...func(*corev1.PodSpec)) {
	w.t.Helper()
	w.put(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		Template: template(app, edits),
	}})
}

func (w *world) daemonSet(app string, edits ...func(*corev1.PodSpec)) {
	w.t.Helper()
	w.put(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, Template: template(app, edits),
	}})
}

// site changes a site's spec, and returns its status after the pass that handles it.
func (w *world) site(name string, edit func(*fleet.SiteSpec)) fleet.SiteStatus {
	w.t.Helper()
	o := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if have := w.snapshot().Site(name); have != nil {
		o = have.DeepCopy()
	}
	edit(&o.Spec)
	w.put(o)
	if now := w.snapshot().Site(name); now != nil {
		return now.Status
	}
	return fleet.SiteStatus{}
}

// policy sets a site's disruption policy.
func (w *world) policy(site string, p fleet.DisruptionPolicy) {
	w.t.Helper()
	w.site(site, func(s *fleet.SiteSpec) { s.DisruptionPolicy = p })
}

// tolerating sets how long a pod stays on a missing node.
func tolerating(d time.Duration) func(*corev1.PodSpec) {
	return func(s *corev1.PodSpec) {
		seconds := int64(d / time.Second)
		for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
			s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds})
		}
	}
}

// until waits for a condition, up to a limit, and returns how long it took.
func (w *world) until(most time.Duration, what string, is func() bool) time.Duration {
	w.t.Helper()
	began := time.Now()
	for !is() {
		if time.Since(began) >= most {
			w.t.Fatalf("at %s: not met after %s: %s", w.clock(), most, what)
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
	}
	return time.Since(began)
}

// settleWithin waits until wrong finds no difference, and returns how long that took.
func (w *world) settleWithin(most time.Duration, after string) time.Duration {
	w.t.Helper()
	began := time.Now()
	for {
		synctest.Wait()
		wrong := w.wrong()
		if wrong == "" {
			return time.Since(began)
		}
		if time.Since(began) >= most {
			w.t.Fatalf("at %s: %s after %s the fleet is not right yet: %s", w.clock(), most, after, wrong)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// twoLeases is how long repairs of lost messages may take: two lease intervals.
const twoLeases = 2 * 10400 * time.Millisecond
