// Package enginetest is a container engine in memory, for tests and simulated devices. It does no
// I/O and starts goroutines only for commands that wait for input, so one process holds a thousand
// engines. It uses package time alone, so it runs in a testing/synctest bubble. Its containers
// follow the Program of their image.
//
// Conformance tests the fake and the real engines by the same cases. Command image builds the test
// image, package tool is the program in it, and ToolProgram imitates that program for the fake.
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

// A Program returns how a container behaves after each start; run counts the starts from 0.
type Program func(s engine.Spec, run int) Play

// A Play describes one run of a container. The zero Play prints nothing, runs until it is stopped
// and exits with 0.
type Play struct {
	StartError  string        // why the container cannot start
	Lines       []Line        // output, sorted by After
	Exits       bool          // the container exits after ExitAfter; false: it runs until it is stopped
	ExitAfter   time.Duration // time from the start to the exit, if Exits
	ExitCode    int           // exit code, if Exits
	OOM         bool          // the kernel's out-of-memory killer ends it
	StopTakes   time.Duration // time from the stop signal to the exit; above the grace period the container is killed
	StopCode    int           // exit code after the stop signal
	MemoryBytes uint64        // working set; above the container's memory limit the container is killed at once
	MilliCPU    uint64
	Written     int64                             // bytes written outside of the mounts
	Files       int64                             // number of files written outside of the mounts
	Exec        func(command []string) ExecResult // nil: every command prints nothing and succeeds

	// Attached is the first process as an attachment sees it; nil: the attachment gets Lines. Dial
	// connects to a port of the container; nil: all ports are closed.
	Attached func(ctx context.Context, s engine.Streams) error
	Dial     func(ctx context.Context, port int) (net.Conn, error)
}

// A Line is a line of output.
type Line struct {
	After  time.Duration // time since the start
	Stderr bool
	Text   string // without its line feed
}

// An ExecResult describes a command in a container.
type ExecResult struct {
	Stdout, Stderr string
	Code           int
	After          time.Duration // duration of the command
	Err            error

	// Run replaces the fields above for a command that reads or waits; it runs until ctx ends.
	Run func(ctx context.Context, s engine.Streams) (code int)
}

// An Offer is an image in the registry.
type Offer struct {
	ID      string // image id, for a tag that moves; "": derived from the name
	Size    int64
	Delay   time.Duration        // duration of a pull
	Tells   time.Duration        // interval of progress reports; 0: none
	Err     error                // the pull fails with this error after Delay
	Auth    *engine.RegistryAuth // required credentials
	Program Program              // nil: the zero Play
	Tree    []Entry              // files of the image
	Layers  []string             // digests of its unpacked layers
}

// An Entry is a file of an image, as in package tar.
type Entry struct {
	tar.Header
	Data string
}

// Fake is an engine in memory. Its methods are safe for concurrent use.
type Fake struct {
	mu         sync.Mutex
	info       engine.Info
	down       bool
	latency    time.Duration
	containers []*instance // in order of creation
	images     map[string]*image
	networks   map[string]engine.Network
	offers     map[string]Offer
	faults     map[string][]error
	listeners  map[chan struct{}]string      // event channels with their label filters
	changed    chan struct{}                 // closed and replaced at every change
	made       int                           // number of created containers, for ids
	begun      int                           // number of started commands, for ids
	execs      map[string]context.CancelFunc // running commands by id
	recording  bool
	calls      []string
}

type image struct {
	ref, id string
	size    int64
	user    string
	program Program
	tree    []Entry
	layers  []string
	damaged bool
}

var _ engine.Engine = (*Fake)(nil)

// New returns an engine without images. Its Info describes Docker on amd64; see SetInfo.
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

// SetInfo sets the result of Info.
func (t *Fake) SetInfo(i engine.Info) { t.do(func() { t.info = i }) }

// SetLatency makes every call take this long.
func (t *Fake) SetLatency(d time.Duration) { t.do(func() { t.latency = d }) }

// AddImage adds a local image. program may be nil.
func (t *Fake) AddImage(ref string, size int64, program Program) {
	t.do(func() { t.addImage(ref, Offer{Size: size, Program: program}) })
}

// SetImageTree sets the files of a local image.
func (t *Fake) SetImageTree(ref string, tree ...Entry) { t.do(func() { t.images[ref].tree = tree }) }

// Damage removes a layer of a local image.
func (t *Fake) Damage(ref string) { t.do(func() { t.images[ref].damaged = true }) }

// SetImageUser sets the user of a local image.
func (t *Fake) SetImageUser(ref, user string) { t.do(func() { t.images[ref].user = user }) }

func (t *Fake) addImage(ref string, o Offer) {
	id := cmp.Or(o.ID, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref))))
	t.images[ref] = &image{ref: ref, id: id, size: o.Size, program: o.Program, tree: o.Tree, layers: o.Layers}
}

// OfferImage adds an image to the registry.
func (t *Fake) OfferImage(ref string, o Offer) { t.do(func() { t.offers[ref] = o }) }

// SetDown switches the engine off or on. While it is off, every call, including running ones, fails
// with engine.ErrUnavailable. Containers keep running.
func (t *Fake) SetDown(down bool) { t.do(func() { t.down = down }) }

// Fail makes the next call of a method (Start, Pull, …) fail with err. Several errors for one
// method are used in order.
func (t *Fake) Fail(call string, err error) {
	t.do(func() { t.faults[call] = append(t.faults[call], err) })
}

// Record starts recording the calls that change the engine; see Calls.
func (t *Fake) Record() { t.do(func() { t.recording = true }) }

// Calls returns the calls since Record, such as "Create web", "Stop web 30s", "Pull nginx:1".
func (t *Fake) Calls() (calls []string) {
	t.do(func() { calls = slices.Clone(t.calls) })
	return calls
}

// Exit ends the running container of this name and reports whether it was found.
func (t *Fake) Exit(name string, code int) (found bool) {
	return t.with(name, func(c *instance) { t.end(c, time.Now(), code, false) })
}

// Crash ends the running container of this name after some last output and reports whether it was
// found.
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

// OOMKill ends the running container of this name as the kernel's out-of-memory killer does.
func (t *Fake) OOMKill(name string) (found bool) {
	return t.with(name, func(c *instance) { t.end(c, time.Now(), 137, true) })
}

// Use sets the usage of the running container of this name until it ends.
func (t *Fake) Use(name string, milliCPU, memoryBytes uint64) (found bool) {
	return t.with(name, func(c *instance) {
		now := time.Now()
		c.cpuBefore, c.cpuSince = c.cpu(now), now
		c.play.MilliCPU, c.play.MemoryBytes = milliCPU, memoryBytes
	})
}

// Lose removes a container without an event.
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

// Pause freezes (to=true) or resumes the running container of this name, as docker pause does.
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

// PowerCut ends every container as a reboot of the device does: exit code 255, and no container
// starts again by itself.
func (t *Fake) PowerCut() {
	t.do(func() {
		for _, c := range t.containers {
			t.end(c, time.Now(), 255, false)
		}
	})
}

// do changes the fake and wakes the waiting calls.
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

// notify sends an event to the listeners whose filter matches these labels. Unread events are
// merged.
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

// carries reports whether the labels match a filter, "key" or "key=value".
func carries(labels map[string]string, filter string) bool {
	key, want, exact := strings.Cut(filter, "=")
	got, ok := labels[key]
	return ok && (!exact || got == want)
}

// enter begins a call: it waits for the latency and returns with the lock held, or with an error.
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
