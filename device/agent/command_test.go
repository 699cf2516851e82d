package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/request"
	"flotilla.dev/device/request/requesttest"
	"flotilla.dev/shared/wire"
)

// A requestHub is a hub with a stream for each request.
type requestHub struct {
	*device
	streams map[string]*requesttest.Stream
}

func (s requestHub) Stream(id string) request.Stream { return s.streams[id] }

// request sends a request to the agent.
func (d *device) request(id string, r wire.Request) *requesttest.Stream {
	a := requesttest.New()
	d.agent.SetHub(requestHub{d, map[string]*requesttest.Stream{id: a}})
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
		ends     string // the error at the end
	}{
		{"stdout, stderr and exit code are separate", command("/tool print one then complain two then exit 3"), nil, "one\n", "two\n", 3, ""},
		{"stdin and its end reach the command", interactive("/tool cat -"), []wire.Request{
			{Type: wire.RequestStdin, Data: []byte("a")}, {Type: wire.RequestStdin, Data: []byte("b")}, {Type: wire.RequestCloseStdin},
		}, "ab", "", 0, ""},
		{"a terminal has the last size", wire.Request{Type: wire.RequestExec, Pod: "uid-web", Command: strings.Fields("/tool size 120 40"), TTY: true, Stdin: true}, []wire.Request{
			{Type: wire.RequestResize, Width: 80, Height: 24}, {Type: wire.RequestResize, Width: 120, Height: 40},
		}, "the terminal is 120 by 40\r\n", "", 0, ""},
		{"a command that is not there", command("/nothing"), nil, "", "exec: \"/nothing\": no such file or directory\n", 127, ""},
		{"a container that the pod does not have", wire.Request{Type: wire.RequestExec, Pod: "uid-web", Container: "x", Command: []string{"y"}}, nil, "", "", 0, "container x is not valid for pod web"},
		{"a pod of another device", wire.Request{Type: wire.RequestExec, Pod: "uid-gone", Command: []string{"y"}}, nil, "", "", 0, "pod uid-gone is not on this device"},
		{"a container that has ended", wire.Request{Type: wire.RequestExec, Pod: "uid-done", Command: []string{"y"}}, nil, "", "", 0, "container c0 of pod done is not running: it has ended with exit code 4"},
		{"a container that cannot be made", wire.Request{Type: wire.RequestExec, Pod: "uid-none", Command: []string{"y"}}, nil, "", "", 0, "container c0 of pod none is not running: CreateContainerConfigError: configmap \"missing\" not found"},
		{"attach returns new output only", wire.Request{Type: wire.RequestAttach, Pod: "uid-talker"}, nil, "late\n", "", 0, ""},
		{"a port without a listener", wire.Request{Type: wire.RequestPortForward, Pod: "uid-web", Port: 81}, nil, "", "", 0, "connection refused: nothing listens on port 81"},
		{"a port of a pod that does not run", wire.Request{Type: wire.RequestPortForward, Pod: "uid-done", Port: 81}, nil, "", "", 0, "no container of pod done is running"},
		{"a port", wire.Request{Type: wire.RequestPortForward, Pod: "uid-web", Port: 8080}, []wire.Request{
			{Type: wire.RequestStdin, Data: []byte("GET / HTTP/1.1\r\nHost: x\r\n")}, {Type: wire.RequestStdin, Data: []byte("Connection: close\r\n\r\n")},
		}, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n\r\nhello from port 8080\n",
			"", 0, ""},
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
				a := d.request("r1", c.r)
				for _, in := range c.inputs {
					a.Inputs <- in
				}
				end := <-a.End
				if a.Stdout() != c.out || a.Stderr() != c.err || end.ExitCode != c.code || end.Error != c.ends {
					t.Errorf("stdout %q, stderr %q, end %d %q; want %q, %q, %d %q", a.Stdout(), a.Stderr(),
						end.ExitCode, end.Error,
						c.out, c.err, c.code, c.ends)
				}
			})
		})
	}
}

// name returns the name that the engine gives to a pod's only container.
func (d *device) name(pod string) string {
	list, err := d.fake.Containers(context.Background(), plan.LabelPodName+"="+pod)
	if err != nil || len(list) != 1 {
		d.t.Fatal(list, err)
	}
	return list[0].Name
}

