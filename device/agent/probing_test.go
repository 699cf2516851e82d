package agent

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/podspec"
)

func execProbe(p corev1.Probe) *corev1.Probe {
	p.Exec = &corev1.ExecAction{Command: []string{"check"}}
	return &p
}

// A container whose check fails from some moment of its life on.
func failing(from time.Duration) enginetest.Program {
	return func(engine.Spec, int) enginetest.Play {
		began := time.Now()
		return enginetest.Play{Exec: func([]string) enginetest.ExecResult {
			if time.Since(began) >= from {
				return enginetest.ExecResult{Code: 1, Stderr: "broken\n"}
			}
			return enginetest.ExecResult{}
		}}
	}
}

func TestALivenessProbeThatFailsRestartsTheContainer(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.twin.AddImage("app", 1, failing(25*time.Second))
		p := makePod("app", "")
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
		p.Spec.Containers[0].LivenessProbe = execProbe(corev1.Probe{InitialDelaySeconds: 5, PeriodSeconds: 10, FailureThreshold: 2})
		d.desire(1, p)
		time.Sleep(34 * time.Second) // checked at 5, 15, 25 (fails), 35 (fails)
		if st := d.wantPhase("app", corev1.PodRunning, ""); st.ContainerStatuses[0].RestartCount != 0 {
			t.Fatalf("restarted %d times before the second failure", st.ContainerStatuses[0].RestartCount)
		}
		time.Sleep(3 * time.Second)
		st := d.wantPhase("app", corev1.PodRunning, "")
		if st.ContainerStatuses[0].RestartCount != 1 {
			t.Errorf("restarted %d times, want 1", st.ContainerStatuses[0].RestartCount)
		}
		for _, want := range []string{"Unhealthy", "Killing"} {
			if !slices.Contains(d.reasons(), want) {
				t.Errorf("events %q lack %s", d.reasons(), want)
			}
		}
	})
}

func TestAReadinessProbeTakesOutOfServiceAndRestartsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.twin.AddImage("app", 1, failing(20*time.Second))
		p := makePod("app", "")
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
		p.Spec.Containers[0].ReadinessProbe = execProbe(corev1.Probe{PeriodSeconds: 5, FailureThreshold: 1, SuccessThreshold: 2})
		d.desire(1, p)
		is := func() bool {
			st, _ := d.pod("app")
			return ready(&st)
		}
		time.Sleep(2 * time.Second)
		if is() {
			t.Error("ready after one success, and two are needed")
		}
		time.Sleep(5 * time.Second)
		if !is() {
			t.Error("not ready after two successes")
		}
		time.Sleep(20 * time.Second)
		if is() {
			t.Error("ready although the check fails")
		}
		if st, _ := d.pod("app"); st.ContainerStatuses[0].RestartCount != 0 {
			t.Error("a readiness probe has restarted the container")
		}
	})
}

func TestAStartupProbeHoldsTheOthersBack(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.twin.AddImage("slow", 1, func(engine.Spec, int) enginetest.Play {
			began := time.Now()
			return enginetest.Play{Exec: func([]string) enginetest.ExecResult {
				if time.Since(began) < 40*time.Second {
					return enginetest.ExecResult{Code: 1}
				}
				return enginetest.ExecResult{}
			}}
		})
		p := makePod("slow", "")
		c := &p.Spec.Containers[0]
		c.Image, c.ImagePullPolicy = "slow", corev1.PullNever
		c.StartupProbe = execProbe(corev1.Probe{PeriodSeconds: 10, FailureThreshold: 10})
		c.LivenessProbe = execProbe(corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1})
		d.desire(1, p)
		time.Sleep(30 * time.Second)
		st := d.wantPhase("slow", corev1.PodRunning, "")
		if s := st.ContainerStatuses[0]; *s.Started || s.Ready {
			t.Errorf("started %v, ready %v before the startup probe has passed", *s.Started, s.Ready)
		}
		time.Sleep(30 * time.Second)
		st = d.wantPhase("slow", corev1.PodRunning, "")
		if s := st.ContainerStatuses[0]; !*s.Started || !s.Ready || s.RestartCount != 0 {
			t.Errorf("started %v, ready %v, restarts %d; want started, ready, 0", *s.Started, s.Ready, s.RestartCount)
		}
	})
}

