// Package enginetest is a container engine in memory: the fake of package engine for tests and for
// simulated devices. It does no I/O and starts no goroutines but for commands that wait for input,
// so a thousand of them fit in one process; it knows the time only from package time, so it lives
// in a testing/synctest bubble. Its containers do what their image's Program says.
//
// Conformance holds the fake and the real engines to the same promises. Command image (beside it)
// builds the test image that the real ones run, package tool is what is inside, and ToolProgram
// plays it for the fake.
package enginetest

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"flotilla.dev/device/engine"
)

// A Program says what a container does each time that it is started; run counts the starts from 0.
type Program func(s engine.Spec, run int) Play

// A Play is one run of a container. The zero Play runs for ever, says nothing, and ends with 0 as
// soon as it is asked to.
type Play struct {
	StartError  string        // it cannot even be started, and this is why
	Lines       []Line        // what it prints, in the order of After
	Exits       bool          // it ends by itself ExitAfter its start
	ExitAfter   time.Duration //
	ExitCode    int           //
	OOM         bool          // that end is by the kernel's out-of-memory killer
	StopTakes   time.Duration // from the stop signal to its end; longer than the grace: it is killed
	StopCode    int           // exit code after the stop signal
	MemoryBytes uint64        // working set; beyond the container's limit it is killed at once
	MilliCPU    uint64
	Written     int64                             // bytes outside of its mounts,
	Files       int64                             // in so many files
	Exec        func(command []string) ExecResult // nil: every command prints nothing and succeeds

	// Attached plays the first process towards one who attaches; nil: it prints its lines as they
	// come. Dial is what is at its ports; nil: nothing.
	Attached func(ctx context.Context, s engine.Streams) error
	Dial     func(ctx context.Context, port int) (net.Conn, error)
}

// A Line is a line of output.
type Line struct {
	After  time.Duration // since the start
	Stderr bool
	Text   string // without its line feed
}

// An ExecResult is what a command in a container does.
type ExecResult struct {
	Stdout, Stderr string
	Code           int
	After          time.Duration // how long it takes
	Err            error

	// instead of the above, for what reads and waits; until ctx ends
	Run func(ctx context.Context, s engine.Streams) (code int)
}

// An Offer is an image in a registry.
type Offer struct {
	ID      string // of the image, where a tag moves; "": always the same
	Size    int64
	Delay   time.Duration        // how long pulling takes
	Tells   time.Duration        // how often its progress is told; 0: never
	Err     error                // pulling fails with this, after Delay
	Auth    *engine.RegistryAuth // required credentials
	Program Program              // nil: the zero Play
	Tree    []Entry              // what it holds
}

// An Entry is a file of an image, in the words of package tar.
type Entry struct {
	tar.Header
	Data string
}

// Fake is an engine in memory. All its methods may be called at any time from any goroutine.
type Fake struct {
	mu         sync.Mutex
	info       engine.Info
	down       bool
	latency    time.Duration
	containers []*instance // in the order of their creation
	images     map[string]*image
	networks   map[string]engine.Network
	offers     map[string]Offer
	faults     map[string][]error
	listeners  map[chan struct{}]string      // label
	changed    chan struct{}                 // closed and replaced whenever anything changes
	made       int                           // containers so far
	begun      int                           // commands so far
	execs      map[string]context.CancelFunc // those that run, by id
	recording  bool
	calls      []string
}

type image struct {
	ref, id string
	size    int64
	user    string
	program Program
	tree    []Entry
	damaged bool
}

var _ engine.Engine = (*Fake)(nil)

// New is an engine without images. It says that it is Docker on amd64; see SetInfo.
func New() *Fake {
	return &Fake{
		info: engine.Info{Name: "docker", Version: "20.10.24", APIVersion: "1.41", OS: "linux", Arch: "amd64",
			Root: "/var/lib/docker", Socket: "/var/run/docker.sock", MemLimit: true, CPULimit: true, PidsLimit: true},
		images:    map[string]*image{},
		networks:  map[string]engine.Network{},
		offers:    map[string]Offer{},
		faults:    map[string][]error{},
		listeners: map[chan struct{}]string{},
		execs:     map[string]context.CancelFunc{},
		changed:   make(chan struct{}),
	}
}

// SetInfo changes what Info answers.
func (t *Fake) SetInfo(i engine.Info) { t.do(func() { t.info = i }) }

// SetLatency makes every call take that long.
func (t *Fake) SetLatency(d time.Duration) { t.do(func() { t.latency = d }) }

// AddImage puts an image there as if it had been pulled. program may be nil.
func (t *Fake) AddImage(ref string, size int64, program Program) {
	t.do(func() { t.addImage(ref, Offer{Size: size, Program: program}) })
}

// SetImageTree says what an image holds that is there.
func (t *Fake) SetImageTree(ref string, tree ...Entry) { t.do(func() { t.images[ref].tree = tree }) }

// Damage takes a layer of an image away that is there.
func (t *Fake) Damage(ref string) { t.do(func() { t.images[ref].damaged = true }) }

// SetImageUser says as whom the programs of an image run that is there.
func (t *Fake) SetImageUser(ref, user string) { t.do(func() { t.images[ref].user = user }) }

func (t *Fake) addImage(ref string, o Offer) {
	id := cmp.Or(o.ID, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref))))
	t.images[ref] = &image{ref: ref, id: id, size: o.Size, program: o.Program, tree: o.Tree}
}

// OfferImage makes an image pullable.
func (t *Fake) OfferImage(ref string, o Offer) { t.do(func() { t.offers[ref] = o }) }

// SetDown switches the engine off: every call, also those under way, fails with
// engine.ErrUnavailable until it is switched on again. Containers go on.
func (t *Fake) SetDown(down bool) { t.do(func() { t.down = down }) }

