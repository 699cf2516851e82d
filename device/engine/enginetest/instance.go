package enginetest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"flotilla.dev/device/engine"
)

// keptRuns bounds the runs in a container's log; real logs are bounded too.
const keptRuns = 4

// An instance is a container of the fake.
type instance struct {
	id        string
	number    int
	spec      engine.Spec
	limits    engine.Limits  // labels as Containers reports them
	network   engine.Network // the network named in spec.Network
	image     *image
	state     engine.State
	created   time.Time
	started   time.Time
	finished  time.Time
	code      int
	oom       bool
	problem   string
	starts    int
	play      Play
	runs      []run
	dropped   int // number of lines of runs that are no longer in the log
	ending    ending
	timer     *time.Timer
	cpuBefore uint64 // processor time used until cpuSince
	cpuSince  time.Time
}

// A run is one start of a container in its log.
type run struct {
	started, ended time.Time // ended is zero while it runs
	lines          []Line
}

// An ending is a planned end of a container; a zero at means that no end is planned.
type ending struct {
	at   time.Time
	code int
	oom  bool
}

// settle carries out the ends that are due. Timers call it too, but timers due at the same instant
// fire in any order.
func (t *Fake) settle(now time.Time) {
	for _, c := range t.containers {
		if e := c.ending; c.state == engine.Running && !e.at.IsZero() && !e.at.After(now) {
			t.end(c, e.at, e.code, e.oom)
		}
	}
}

// start begins a run of a container that is created or has exited.
func (t *Fake) start(c *instance, now time.Time) {
	c.play = Play{}
	if c.image.program != nil {
		c.play = c.image.program(c.spec, c.starts)
	}
	c.starts++
	if c.play.StartError != "" {
		return
	}
	c.state, c.started, c.finished, c.code, c.oom, c.problem = engine.Running, now, time.Time{}, 0, false, ""
	c.cpuBefore, c.cpuSince, c.ending = 0, now, ending{}
	c.runs = append(c.runs, run{started: now, lines: c.play.Lines})
	if len(c.runs) > keptRuns {
		whole, _ := (&instance{runs: c.runs[:1]}).log(0, now)
		c.dropped += len(whole)
		c.runs = slices.Delete(c.runs, 0, 1)
	}
	limit := uint64(max(c.spec.MemoryBytes, 0))
	switch {
	case t.info.MemLimit && limit > 0 && c.play.MemoryBytes > limit:
		t.endAt(c, ending{at: now, code: 137, oom: true})
	case c.play.Exits:
		t.endAt(c, ending{at: now.Add(c.play.ExitAfter), code: c.play.ExitCode, oom: c.play.OOM})
	}
	t.notify(c.spec.Labels)
}

// endAt plans the end of a running container unless an earlier end is planned.
func (t *Fake) endAt(c *instance, e ending) {
	if !c.ending.at.IsZero() && !e.at.Before(c.ending.at) {
		return
	}
	c.ending = e
	c.silence()
	c.timer = time.AfterFunc(time.Until(e.at), func() { t.do(func() {}) })
}

func (c *instance) silence() {
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

func (t *Fake) end(c *instance, at time.Time, code int, oom bool) {
	c.silence()
	if c.state != engine.Running {
		return
	}
	c.state, c.finished, c.code, c.oom = engine.Exited, at, code, oom
	c.runs[len(c.runs)-1].ended = at
	t.notify(c.spec.Labels)
}

func (t *Fake) remove(c *instance) {
	c.silence()
	if c.state == engine.Running {
		t.end(c, time.Now(), 137, false)
	}
	t.containers = slices.DeleteFunc(t.containers, func(x *instance) bool { return x == c })
	t.notify(c.spec.Labels)
}

// find returns a container by id or name.
func (t *Fake) find(id string) *instance {
	for _, c := range t.containers {
		if c.id == id || c.spec.Name == id {
			return c
		}
	}
	return nil
}

// dependents returns the containers that share the network of c.
func (t *Fake) dependents(c *instance) (found []*instance) {
	for _, d := range t.containers {
		if d.spec.NetworkOf != "" && t.find(d.spec.NetworkOf) == c {
			found = append(found, d)
		}
	}
	return found
}

// portTaken returns the running container that has published a port of c.
func (t *Fake) portTaken(c *instance) (owner string, port engine.Port, taken bool) {
	if c.spec.HostNetwork || c.spec.NetworkOf != "" {
		return "", engine.Port{}, false
	}
	for _, d := range t.containers {
		if d == c || d.state != engine.Running || d.spec.HostNetwork || d.spec.NetworkOf != "" {
			continue
		}
		for _, p := range c.spec.Ports {
			for _, q := range d.spec.Ports {
				if p.HostPort == q.HostPort && p.Protocol == q.Protocol &&
					(p.HostIP == q.HostIP || p.HostIP == "" || q.HostIP == "") {
					return d.spec.Name, p, true
				}
			}
		}
	}
	return "", engine.Port{}, false
}

func (c *instance) cpu(now time.Time) uint64 {
	if c.state != engine.Running {
		return 0
	}
	return c.cpuBefore + c.play.MilliCPU*uint64(now.Sub(c.cpuSince)/1000)
}

func (c *instance) view() engine.Container {
	v := engine.Container{
		ID: c.id, Name: c.spec.Name, Image: c.spec.Image, ImageID: c.image.id, Labels: c.spec.Labels, State: c.state,
		ExitCode: c.code, OOMKilled: c.oom, Error: c.problem, Created: c.created, StartedAt: c.started,
		FinishedAt: c.finished, Limits: c.limits,
	}
	if c.state == engine.Running {
		v.Pid = 1000 + c.number
		if !c.spec.HostNetwork && c.spec.NetworkOf == "" {
			v.IP = fmt.Sprintf("172.17.%d.%d", c.number/250%250, c.number%250+2)
			if c.network.CIDR != "" {
				v.IP = address(c.network, c.number)
			}
		}
	}
	return v
}

func newID(number int, name string) string {
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%d %s", number, name)))
}
