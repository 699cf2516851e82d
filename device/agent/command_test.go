package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/wire"
)

// A talk is one request and its answer, as package link's Stream carries them.
type talk struct {
	inputs chan wire.Request
	gone   chan struct{}
	end    chan wire.Reply
	slow   time.Duration // each chunk takes so long to be taken

	mu       sync.Mutex
	began    bool
	out, err bytes.Buffer
}

func newTalk() *talk {
	return &talk{inputs: make(chan wire.Request), gone: make(chan struct{}), end: make(chan wire.Reply, 1)}
}

func (a *talk) Send(ctx context.Context, r wire.Reply) error {
	select {
	case <-a.gone:
		return errors.New("offline")
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(a.slow):
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Stderr {
		a.err.Write(r.Data)
	} else {
		a.out.Write(r.Data)
	}
	a.began = true
	if r.EOF {
		a.end <- r
	}
	return nil
}

func (a *talk) begun() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.began
}

func (a *talk) Input(ctx context.Context) (wire.Request, error) {
	select {
	case r, ok := <-a.inputs:
		if !ok {
			return r, errors.New("input 5 came after 3")
		}
		return r, nil
	case <-a.gone:
		return wire.Request{}, errors.New("offline")
	case <-ctx.Done():
		return wire.Request{}, ctx.Err()
	}
}

func (a *talk) Gone() <-chan struct{} { return a.gone }

func (a *talk) said() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out.String()
}

// A speaker is a hub whose requests are answered to talks.
type speaker struct {
	*device
	talks map[string]*talk
}

func (s speaker) Stream(id string) Answer { return s.talks[id] }

// asks puts a request to a device.
func (d *device) asks(id string, r wire.Request) *talk {
	a := newTalk()
	d.agent.SetHub(speaker{d, map[string]*talk{id: a}})
	d.agent.Request(id, r)
	return a
}

func command(words string) wire.Request {
	return wire.Request{Type: wire.RequestExec, Pod: "uid-web", Command: strings.Fields(words)}
}

func interactive(words string) wire.Request {
	r := command(words)
	r.Stdin = true
	return r
}

func TestCommands(t *testing.T) {
	for _, c := range []struct {
		name     string
		r        wire.Request
		inputs   []wire.Request
		out, err string
		code     int32
		ends     string // with this error
	}{
		{"its outputs stay apart, and its code is told", command("/tool print one then complain two then exit 3"), nil, "one\n", "two\n", 3, ""},
		{"what is typed goes in, and its end too", interactive("/tool cat -"), []wire.Request{
			{Type: wire.RequestStdin, Data: []byte("a")}, {Type: wire.RequestStdin, Data: []byte("b")}, {Type: wire.RequestCloseStdin},
		}, "ab", "", 0, ""},
		{"a terminal has the size that was told last", wire.Request{Type: wire.RequestExec, Pod: "uid-web", Command: strings.Fields("/tool size 120 40"), TTY: true, Stdin: true}, []wire.Request{
			{Type: wire.RequestResize, Width: 80, Height: 24}, {Type: wire.RequestResize, Width: 120, Height: 40},
		}, "the terminal is 120 by 40\r\n", "", 0, ""},
		{"a command that is not there", command("/nothing"), nil, "", "exec: \"/nothing\": no such file or directory\n", 127, ""},
		{"a container that the pod does not have", wire.Request{Type: wire.RequestExec, Pod: "uid-web", Container: "x", Command: []string{"y"}}, nil, "", "", 0, "container x is not valid for pod web"},
		{"a pod that is not here", wire.Request{Type: wire.RequestExec, Pod: "uid-gone", Command: []string{"y"}}, nil, "", "", 0, "pod uid-gone is not on this device"},
		{"a container that has ended", wire.Request{Type: wire.RequestExec, Pod: "uid-done", Command: []string{"y"}}, nil, "", "", 0, "container c0 of pod done is not running: it has ended with exit code 4"},
		{"a container that cannot be made", wire.Request{Type: wire.RequestExec, Pod: "uid-none", Command: []string{"y"}}, nil, "", "", 0, "container c0 of pod none is not running: CreateContainerConfigError: configmap \"missing\" not found"},
		{"an attachment hears what is said from now on", wire.Request{Type: wire.RequestAttach, Pod: "uid-talker"}, nil, "late\n", "", 0, ""},
		{"a port where nobody listens", wire.Request{Type: wire.RequestPortForward, Pod: "uid-web", Port: 81}, nil, "", "", 0, "connection refused: nothing listens on port 81"},
		{"a port of a pod that does not run", wire.Request{Type: wire.RequestPortForward, Pod: "uid-done", Port: 81}, nil, "", "", 0, "no container of pod done is running"},
		{"a port", wire.Request{Type: wire.RequestPortForward, Pod: "uid-web", Port: 8080}, []wire.Request{
			{Type: wire.RequestStdin, Data: []byte("GET / HTTP/1.1\r\nHost: x\r\n")}, {Type: wire.RequestStdin, Data: []byte("Connection: close\r\n\r\n")},
		}, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\nhello from port 8080\n", "", 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				done := makePod("done", "exit 4")
				done.Spec.RestartPolicy = corev1.RestartPolicyNever
				talker := makePod("talker", "print early then sleep 20s then print late then sleep 1s")
				talker.Spec.RestartPolicy = corev1.RestartPolicyNever
				none := makePod("none", "wait")
				none.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}}}}
				d.desire(1, makePod("web", "serve 127.0.0.1:8080"), done, talker, none)
				time.Sleep(10 * time.Second)
				a := d.asks("r1", c.r)
				for _, in := range c.inputs {
					a.inputs <- in
				}
				end := <-a.end
				if a.out.String() != c.out || a.err.String() != c.err || end.ExitCode != c.code || end.Error != c.ends {
					t.Errorf("it says %q, complains %q, and ends with %d %q; want %q, %q, %d %q", &a.out, &a.err, end.ExitCode, end.Error, c.out, c.err, c.code, c.ends)
				}
			})
		})
	}
}

