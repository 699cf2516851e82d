package agent

import (
	"context"
	"errors"
	"net"
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
)

func execProbe(p corev1.Probe) *corev1.Probe {
	p.Exec = &corev1.ExecAction{Command: []string{"check"}}
	return &p
}

// failing is a container whose check fails after a time.
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

func TestAFailedLivenessProbeRestartsTheContainer(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.AddImage("app", 1, failing(25*time.Second))
		p := makePod("app", "")
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
		p.Spec.Containers[0].LivenessProbe = execProbe(corev1.Probe{InitialDelaySeconds: 5, PeriodSeconds: 10,
			FailureThreshold: 2})
		d.desire(1, p)
		time.Sleep(34 * time.Second) // checks at 5, 15, 25 (fails), 35 (fails)
		if st := d.wantPhase("app", corev1.PodRunning, ""); st.ContainerStatuses[0].RestartCount != 0 {
			t.Fatalf("the container was restarted %d times before the second failure",
				st.ContainerStatuses[0].RestartCount)
		}
		time.Sleep(3 * time.Second)
		st := d.wantPhase("app", corev1.PodRunning, "")
		if st.ContainerStatuses[0].RestartCount != 1 {
			t.Errorf("the container was restarted %d times, want 1", st.ContainerStatuses[0].RestartCount)
		}
		for _, want := range []string{"Unhealthy", "Killing"} {
			if !slices.Contains(d.reasons(), want) {
				t.Errorf("events %q lack %s", d.reasons(), want)
			}
		}
	})
}

func TestAReadinessProbeRestartsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.AddImage("app", 1, failing(20*time.Second))
		p := makePod("app", "")
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
		p.Spec.Containers[0].ReadinessProbe = execProbe(corev1.Probe{PeriodSeconds: 5, FailureThreshold: 1,
			SuccessThreshold: 2})
		d.desire(1, p)
		is := func() bool {
			st, _ := d.pod("app")
			return ready(&st)
		}
		time.Sleep(2 * time.Second)
		if is() {
			t.Error("the container is ready after one of two successes")
		}
		time.Sleep(5 * time.Second)
		if !is() {
			t.Error("the container is not ready after two successes")
		}
		time.Sleep(20 * time.Second)
		if is() {
			t.Error("the container is ready although its check fails")
		}
		if st, _ := d.pod("app"); st.ContainerStatuses[0].RestartCount != 0 {
			t.Error("a readiness probe has restarted the container")
		}
	})
}

func TestAStartupProbeDelaysOtherProbes(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.AddImage("slow", 1, func(engine.Spec, int) enginetest.Play {
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

// If the engine restarts or hangs, the container's probes do not fail.
func TestAnUnavailableEngineFailsNoProbe(t *testing.T) {
	for name, fail := range map[string]func(d *device){
		"the engine restarts": func(d *device) {
			d.fake.Fail("Exec", engine.ErrUnavailable)
			d.fake.Fail("Exec", engine.ErrUnavailable)
		},
		"the engine is off for a minute": func(d *device) {
			d.fake.SetDown(true)
			time.Sleep(time.Minute)
			d.fake.SetDown(false)
		},
		"the engine hangs": func(d *device) {
			d.fake.SetLatency(5 * time.Second)
			time.Sleep(time.Minute)
			d.fake.SetLatency(0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				var asked atomic.Int32
				d.fake.AddImage("app", 1, func(engine.Spec, int) enginetest.Play {
					return enginetest.Play{Exec: func([]string) enginetest.ExecResult { asked.Add(1); return enginetest.ExecResult{} }}
				})
				p := makePod("app", "")
				c := &p.Spec.Containers[0]
				c.Image, c.ImagePullPolicy = "app", corev1.PullNever
				c.LivenessProbe = execProbe(corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1})
				c.ReadinessProbe = execProbe(corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1})
				d.desire(1, p)
				time.Sleep(10 * time.Second)
				changes := d.podChanges()
				fail(d)
				before := asked.Load()
				time.Sleep(20 * time.Second)
				st := d.wantPhase("app", corev1.PodRunning, "")
				if s := st.ContainerStatuses[0]; s.RestartCount != 0 || !s.Ready || d.podChanges() != changes {
					t.Errorf("restarted %d times, ready %v, announced %d times; want 0, ready, 0; events %q", s.RestartCount, s.Ready,
						d.podChanges()-changes, d.reasons())
				}
				if n := asked.Load() - before; n < 20 || n > 42 {
					t.Errorf("the container was probed %d times in the 20 s after that", n)
				}
			})
		})
	}
}