// Fail lets the next call of that name (Start, Pull, …) fail with err. Several faults of one name
// are used in turn.
func (t *Fake) Fail(call string, err error) {
	t.do(func() { t.faults[call] = append(t.faults[call], err) })
}

// Record begins to write down calls that change something; see Calls.
func (t *Fake) Record() { t.do(func() { t.recording = true }) }

// Calls are the calls since Record, such as "Create web", "Start web", "Stop web 30s", "Pull
// nginx:1".
func (t *Fake) Calls() (calls []string) {
	t.do(func() { calls = slices.Clone(t.calls) })
	return calls
}

// Exit ends the running container of that name; it reports whether there is one.
func (t *Fake) Exit(name string, code int) (found bool) {
	return t.with(name, func(c *instance) { t.end(c, time.Now(), code, false) })
}

// Crash ends the running container of that name after it has said something; it reports whether
// there is one.
func (t *Fake) Crash(name string, last []Line, code int, oom bool) (found bool) {
	return t.with(name, func(c *instance) {
		now := time.Now()
		r := &c.runs[len(c.runs)-1]
		r.lines = slices.DeleteFunc(slices.Clone(r.lines), func(l Line) bool { return l.After > now.Sub(r.started) })
		for _, l := range last {
			l.After = now.Sub(r.started)
			r.lines = append(r.lines, l)
		}
		t.end(c, now, code, oom)
	})
}

// OOMKill ends the running container of that name for want of memory.
func (t *Fake) OOMKill(name string) (found bool) {
	return t.with(name, func(c *instance) { t.end(c, time.Now(), 137, true) })
}

// Use changes what the running container of that name uses, until it ends.
func (t *Fake) Use(name string, milliCPU, memoryBytes uint64) (found bool) {
	return t.with(name, func(c *instance) {
		now := time.Now()
		c.cpuBefore, c.cpuSince = c.cpu(now), now
		c.play.MilliCPU, c.play.MemoryBytes = milliCPU, memoryBytes
	})
}

// Lose removes a container behind the back of everybody.
func (t *Fake) Lose(name string) (found bool) {
	t.do(func() {
		for _, c := range t.containers {
			if c.spec.Name == name {
				t.remove(c)
				found = true
				return
			}
		}
	})
	return found
}

// Rename gives a container another name.
func (t *Fake) Rename(name, to string) (found bool) {
	t.do(func() {
		if c := t.find(name); c != nil {
			c.spec.Name, found = to, true
			t.notify(c.spec.Labels)
		}
	})
	return found
}

// Pause freezes the running container of that name, as docker pause does; to is whether it is to be
// frozen.
func (t *Fake) Pause(name string, to bool) (found bool) {
	t.do(func() {
		from, next := engine.Running, engine.Paused
		if !to {
			from, next = next, from
		}
		if c := t.find(name); c != nil && c.state == from {
			c.state, found = next, true
			t.notify(c.spec.Labels)
		}
	})
	return found
}

// HalfRemove leaves a container in the state engine.Dead, as a failing disk does.
func (t *Fake) HalfRemove(name string) (found bool) {
	t.do(func() {
		for _, c := range t.containers {
			if c.spec.Name == name {
				t.end(c, time.Now(), 137, false)
				c.state = engine.Dead
				found = true
			}
		}
	})
	return found
}

// PowerCut ends every container as a reboot of the device does: exit code 255 and nothing
// restarted.
func (t *Fake) PowerCut() {
	t.do(func() {
		for _, c := range t.containers {
			t.end(c, time.Now(), 255, false)
		}
	})
}

// do changes the fake and wakes whoever waits for a change.
func (t *Fake) do(change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settle(time.Now())
	change()
	t.wake()
}

func (t *Fake) with(name string, change func(*instance)) (found bool) {
	t.do(func() {
		for _, c := range t.containers {
			if c.spec.Name == name && c.state == engine.Running {
				change(c)
				found = true
				return
			}
		}
	})
	return found
}

func (t *Fake) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// notify tells the listeners that a container with these labels has changed. Changes that nobody
// has looked at yet count as one.
func (t *Fake) notify(labels map[string]string) {
	for listener, label := range t.listeners {
		if carries(labels, label) {
			select {
			case listener <- struct{}{}:
			default:
			}
		}
	}
	t.wake()
}

// carries tells whether the labels fulfil a filter, "key" or "key=value".
func carries(labels map[string]string, filter string) bool {
	key, want, exact := strings.Cut(filter, "=")
	got, ok := labels[key]
	return ok && (!exact || got == want)
}

// enter begins a call: it waits for the latency, then holds the lock unless it returns an error.
func (t *Fake) enter(ctx context.Context, call, object string) error {
	t.mu.Lock()
	latency := t.latency
	t.mu.Unlock()
	if latency > 0 {
		select {
		case <-time.After(latency):
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", call, object, ctx.Err())
	}
	t.mu.Lock()
	if err := t.refusal(call, object); err != nil {
		t.mu.Unlock()
		return err
	}
	t.settle(time.Now())
	return nil
}

func (t *Fake) refusal(call, object string) error {
	if t.down {
		return fmt.Errorf("%s %s: %w: it is switched off", call, object, engine.ErrUnavailable)
	}
	if faults := t.faults[call]; len(faults) > 0 {
		t.faults[call] = faults[1:]
		return fmt.Errorf("%s %s: %w", call, object, faults[0])
	}
	return nil
}

func (t *Fake) record(words ...any) {
	if t.recording {
		t.calls = append(t.calls, strings.TrimSpace(fmt.Sprintln(words...)))
	}
}