// A watched engine knows the commands that run in it.
type watched struct {
	*enginetest.Fake
	mu      sync.Mutex
	running int
}

func (w *watched) Exec(ctx context.Context, id string, command []string, s engine.Streams) (int, error) {
	w.add(1)
	defer w.add(-1)
	return w.Fake.Exec(ctx, id, command, s)
}

func (w *watched) add(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running += n
	return w.running
}

// watchedBubble is bubble with a watched engine.
func watchedBubble(t *testing.T, f func(t *testing.T, d *device)) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		d.engine = &watched{Fake: d.fake}
		d.start()
		defer func() { d.end() }()
		f(t, d)
	})
}

func TestACommandEndsWithWhatItWasFor(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(d *device, a *talk)
		want string // what the hub hears, "-" if it hears nothing
	}{
		{"the hub wants it no longer", func(d *device, _ *talk) {
			d.agent.Request("r2", wire.Request{Type: wire.RequestCancel, Of: "r1"})
		}, ""},
		{"the hub has gone", func(_ *device, a *talk) { close(a.gone) }, "-"},
		{"its input has a hole", func(_ *device, a *talk) { close(a.inputs) }, "input 5 came after 3"},
		{"nobody says anything for hours", func(*device, *talk) { time.Sleep(longestReply) }, "ended, because nothing was said for 4h0m0s"},
		{"the agent stops", func(d *device, _ *talk) { d.end(); d.start() }, "the agent of the device is stopping"},
		{"its container ends", func(d *device, _ *talk) { d.fake.Exit(d.name("web"), 0) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			watchedBubble(t, func(t *testing.T, d *device) {
				d.desire(1, makePod("web", "wait"))
				time.Sleep(5 * time.Second)
				a := d.asks("r1", interactive("/tool wait"))
				w := d.engine.(*watched)
				time.Sleep(time.Second)
				if w.add(0) != 1 {
					t.Fatal("the command does not run")
				}
				c.end(d, a)
				if c.want != "-" {
					if end := <-a.end; end.Error != c.want {
						t.Errorf("the hub hears %q, want %q", end.Error, c.want)
					}
				}
				time.Sleep(time.Second)
				if w.add(0) != 0 {
					t.Error("the command runs on")
				}
			})
		})
	}
}

// name is what the engine calls the container of a pod.
func (d *device) name(pod string) string {
	list, err := d.fake.Containers(context.Background(), plan.LabelPodName+"="+pod)
	if err != nil || len(list) != 1 {
		d.t.Fatal(list, err)
	}
	return list[0].Name
}