// As with the kubelet, a probe that cannot run is not a failed probe.
func TestAProbeThatCannotRunIsNotAFailure(t *testing.T) {
	full := errors.New("run a command in container: write exec session: no space left on device")
	for name, c := range map[string]struct {
		probe    corev1.ProbeHandler
		fails    []error // errors of the next commands
		restarts bool
	}{
		"the card is too full to run a command": {corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"check"}}}, []error{full, full, full}, false},
		"the port has an unknown name":          {corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("web")}}, nil, false},
		"the command does not exist":            {corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"nothing"}}}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.fake.AddImage("app", 1, func(engine.Spec, int) enginetest.Play {
					return enginetest.Play{Exec: func(command []string) enginetest.ExecResult {
						if command[0] == "nothing" {
							return enginetest.ExecResult{Code: 127}
						}
						return enginetest.ExecResult{}
					}}
				})
				for _, err := range c.fails {
					d.fake.Fail("Exec", err)
				}
				p := makePod("app", "")
				p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = "app", corev1.PullNever
				p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: c.probe, PeriodSeconds: 5,
					FailureThreshold: 1}
				d.desire(1, p)
				time.Sleep(time.Minute)
				st := d.wantPhase("app", corev1.PodRunning, "")
				if s := st.ContainerStatuses[0]; (s.RestartCount > 0) != c.restarts {
					t.Errorf("the container was restarted %d times", s.RestartCount)
				}
				if !slices.Contains(d.reasons(), "Unhealthy") {
					t.Errorf("events %q lack Unhealthy", d.reasons())
				}
			})
		})
	}
}

// While the device has no address, the agent probes a host-network pod at the loopback address. An
// unplugged cable restarts nothing, and hooks work without it.
func TestWithoutAnAddressHostNetworkPodsAreProbedAtTheLoopback(t *testing.T) {
	for name, c := range map[string]struct {
		listens  string // address at which the program listens
		failing  bool
		fails    string // the probe's error; empty if the probe succeeds
		restarts bool
	}{
		"the program listens at all addresses":         {"0.0.0.0", false, "", false},
		"the program listens only at the lost address": {"192.0.2.7", false, "the device has no address: refused", false},
		"the check fails":                              {"0.0.0.0", true, "HTTP probe failed with statuscode: 500", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDevice(t)
				var unplugged atomic.Bool
				d.config.Policy.HostNetwork = true
				d.config.HasAddress = func(address string) bool { return address == "127.0.0.1" || !unplugged.Load() }
				d.config.Dial = func(_ context.Context, _, address string) (net.Conn, error) {
					host, _, _ := net.SplitHostPort(address)
					switch {
					case host != "127.0.0.1" && unplugged.Load():
						return nil, errors.New("network is unreachable")
					case host != c.listens && c.listens != "0.0.0.0":
						return nil, errors.New("refused")
					}
					client, server := net.Pipe()
					go func() {
						_, _ = server.Read(make([]byte, 2048))
						code := "200 OK"
						if c.failing && unplugged.Load() {
							code = "500 Internal Server Error"
						}
						_, _ = server.Write([]byte("HTTP/1.1 " + code + "\r\nContent-Length: 0\r\n\r\n"))
						_ = server.Close()
					}()
					return client, nil
				}
				d.start()
				p := makePod("app", "wait")
				p.Spec.HostNetwork = true
				get := corev1.HTTPGetAction{Port: intstr.FromInt32(80)}
				p.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &get},
					PeriodSeconds: 5, FailureThreshold: 2}
				p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: &get}}
				d.desire(1, p)
				time.Sleep(20 * time.Second)
				if n := len(d.messagesOf("Unhealthy")); n > 0 {
					t.Fatalf("%d probes have failed while the cable is plugged in", n)
				}
				unplugged.Store(true)
				time.Sleep(time.Minute)
				st := d.wantPhase("app", corev1.PodRunning, "")
				if n := st.ContainerStatuses[0].RestartCount; (n > 0) != c.restarts {
					t.Errorf("the container was restarted %d times", n)
				}
				messages := d.messagesOf("Unhealthy")
				if (len(messages) > 0) != (c.fails != "") ||
					len(messages) > 0 && !strings.Contains(messages[0], c.fails) {
					t.Errorf("the messages are %q", messages)
				}
				d.end()
			})
		})
	}
}

// messagesOf are the messages of the events with this reason.
func (d *device) messagesOf(reason string) (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if e.Reason == reason {
			out = append(out, e.Message)
		}
	}
	return out
}

// As with the kubelet (KEP-4781), probe results survive a restart of the agent: an upgrade makes no
// pod unready, and a passed startup probe does not run again.
func TestProbeResultsSurviveARestartOfTheAgent(t *testing.T) {
	for name, startup := range map[string]bool{"readiness": false, "startup and readiness": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				var broken, booted atomic.Bool
				d.fake.AddImage("app", 1, func(engine.Spec, int) enginetest.Play {
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
					if s := st.ContainerStatuses[0]; ready(&st) != yes || s.Ready != yes || !*s.Started ||
						s.RestartCount != 0 {
						t.Errorf("%s: ready %v, started %v, restarts %d; want ready %v", when, s.Ready, *s.Started,
							s.RestartCount, yes)
					}
				}
				restart := func() {
					d.end()
					d.start()
					time.Sleep(time.Second) // the first response after the restart takes longer
				}
				d.desire(1, p)
				time.Sleep(30 * time.Second)
				want("at first", true)
				booted.Store(true)
				restart()
				want("after a restart of the agent", true)
				time.Sleep(time.Minute)
				want("a minute later", true)
				broken.Store(true)
				restart()
				want("before the probe fails", true)
				time.Sleep(time.Minute)
				want("after the probe has failed", false)
				restart()
				want("after another restart of the agent", false)
				broken.Store(false)
				time.Sleep(time.Minute)
				want("after the probe has passed again", true)
				restart()
				want("after the last restart of the agent", true)
			})
		})
	}
}