func TestNetworkProbesAskThePodsAddress(t *testing.T) {
	var asked []string
	answer := error(nil)
	a := &Agent{c: Config{Dial: func(_ context.Context, network, address string) (net.Conn, error) {
		asked = append(asked, network+" "+address)
		if answer != nil {
			return nil, answer
		}
		ours, theirs := net.Pipe()
		go func() {
			b := make([]byte, 2048)
			n, _ := theirs.Read(b)
			code := "200 OK"
			if strings.HasPrefix(string(b[:n]), "GET /bad") {
				code = "503 Service Unavailable"
			}
			_, _ = theirs.Write([]byte("HTTP/1.1 " + code + "\r\nContent-Length: 0\r\n\r\n"))
			_ = theirs.Close()
		}()
		return ours, nil
	}}}
	spec := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}
	check := func(h corev1.ProbeHandler) error {
		spec.LivenessProbe = &corev1.Probe{ProbeHandler: h}
		return a.probe(t.Context(), job{step: Step{Spec: spec, Probe: podspec.Liveness, IP: "10.0.0.9"}})
	}
	if err := check(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ok", Port: intstr.FromString("web")}}); err != nil {
		t.Errorf("a good answer: %v", err)
	}
	if err := check(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/bad", Port: intstr.FromInt32(8080)}}); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a bad answer: %v, want one with 503", err)
	}
	if err := check(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9)}}); err != nil {
		t.Errorf("an open port: %v", err)
	}
	answer = errors.New("refused")
	if err := check(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9)}}); err == nil {
		t.Error("a closed port passes")
	}
	if want := []string{"tcp 10.0.0.9:8080", "tcp 10.0.0.9:8080", "tcp 10.0.0.9:9", "tcp 10.0.0.9:9"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
}

// Headers are added, as by the kubelet: one name may be there twice, and an empty Accept takes that out.
func TestAProbeSendsTheHeadersThatItNames(t *testing.T) {
	for _, c := range []struct {
		name string
		all  []corev1.HTTPHeader
		want http.Header
	}{
		{"none", nil, http.Header{"User-Agent": {"kube-probe/flotilla"}, "Accept": {"*/*"}}},
		{"one name twice", []corev1.HTTPHeader{{Name: "x-a", Value: "1"}, {Name: "X-A", Value: "2"}}, http.Header{"User-Agent": {"kube-probe/flotilla"}, "Accept": {"*/*"}, "X-A": {"1", "2"}}},
		{"its own agent, and no Accept", []corev1.HTTPHeader{{Name: "User-Agent", Value: "mine"}, {Name: "Accept"}}, http.Header{"User-Agent": {"mine"}}},
		{"an Accept, and a Host", []corev1.HTTPHeader{{Name: "Accept", Value: "text/plain"}, {Name: "Host", Value: "a.example"}}, http.Header{"User-Agent": {"kube-probe/flotilla"}, "Accept": {"text/plain"}, "Host": {"a.example"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan http.Header, 1)
			s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.Host == "a.example" {
					r.Header.Set("Host", r.Host)
				}
				r.Header.Del("Connection")
				got <- r.Header
			}))
			defer s.Close()
			a := &Agent{c: Config{Dial: new(net.Dialer).DialContext}}
			host, port, _ := net.SplitHostPort(s.Listener.Addr().String())
			spec := &corev1.Container{Name: "c", LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: host, Port: intstr.Parse(port), HTTPHeaders: c.all}}}}
			if err := a.probe(t.Context(), job{step: Step{Spec: spec, Probe: podspec.Liveness}}); err != nil {
				t.Fatal(err)
			}
			if h := <-got; !maps.EqualFunc(h, c.want, slices.Equal) {
				t.Errorf("it sends %v, want %v", h, c.want)
			}
		})
	}
}