// A reader is an engine whose commands read to the end of their input.
type reader struct {
	*enginetest.Fake
	ended chan error // how the input has ended
}

func (r reader) Exec(ctx context.Context, _ string, _ []string, s engine.Streams) (int, error) {
	_, err := io.ReadAll(s.Stdin)
	if ctx.Err() == nil {
		err = errors.Join(errors.New("the command was not ended"), err)
	}
	r.ended <- err
	return 0, ctx.Err()
}

func TestABrokenInputIsNoEndOfInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		r := reader{d.fake, make(chan error, 1)}
		d.engine = r
		d.start()
		defer func() { d.end() }()
		d.desire(1, makePod("web", "wait"))
		time.Sleep(5 * time.Second)
		a := d.asks("r1", interactive("/tool sum"))
		a.inputs <- wire.Request{Type: wire.RequestStdin, Data: []byte("half of it")}
		close(a.inputs)
		if err := <-r.ended; err == nil || strings.Contains(err.Error(), "not ended") {
			t.Errorf("the command sees %v", err)
		}
		if end := <-a.end; end.Error != "input 5 came after 3" {
			t.Errorf("it ends with %+v", end)
		}
	})
}

// Whoever finds no room waits for it, in its turn and for a while.
func TestADeviceAnswersOnlySoManyAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		request wire.Request
		most    int
		full    string
	}{
		"commands":    {interactive("/tool wait"), maxAnswers, "the device runs 16 commands already: end one first"},
		"logs":        {wire.Request{Type: wire.RequestLogs, Pod: "uid-web", Follow: true}, maxAnswers, "the device sends 16 logs already: end one first"},
		"connections": {wire.Request{Type: wire.RequestPortForward, Pod: "uid-web", Port: 8080}, maxForwards, "the device holds 32 forwarded connections already: close one first"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.desire(1, makePod("web", "serve :8080"))
				time.Sleep(5 * time.Second)
				s := speaker{d, map[string]*talk{}}
				d.agent.SetHub(s)
				ask := func(id string, r wire.Request) *talk {
					s.talks[id] = newTalk()
					d.agent.Request(id, r)
					synctest.Wait()
					return s.talks[id]
				}
				end := func(id string) {
					d.agent.Request("end "+id, wire.Request{Type: wire.RequestCancel, Of: id})
					synctest.Wait()
				}
				for n := range c.most {
					if a := ask(fmt.Sprint("first-", n), c.request); !a.begun() {
						t.Fatalf("number %d did not begin", n)
					}
				}
				var waiting []*talk
				for n := range maxAwaiting {
					waiting = append(waiting, ask(fmt.Sprint("waiting-", n), c.request))
				}
				begun := func() (n int) {
					for _, a := range waiting {
						if a.begun() {
							n++
						}
					}
					return n
				}
				if end := <-ask("one more", c.request).end; end.Error != c.full {
					t.Errorf("one more than may wait: %q", end.Error)
				}
				if n := begun(); n != 0 {
					t.Errorf("%d began without room", n)
				}
				other := interactive("/tool wait")
				if c.request.Type == other.Type {
					other = wire.Request{Type: wire.RequestPortForward, Pod: "uid-web", Port: 8080}
				}
				if !ask("other", other).begun() {
					t.Error("what has room of its own did not begin")
				}
				end("waiting-0") // its client has left
				waiting = waiting[1:]
				end("first-3")
				if n := begun(); n != 1 {
					t.Errorf("room for one: %d began", n)
				}
				time.Sleep(roomTime)
				for _, a := range waiting[1:] {
					if end := <-a.end; end.Error != c.full {
						t.Fatalf("after a while: %q", end.Error)
					}
				}
				end("waiting-1") // which was the first of those that were there
				if !ask("then", c.request).begun() {
					t.Error("there is room, and it did not begin")
				}
			})
		})
	}
}