func TestUsageIsMeasuredOnRequest(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.board.set(func(b *board) { b.load = 1.5 })
		d.desire(1, makePod("web", "wait"), makePod("api", "wait", "wait"))
		time.Sleep(5 * time.Second)
		d.fake.Use(d.name("web"), 250, 20<<20)
		ask := func() wire.Usage {
			t.Helper()
			a := d.request("r1", wire.Request{Type: wire.RequestUsage})
			if end := <-a.End; end.Error != "" {
				t.Fatal(end.Error)
			}
			u, err := wire.ParseUsage([]byte(a.Stdout()))
			if err != nil {
				t.Fatal(err)
			}
			return u
		}
		// the second window begins at the first measurement
		for _, window := range []time.Duration{minWindow, 30 * time.Second} {
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
					got += fmt.Sprintf("%s/%s/%s %dm %dMi, ", p.Namespace, p.Name, c.Name, c.Usage.Cpu().MilliValue(),
						c.Usage.Memory().Value()>>20)
				}
			}
			if want := "default/api/c0 0m 1Mi, default/api/c1 0m 1Mi, default/web/c0 250m 20Mi, "; got != want {
				t.Errorf("pods use %s want %s", got, want)
			}
			time.Sleep(30 * time.Second)
		}
		d.fake.SetDown(true)
		if u := ask(); len(u.Pods) != 0 || u.Node.Cpu().MilliValue() != 1500 {
			t.Errorf("usage without an engine: %+v", u)
		}
	})
}

// A hangingUsage engine never returns the usage of one pod's container.
type hangingUsage struct {
	engine.Engine
	name string
}

func (u hangingUsage) Usage(ctx context.Context, id string) (engine.Usage, error) {
	list, err := u.Containers(ctx, plan.LabelAgent+"=pi-1")
	if err != nil || slices.ContainsFunc(list, func(c engine.Container) bool {
		return c.ID == id &&
			c.Labels[plan.LabelPodName] == u.name
	}) {
		<-ctx.Done()
		return engine.Usage{}, ctx.Err()
	}
	return u.Engine.Usage(ctx, id)
}

// A container whose usage cannot be read in time, for example while it is removed, does not delay
// the usage of others. The hub waits 15 s.
func TestUsageSkipsAHangingContainer(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.end()
		d.engine = hangingUsage{d.fake, "hangs"}
		d.start()
		d.desire(1, makePod("web", "wait"), makePod("hangs", "wait"))
		time.Sleep(5 * time.Second)
		a, began := d.request("r1", wire.Request{Type: wire.RequestUsage}), time.Now()
		end := <-a.End
		u, err := wire.ParseUsage([]byte(a.Stdout()))
		if took := time.Since(began); end.Error != "" || err != nil || len(u.Pods) != 1 || u.Pods[0].Name != "web" ||
			took >= 15*time.Second {
			t.Errorf("after %s the usage is %+v, error %v: %s", took, u, err, end.Error)
		}
	})
}

func TestRequests(t *testing.T) {
	three := int64(3)
	bytes5 := int64(5)
	for _, c := range []struct {
		name string
		r    wire.Request
		data string
		err  string
	}{
		{"the whole log", wire.Request{Type: wire.RequestLogs, Pod: "uid-web"}, "line 1\nline 2\nline 3\nline 4\nline 5\n", ""},
		{"the last lines of the log", wire.Request{Type: wire.RequestLogs, Pod: "uid-web", Container: "c0", TailLines: &three}, "line 3\nline 4\nline 5\n", ""},
		{"the first bytes of the log", wire.Request{Type: wire.RequestLogs, Pod: "uid-web", LimitBytes: &bytes5}, "line ", ""},
		{"a container that the pod does not have", wire.Request{Type: wire.RequestLogs, Pod: "uid-web", Container: "x"}, "", "container x is not valid for pod web"},
		{"the instance before the first", wire.Request{Type: wire.RequestLogs, Pod: "uid-web", Previous: true}, "", `previous terminated container "c0" in pod "web" not found`},
		{"an unknown request", wire.Request{Type: "dance"}, "", `unsupported request "dance"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.desire(1, makePod("web", "lines 5 then wait"))
				time.Sleep(5 * time.Second)
				a := d.request("r1", c.r)
				if end := <-a.End; end.Error != c.err {
					t.Errorf("the request ends with the error %q, want %q", end.Error, c.err)
				}
				if got := a.Stdout(); got != c.data {
					t.Errorf("the log is %q, want %q", got, c.data)
				}
			})
		})
	}
}

func TestAFollowedLogEndsWhenItIsCancelled(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("web", "print one then sleep 10s then print two then wait"))
		time.Sleep(5 * time.Second)
		a := d.request("r1", wire.Request{Type: wire.RequestLogs, Pod: "uid-web", Follow: true})
		time.Sleep(20 * time.Second)
		if got := a.Stdout(); got != "one\ntwo\n" {
			t.Errorf("the followed log is %q, want the lines one and two", got)
		}
		d.agent.Request("r2", wire.Request{Type: wire.RequestCancel, Of: "r1"})
		if end := <-a.End; end.Error != "" {
			t.Errorf("the request ends with the error %q", end.Error)
		}
	})
}