// An engine that is restarted or hangs is no fault of a container.
func TestAnEngineThatDoesNotAnswerFailsNoProbe(t *testing.T) {
	for name, away := range map[string]func(d *device){
		"it is away for a moment": func(d *device) {
			d.twin.Fail("Exec", engine.ErrUnavailable)
			d.twin.Fail("Exec", engine.ErrUnavailable)
		},
		"it is switched off for a minute": func(d *device) {
			d.twin.SetDown(true)
			time.Sleep(time.Minute)
			d.twin.SetDown(false)
		},
		"it hangs": func(d *device) {
			d.twin.SetLatency(5 * time.Second)
			time.Sleep(time.Minute)
			d.twin.SetLatency(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				var asked atomic.Int32
				d.twin.AddImage("app", 1, func(engine.Spec, int) enginetest.Play {
					return enginetest.Play{Exec: func([]string) enginetest.ExecResult { asked.Add(1); return enginetest.ExecResult{} }}
				})
				p := makePod("app", "")
				c := &p.Spec.Containers[0]
				c.Image, c.ImagePullPolicy = "app", corev1.PullNever
				c.LivenessProbe = execProbe(corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1})
				c.ReadinessProbe = execProbe(corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1})
				d.desire(1, p)
				time.Sleep(10 * time.Second)
				told := d.podsTold()
				away(d)
				before := asked.Load()
				time.Sleep(20 * time.Second)
				st := d.wantPhase("app", corev1.PodRunning, "")
				if s := st.ContainerStatuses[0]; s.RestartCount != 0 || !s.Ready || d.podsTold() != told {
					t.Errorf("restarted %d times, ready %v, told %d times, events %q", s.RestartCount, s.Ready, d.podsTold()-told, d.reasons())
				}
				if n := asked.Load() - before; n < 20 || n > 42 {
					t.Errorf("it was asked %d times in the 20 s after that", n)
				}
			})
		})
	}
}

// What the agent or its engine cannot ask is no fault of a container, as with the kubelet.
func TestAProbeThatCannotBeMadeFailsNothing(t *testing.T) {
	full := errors.New("run a command in container: write exec session: no space left on device")
	for name, c := range map[string]struct {
		probe corev1.ProbeHandler
		fails []error // of the next commands
		dies  bool
	}{
		"the card is too full for a command": {corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}}, []error{full, full, full}, false},
		"the port has no such name":          {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}}, nil, false},
		"there is no such command":           {corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"nothing"}}}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.twin.AddImage("app", 1, func(engine.Spec, int) enginetest.Play {
					return enginetest.Play{Exec: func(command []string) enginetest.ExecResult {
						if command[0] == "nothing" {
							return enginetest.ExecResult{Code: 127}
						}
						return enginetest.ExecResult{}
					}}
				})
				for _, err := range c.fails {
					d.twin.Fail("Exec", err)
				}
				p := makePod("app", "")
				p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
				p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: c.probe, PeriodSeconds: 5, FailureThreshold: 1}
				d.desire(1, p)
				time.Sleep(time.Minute)
				st := d.wantPhase("app", corev1.PodRunning, "")
				if s := st.ContainerStatuses[0]; (s.RestartCount > 0) != c.dies {
					t.Errorf("restarted %d times", s.RestartCount)
				}
				if !slices.Contains(d.reasons(), "Unhealthy") {
					t.Errorf("events %q lack Unhealthy", d.reasons())
				}
			})
		})
	}
}

