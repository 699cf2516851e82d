package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

const (
	soakNodes   = 500 // devices that stay connected
	soakGuests  = 50  // devices that join and are deleted
	soakSample  = time.Second
	soakWarm    = 3 * time.Minute // time until the watchers' buffers are full
	soakShort   = 2 * time.Minute // shortest useful soak
	soakWorkers = 8               // concurrent deployments, each with ten pods
)

// A level is one of the hub's figures during a soak.
type level struct {
	name, unit string
	of         func(values []int64) int64 // of reduces the values of a third of the soak to one value
	// allow returns the limit of the last third from the values of the other two.
	allow func(first, second int64) int64
}

// A hub's resources must not grow with time; growth below a tenth is noise. The database may keep
// its rate of growth, because events and the audit are stored for days.
var levels = []level{
	{"goroutines", "", median, func(_, b int64) int64 { return b + b/10 + 50 }},
	{"open files", "", median, func(_, b int64) int64 { return b + b/10 + 20 }},
	{"heap", "kB", median, func(_, b int64) int64 { return b + b/10 + 8<<10 }},
	{"resident", "kB", median, func(_, b int64) int64 { return b + b/10 + 16<<10 }},
	{"database", "kB", slices.Max[[]int64], func(a, b int64) int64 { return b + 3*max(b-a, 0)/2 + 4<<10 }},
	{"objects but events", "", median, func(_, b int64) int64 { return b + b/10 + 50 }},
}

func median(values []int64) int64 {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// judge returns the figures that have grown beyond their limits.
func judge(samples [][]int64) (table string, err error) {
	if len(samples) < 9 {
		return "", fmt.Errorf("%d samples are too few", len(samples))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-20s %10s %10s %10s %10s\n", "FIGURE", "1ST THIRD", "2ND", "3RD", "AT MOST")
	for i, l := range levels {
		var thirds [3]int64
		for n := range thirds {
			var values []int64
			for _, s := range samples[n*len(samples)/3 : (n+1)*len(samples)/3] {
				values = append(values, s[i])
			}
			thirds[n] = l.of(values)
		}
		most := l.allow(thirds[0], thirds[1])
		fmt.Fprintf(&b, "%-20s %10d %10d %10d %10d %s\n", l.name, thirds[0], thirds[1], thirds[2], most, l.unit)
		if thirds[2] > most {
			err = errors.Join(err, fmt.Errorf("%s: %d %s in the last third of the soak, after %d and %d; at most %d are allowed",
				l.name, thirds[2], l.unit, thirds[0], thirds[1], most))
		}
	}
	return b.String(), err
}

// soak is `make soak`: a hub with real agents on engines in memory. Devices join and are deleted,
// pods are created and deleted, pages are read, watches are opened and closed. None of this may
// leave resources in use. database may be the URL of an empty PostgreSQL database.
func soak(ctx context.Context, hub, database string, during time.Duration) error {
	if during < soakShort {
		return fmt.Errorf("-soak %s: use at least %s", during, soakShort)
	}
	work, hub, err := prepare(ctx, "soak", hub)
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	simulator := filepath.Join(work, "flotilla-simulate")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", simulator, "flotilla.dev/device/simulate")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the simulator: %w\n%s", err, out)
	}
	var more []string
	if database != "" {
		more = []string{"--database", database}
	}
	a, err := harness.New(ctx, hub, work, 0, more...)
	if err != nil {
		return err
	}
	defer a.Close()
	s := &soakTest{Hub: a, simulator: simulator}
	if err := s.User(ctx, "olga", "operator"); err != nil {
		return err
	}
	stay, err := s.fleet(ctx, "stay", soakNodes)
	if err != nil {
		return err
	}
	defer stay()
	if err := harness.Until(ctx, 3*time.Minute, "all devices to be ready", func() (bool, error) {
		text, err := a.Get(ctx, "/metrics")
		return sumOf(text, `flotilla_nodes{`, `state="ready"`) >= soakNodes, err
	}); err != nil {
		return err
	}

	active, stop := context.WithCancel(ctx)
	var over sync.WaitGroup
	for _, churn := range []func(context.Context){s.churnPods, s.churnGuests, s.readPages, s.churnWatches} {
		over.Go(func() { churn(active) })
	}
	defer func() { stop(); over.Wait() }()
	harness.Pause(active, soakWarm)
	began, last, samples := time.Now(), time.Time{}, [][]int64{}
	for ; time.Since(began) < during && ctx.Err() == nil; harness.Pause(ctx, soakSample) {
		text, err := a.Get(ctx, "/metrics")
		if err != nil {
			return fmt.Errorf("after %s: %w: %.300s", time.Since(began).Round(time.Second), err, a.Output.String())
		}
		kinds := sumOf(text, `flotilla_objects{`, "") - sumOf(text, `flotilla_objects{`, `"events"`)
		samples = append(samples, []int64{metric(text, "go_goroutines"), metric(text, "process_open_fds"),
			metric(text, heapBytes) >> 10, a.Resident() >> 10, metric(text, "flotilla_database_bytes") >> 10, kinds})
		if time.Since(last) >= max(during/20, 10*time.Second) {
			last = time.Now()
			fmt.Printf("%8s  %v  %s\n", time.Since(began).Round(time.Second), samples[len(samples)-1], s.did())
		}
	}
	stop()
	over.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	table, err := judge(samples)
	fmt.Printf("%s%s\n", table, s.did())
	switch {
	case a.Panicked() != "":
		err = errors.Join(err, fmt.Errorf("the hub's output has %s", a.Panicked()))
	case s.made.Load() < 10 || s.guests.Load() < 1 || s.pages.Load() < 10 || s.watches.Load() < 10:
		err = errors.Join(err, fmt.Errorf("the soak had too little activity: %s", s.did()))
	}
	return err
}