func TestACommandWaitsForAHubThatReadsSlowly(t *testing.T) {
	watchedBubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "wait"))
		time.Sleep(5 * time.Second)
		a := newTalk()
		a.slow = time.Second
		d.agent.SetHub(speaker{d, map[string]*talk{"r1": a}})
		d.agent.Request("r1", command("/tool noise 1000000"))
		time.Sleep(10 * time.Second)
		if n := len(a.said()); n > 10*chunkSize {
			t.Errorf("%d bytes were sent in ten chunks", n)
		}
		if d.engine.(*watched).add(0) != 1 {
			t.Error("the command has ended before its output was taken")
		}
		<-a.end
		if n := len(a.said()); n != 1000000 {
			t.Errorf("%d bytes of 1000000 came", n)
		}
	})
}

func TestUsageIsMeasuredWhenItIsAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.board.set(func(b *board) { b.load = 1.5 })
		d.desire(1, makePod("web", "wait"), makePod("api", "wait", "wait"))
		time.Sleep(5 * time.Second)
		d.fake.Use(d.name("web"), 250, 20<<20)
		ask := func() wire.Usage {
			t.Helper()
			a := d.asks("r1", wire.Request{Type: wire.RequestUsage})
			if end := <-a.end; end.Error != "" {
				t.Fatal(end.Error)
			}
			u, err := wire.ParseUsage(a.out.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			return u
		}
		for _, window := range []time.Duration{leastWindow, 30 * time.Second} { // the second time, since the first
			u := ask()
			if u.Window.Duration != window {
				t.Errorf("measured over %s, want %s", u.Window.Duration, window)
			}
			if cpu, memory := u.Node.Cpu().MilliValue(), u.Node.Memory().Value(); cpu != 1500 || memory != 1<<30 {
				t.Errorf("the node uses %dm and %d bytes", cpu, memory)
			}
			got := ""
			for _, p := range u.Pods {
				for _, c := range p.Containers {
					got += fmt.Sprintf("%s/%s/%s %dm %dMi, ", p.Namespace, p.Name, c.Name, c.Usage.Cpu().MilliValue(), c.Usage.Memory().Value()>>20)
				}
			}
			if want := "default/api/c0 0m 1Mi, default/api/c1 0m 1Mi, default/web/c0 250m 20Mi, "; got != want {
				t.Errorf("pods use %s want %s", got, want)
			}
			time.Sleep(30 * time.Second)
		}
		d.fake.SetDown(true)
		if u := ask(); len(u.Pods) != 0 || u.Node.Cpu().MilliValue() != 1500 {
			t.Errorf("without an engine: %+v", u)
		}
	})
}

// An unmeasured engine never says what one of its containers uses.
type unmeasured struct {
	engine.Engine
	name string
}

func (u unmeasured) Usage(ctx context.Context, id string) (engine.Usage, error) {
	list, err := u.Containers(ctx, plan.LabelAgent+"=pi-1")
	if err != nil || slices.ContainsFunc(list, func(c engine.Container) bool { return c.ID == id && c.Labels[plan.LabelPodName] == u.name }) {
		<-ctx.Done()
		return engine.Usage{}, ctx.Err()
	}
	return u.Engine.Usage(ctx, id)
}

// A container that the engine does not answer for, as it hangs in its removal, is no reason to know nothing of the others:
// the hub waits 15 s.
func TestUsageIsMeasuredWithoutWhatHangs(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.engine = unmeasured{d.fake, "hangs"}
		d.start()
		d.desire(1, makePod("web", "wait"), makePod("hangs", "wait"))
		time.Sleep(5 * time.Second)
		a, began := d.asks("r1", wire.Request{Type: wire.RequestUsage}), time.Now()
		end := <-a.end
		u, err := wire.ParseUsage(a.out.Bytes())
		if took := time.Since(began); end.Error != "" || err != nil || len(u.Pods) != 1 || u.Pods[0].Name != "web" || took >= 15*time.Second {
			t.Errorf("after %s: %+v, %v %s", took, u, err, end.Error)
		}
	})
}

func TestAFollowedLogEndsWithItsHub(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "print one then wait"))
		time.Sleep(5 * time.Second)
		a := d.asks("r1", wire.Request{Type: wire.RequestLogs, Pod: "uid-web", Follow: true})
		time.Sleep(time.Second)
		close(a.gone)
		synctest.Wait()
		d.agent.answers.Lock()
		defer d.agent.answers.Unlock()
		if a.said() != "one\n" || len(d.agent.answers.byID) != 0 {
			t.Errorf("it said %q, and %d answers go on", a.said(), len(d.agent.answers.byID))
		}
	})
}