// A pod on the device's network is asked at the loopback while the device has no address: pulling out the cable restarts
// nothing, and a hook needs no cable.
func TestADeviceWithoutAnAddressAsksItsOwnNetworkAtTheLoopback(t *testing.T) {
	for name, c := range map[string]struct {
		listens string // where the program does
		sick    bool
		fails   string // how the probe ends; empty: well
		dies    bool
	}{
		"it listens everywhere":           {"0.0.0.0", false, "", false},
		"it listens at the lost one only": {"192.0.2.7", false, "the device has no address: refused", false},
		"it is sick":                      {"0.0.0.0", true, "HTTP probe failed with statuscode: 500", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDevice(t)
				var cut atomic.Bool
				d.config.Policy.HostNetwork = true
				d.config.Holds = func(address string) bool { return address == "127.0.0.1" || !cut.Load() }
				d.config.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
					host, _, _ := net.SplitHostPort(address)
					switch {
					case host != "127.0.0.1" && cut.Load():
						return nil, errors.New("network is unreachable")
					case host != c.listens && c.listens != "0.0.0.0":
						return nil, errors.New("refused")
					}
					ours, theirs := net.Pipe()
					go func() {
						_, _ = theirs.Read(make([]byte, 2048))
						code := "200 OK"
						if c.sick && cut.Load() {
							code = "500 Internal Server Error"
						}
						_, _ = theirs.Write([]byte("HTTP/1.1 " + code + "\r\nContent-Length: 0\r\n\r\n"))
						_ = theirs.Close()
					}()
					return ours, nil
				}
				d.start()
				p := makePod("app", "wait")
				p.Spec.HostNetwork = true
				get := corev1.HTTPGetAction{Port: intstr.FromInt32(80)}
				p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &get}, PeriodSeconds: 5, FailureThreshold: 2}
				p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: &get}}
				d.desire(1, p)
				time.Sleep(20 * time.Second)
				if n := len(d.told("Unhealthy")); n > 0 {
					t.Fatalf("%d probes have failed with the cable in", n)
				}
				cut.Store(true)
				time.Sleep(time.Minute)
				st := d.wantPhase("app", corev1.PodRunning, "")
				if n := st.ContainerStatuses[0].RestartCount; (n > 0) != c.dies {
					t.Errorf("restarted %d times", n)
				}
				told := d.told("Unhealthy")
				if (len(told) > 0) != (c.fails != "") || len(told) > 0 && !strings.Contains(told[0], c.fails) {
					t.Errorf("it says %q", told)
				}
				d.end()
			})
		})
	}
}

// told are the messages of the events so far that have this reason.
func (d *device) told(reason string) (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if e.Reason == reason {
			out = append(out, e.Message)
		}
	}
	return out
}

// As with the kubelet (KEP-4781) what an agent before this one has found out of a container's probes holds until they say
// otherwise: an upgrade of the agent takes no pod out of service, and no startup probe that has passed is asked again.
func TestAnotherAgentKnowsWhatProbesHaveSaid(t *testing.T) {
	for name, startup := range map[string]bool{"readiness": false, "startup and readiness": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				var broken, booted atomic.Bool
				d.twin.AddImage("app", 1, func(engine.Spec, int) enginetest.Play {
					return enginetest.Play{Exec: func(command []string) enginetest.ExecResult {
						r := enginetest.ExecResult{After: 3 * time.Second}
						if broken.Load() || command[0] == "boots" && booted.Load() {
							r.Code = 1
						}
						return r
					}}
				})
				p := makePod("app", "")
				c := &p.Spec.Containers[0]
				c.Image, c.ImagePullPolicy = "app", corev1.PullNever
				c.ReadinessProbe = execProbe(corev1.Probe{PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 2})
				if startup {
					c.StartupProbe = execProbe(corev1.Probe{PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 2})
					c.StartupProbe.Exec.Command = []string{"boots"}
				}
				want := func(when string, yes bool) {
					t.Helper()
					st := d.wantPhase("app", corev1.PodRunning, "")
					if s := st.ContainerStatuses[0]; ready(&st) != yes || s.Ready != yes || !*s.Started || s.RestartCount != 0 {
						t.Errorf("%s: ready %v, started %v, restarts %d; want ready %v", when, s.Ready, *s.Started, s.RestartCount, yes)
					}
				}
				again := func() {
					d.end()
					d.start()
					time.Sleep(time.Second) // the first answer of a probe takes longer
				}
				d.desire(1, p)
				time.Sleep(30 * time.Second)
				want("at first", true)
				booted.Store(true)
				again()
				want("under another agent", true)
				time.Sleep(time.Minute)
				want("a minute later", true)
				broken.Store(true)
				again()
				want("before the probe has failed", true)
				time.Sleep(time.Minute)
				want("when the probe has failed", false)
				again()
				want("under another agent after that", false)
				broken.Store(false)
				time.Sleep(time.Minute)
				want("when it has passed again", true)
				again()
				want("under another agent in the end", true)
			})
		})
	}
}