// A soakTest is a hub during a soak.
type soakTest struct {
	*harness.Hub
	simulator                            string
	made, guests, pages, watches, failed atomic.Int64
	failure                              atomic.Value // text of the last error
}

func (s *soakTest) did() string {
	text := fmt.Sprintf("%d deployments, %d devices that came and went, %d pages read, %d watches, %d failures",
		s.made.Load(),
		s.guests.Load(), s.pages.Load(), s.watches.Load(), s.failed.Load())
	if last := s.failure.Load(); last != nil {
		text += fmt.Sprintf(", such as %s", last)
	}
	return text
}

// note counts failures. A hub may refuse a request from time to time.
func (s *soakTest) note(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		s.failed.Add(1)
		s.failure.Store(err.Error())
	}
}

// fleet starts devices, and returns a function that kills them.
func (s *soakTest) fleet(ctx context.Context, prefix string, count int) (end func(), err error) {
	cmd := exec.CommandContext(ctx, s.simulator, "--hub", "mqtt://"+s.Dev, "--count", fmt.Sprint(count), "--sites", "10",
		"--prefix", prefix, "--log-level", "error")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, nil
}

// churnPods creates a deployment every three seconds and deletes the oldest.
func (s *soakTest) churnPods(ctx context.Context) {
	const at = "/apis/apps/v1/namespaces/default/deployments"
	for i := 0; ctx.Err() == nil; i++ {
		body := fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"soak-%d"},"spec":{"replicas":10,"selector":{"matchLabels":{"app":"soak-%d"}},"template":{"metadata":{"labels":{"app":"soak-%d"}},"spec":{"containers":[{"name":"main","image":"example.org/soak:1"}]}}}}`, i, i, i)
		if err := s.Create(ctx, at, body); err != nil {
			s.note(ctx, err)
		} else {
			s.made.Add(1)
		}
		if i >= soakWorkers {
			code, answer, err := s.Call(ctx, s.Admin, http.MethodDelete, fmt.Sprintf("%s/soak-%d", at, i-soakWorkers), "", "")
			if err == nil && code != http.StatusOK {
				err = fmt.Errorf("delete soak-%d: %d %.200s", i-soakWorkers, code, answer)
			}
			s.note(ctx, err)
		}
		harness.Pause(ctx, 3*time.Second)
	}
}

// churnGuests lets devices join and lose power, and deletes them.
func (s *soakTest) churnGuests(ctx context.Context) {
	for ctx.Err() == nil {
		end, err := s.fleet(ctx, "guest", soakGuests)
		if err != nil {
			s.note(ctx, err)
			return
		}
		harness.Pause(ctx, 20*time.Second)
		end()
		s.guests.Add(1)
		harness.Pause(ctx, 5*time.Second)
		for i := range soakGuests {
			if ctx.Err() != nil {
				return
			}
			_, _, err := s.Call(ctx, s.Admin, http.MethodDelete, fmt.Sprintf("/api/v1/nodes/guest-%04d", i+1), "", "")
			s.note(ctx, err)
		}
	}
}

// readPages reads pages like an operator, and keeps the live updates open for a while.
func (s *soakTest) readPages(ctx context.Context) {
	client := s.Client()
	_, cookie, err := s.Login(ctx, client, "olga", harness.Password)
	if err != nil || cookie == nil {
		s.note(ctx, fmt.Errorf("olga cannot log in: %w", err))
		return
	}
	for ctx.Err() == nil {
		for _, path := range []string{"/", "/nodes", "/pods", "/workloads", "/sites", "/events", "/nodes/stay-0001"} {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL(path), nil)
			if err != nil {
				return
			}
			r.AddCookie(cookie)
			resp, err := client.Do(r)
			if err != nil {
				s.note(ctx, err)
				continue
			}
			_, err = io.Copy(io.Discard, resp.Body)
			s.note(ctx, errors.Join(err, resp.Body.Close()))
			if s.pages.Add(1); resp.StatusCode != http.StatusOK {
				s.note(ctx, fmt.Errorf("GET %s: %d", path, resp.StatusCode))
			}
			harness.Pause(ctx, 500*time.Millisecond)
		}
	}
}

// churnWatches opens watches on separate connections, reads some of them, and closes them after up
// to ten seconds.
func (s *soakTest) churnWatches(ctx context.Context) {
	var over sync.WaitGroup
	defer over.Wait()
	for ctx.Err() == nil {
		over.Go(func() {
			mine, cancel := context.WithTimeout(ctx, time.Second+time.Duration(rand.Int64N(int64(9*time.Second))))
			defer cancel()
			c := *s.Admin
			transport := s.Admin.Transport.(*http.Transport).Clone()
			c.Transport, c.Timeout = transport, 0
			defer transport.CloseIdleConnections()
			path := []string{"/api/v1/pods?watch=true", "/api/v1/nodes?watch=true", "/api/v1/events?watch=true"}[rand.IntN(3)]
			r, err := http.NewRequestWithContext(mine, http.MethodGet, s.URL(path), nil)
			if err != nil {
				return
			}
			resp, err := c.Do(r)
			if err != nil {
				s.note(mine, err)
				return
			}
			defer resp.Body.Close()
			s.watches.Add(1)
			_, _ = io.Copy(io.Discard, resp.Body)
		})
		harness.Pause(ctx, 500*time.Millisecond)
	}
}

// sumOf adds up the metrics whose lines begin with one text and contain another.
func sumOf(text, begins, contains string) (sum int64) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, begins) && strings.Contains(line, contains) {
			name, _, _ := strings.Cut(line, " ")
			sum += metric(text, name)
		}
	}
	return sum
}
