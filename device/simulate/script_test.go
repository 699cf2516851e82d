package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/web/manual/manualtest"
)

var update = flag.Bool("update", false, "write the night into the manual")

func TestEachMistakeInAScriptIsReportedWithItsLine(t *testing.T) {
	for line, want := range map[string]string{
		"silence 3":                  `"silence" is not a duration`,
		"-1s silence 3":              "not between 0s and",
		"200h silence 3":             "not between 0s and",
		"1m":                         "a verb is missing",
		"1m end":                     "a verb is missing",
		"1m melt 3":                  `unknown verb "melt": use crash, disk,`,
		"1m silence":                 "silence which nodes?",
		"1m crash exit=1":            "crash which pods?",
		"1m silence 3 3":             "3 is given twice",
		"1m silence 3 for=1m for=2m": "for= is given twice",
		"1m silence 3 exit=1":        "exit= is not an option of silence 3",
		"1m restart 3 for=1m":        "for= is not an option of restart 3",
		"1m end restart 3":           "restart cannot be ended",
		"1m crash till exit=256":     "an exit code is 0 to 255",
		"1m crash till oom=maybe":    "invalid syntax",
		`1m crash till log="no end`:  `a " is not closed`,
		"1m heat 3 celsius=hot":      "degrees Celsius",
		"1m heat 3 celsius=NaN":      "degrees Celsius",
		"1m disk 3 free=4":           "must be a percentage",
		"1m memory 3 free=104%":      "must be a percentage",
		"1m slow 3 rate=1":           "at least 100",
		"1m update 3":                "update needs version=",
		"1m flap 3 down=0s":          "not between 1ms and",
		"0s loop":                    "a script lasts at least a second",
		"":                           "the script has no events",
		"\x01 silence":               "control character",
		"1m silence 3\n30s return 3": "30s comes after 1m0s",
		"1m loop\n2m silence 3":      "nothing comes after loop",
	} {
		_, err := ParseScript("x", []byte("# a comment\n"+line+"\n"))
		if err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "x:2: ") && !strings.HasPrefix(err.Error(), "x:3: ") {
			t.Errorf("%q: got %v, want %q and the number of the line", line, err, want)
		}
	}
	_, err := ParseScript("x", []byte("x\n1m y\n1m silence\n"))
	if err == nil || strings.Count(err.Error(), "x:") != 3 {
		t.Errorf("the error does not list every mistake: %v", err)
	}
	if _, err := ParseScript("x", make([]byte, maxScript+1)); err == nil {
		t.Error("a script above the size limit is accepted")
	}
	if _, err := LoadScript(t.TempDir() + "/none"); err == nil || !strings.Contains(err.Error(), "night is built in") {
		t.Error(err)
	}
}

func small(count, sites int) Options {
	return Options{
		Hub:    "mqtt://127.0.0.1:1883",
		Count:  count,
		Sites:  sites,
		Prefix: "sim",
		Log:    slog.New(slog.DiscardHandler),
	}
}

func TestAScriptIsCheckedAgainstItsDevices(t *testing.T) {
	for line, want := range map[string]string{
		"silence 9": "1:", "silence 0": "1:", "silence 4..2": "1:", "silence 7..9": "1:", "silence site-04": "1:", "silence sim-0009": "1:", "silence x": "1:",
		"crash till on=1,site-9": "1:", "undervoltage 5": "only Raspberry Pis", "undervoltage 5 8": "only Raspberry Pis",
		"silence 1..8 site-03 sim-0008 all": "", "undervoltage all": "", "crash till on=1,site-03": "", "missing 99": "",
	} {
		s, err := ParseScript("x", []byte("1m "+line))
		if err != nil {
			t.Fatal(err)
		}
		o := small(8, 3)
		o.Script = s
		if err := o.Check(); (err != nil) != (want != "") || err != nil &&
			(!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "x:1:")) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

func TestActiveEventsAreCountedByDevice(t *testing.T) {
	for text, want := range map[string]string{
		"end silence 3":                                       "x:1: end silence 3: nothing to end",
		"silence 3\n2m silence 3":                             "x:2: silence 3: it has been active for sim-0003 since line 1",
		"silence 3\n2m silence sim-0003":                      "x:2: silence sim-0003: it has been active for sim-0003 since line 1",
		"silence 2..4 for=5m\n2m silence all":                 "x:2: silence all: it has been active for sim-0002 since line 1",
		"crash a on=1\n2m crash a":                            "x:2: crash a: it has been active for sim-0001 since line 1",
		"silence site-03\n2m end silence 1":                   "nothing to end",
		"crash a on=1\n2m end crash b":                        "nothing to end",
		"crash a on=1\n2m end crash a on=2":                   "nothing to end",
		"silence 3\n2m return sim-0003\n3m end silence 3":     "nothing to end",
		"silence 3\n2m end silence sim-0003\n3m silence 3":    "",
		"silence 2..4\n2m end silence 3\n3m silence sim-0003": "",
		"silence 3 for=1m\n2m silence sim-0003":               "",
		"silence 3\n2m return all\n2m silence 3":              "",
		"silence 3 sim-0003\n2m slow 3":                       "",
		"crash a on=1\n2m end crash a":                        "",
		"crash a on=1\n2m crash a on=2\n3m crash b":           "",
		"missing x:1\n2m missing x:2\n3m end missing x:1":     "",
	} {
		s, err := ParseScript("x", []byte("1m "+text))
		if err != nil {
			t.Fatal(err)
		}
		o := small(8, 3)
		o.Script = s
		if err := o.Check(); (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The night fits the fleet of make run, uses every verb, and leaves a healthy fleet.
func TestTheNight(t *testing.T) {
	s, err := LoadScript(Night)
	if err != nil {
		t.Fatal(err)
	}
	o := small(8, 3)
	o.Script = s
	if err := o.Check(); err != nil {
		t.Error(err)
	}
	o.Count = 4
	if err := o.Check(); err == nil || !strings.Contains(err.Error(), "night:") {
		t.Errorf("with four devices the night is checked with %v, want an error", err)
	}
	used, active := map[string]bool{"return": true}, 0 // an event with for= ends by itself
	for _, x := range s.steps() {
		used[x.verb] = true
		switch {
		case !verbs[x.verb].lasts:
		case x.ends:
			active--
		default:
			active++
		}
		if x.at > 10*time.Minute {
			t.Errorf("step %s comes after ten minutes", x)
		}
	}
	for verb := range verbs {
		if !used[verb] {
			t.Errorf("the night does not use the verb %s", verb)
		}
		if !strings.Contains(Words(), " "+verb+" ") {
			t.Errorf("Words does not name the verb %s", verb)
		}
	}
	if active != 0 {
		t.Errorf("%d events never end", active)
	}
}

// The manual contains the current script.
func TestTheManualHasTheNight(t *testing.T) {
	manualtest.Block(t, "../../web/manual/start.md", "night", "\n```\n"+string(night)+"```\n\n", *update)
}

func TestStepsAreSorted(t *testing.T) {
	s, err := ParseScript("x", []byte("1m silence 1 for=1m\n90s heat 2 for=1h\n2m silence 1\n3m loop\n"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range s.steps() {
		got = append(got, fmt.Sprint(x.at, " ", x))
	}
	want := []string{"1m0s silence 1", "1m30s heat 2", "2m0s end silence 1", "2m0s silence 1"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func FuzzParseScript(f *testing.F) {
	f.Add(night)
	f.Add([]byte("1m crash till log=\"a b\" for=2m\n5m end crash till"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := ParseScript("x", text)
		if err != nil {
			return
		}
		last := time.Duration(0)
		for _, x := range s.steps() {
			if x.at < last || len(x.what) == 0 || s.loop > 0 && x.at > s.loop {
				t.Fatalf("step at %s after a step at %s: %s", x.at, last, x)
			}
			last = x.at
		}
		o := small(8, 3)
		o.Script = s
		_ = o.Check()
	})
}

// echo dials a hub that sends back every received byte.
func echo(context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		_, _ = io.Copy(theirs, theirs)
		_ = theirs.Close()
	}()
	return ours, nil
}

func TestALineIsSlowOrCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over := make(chan struct{})
		l := newLine(echo, over)
		c, err := l.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		echoed := func(c net.Conn, within time.Duration) (string, error) {
			_ = c.SetDeadline(time.Now().Add(within))
			if _, err := io.WriteString(c, "hello"); err != nil {
				return "", err
			}
			b := make([]byte, 5)
			_, err := io.ReadFull(c, b)
			return string(b), err
		}
		if got, err := echoed(c, time.Second); got != "hello" {
			t.Errorf("over a working line: %q, %v; want hello", got, err)
		}
		l.set(false, 10, time.Second)
		began := time.Now()
		if got, err := echoed(c, time.Minute); got != "hello" || time.Since(began) < 3*time.Second {
			t.Errorf("over a slow line: %q, %v after %s, want 3 s: twice 5 bytes at 10 a second, and 1 s either way", got, err,
				time.Since(began))
		}
		l.set(true, 0, 0)
		if got, err := echoed(c, time.Minute); err == nil || time.Since(began) < time.Minute {
			t.Errorf("over a cut line: %q, %v after %s; want a timeout after a minute", got, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := l.connect(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dialling over a cut line: %v, want DeadlineExceeded", err)
		}
		l.set(false, 0, 0)
		b := make([]byte, 5)
		_ = c.SetDeadline(time.Now().Add(time.Second))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
			t.Errorf("bytes sent while the line was cut are lost: %q, %v", b, err)
		}
		l.drop()
		if got, err := echoed(c, time.Second); err == nil {
			t.Errorf("a device without power sends %q", got)
		}
		synctest.Wait()
		if len(l.open) != 0 {
			t.Error("the line still has connections")
		}
		close(over)
	})
}

// started starts a container on a device. The returned function returns its output and its state.
func started(t *testing.T, d *device, pod, image string) (output func() (string, engine.Container)) {
	t.Helper()
	if err := d.engine.Pull(t.Context(), image, nil, nil); err != nil {
		t.Fatal(err)
	}
	id, err := d.engine.Create(t.Context(),
		engine.Spec{Name: pod, Image: image, Labels: map[string]string{plan.LabelPodName: pod, plan.LabelContainer: "web"}})
	if err == nil {
		err = d.engine.Start(t.Context(), id)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() (string, engine.Container) {
		var out bytes.Buffer
		if err := d.engine.Logs(t.Context(), id, engine.LogOptions{Tail: -1}, &out, &out); err != nil {
			t.Fatal(err)
		}
		list, _ := d.engine.Containers(t.Context(), plan.LabelPodName)
		i := slices.IndexFunc(list, func(c engine.Container) bool { return c.ID == id })
		return out.String(), list[i]
	}
}

func parsed(t *testing.T, text string) *Script {
	t.Helper()
	s, err := ParseScript("x", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A script changes devices, which here have no agents.
func TestAScriptChangesDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		o := small(8, 3)
		o.Speed = 2
		o.Script = parsed(t, `10s crash till exit=3 after=4s log="no prices" log=bye on=site-01
10s missing a/menu:2
20s undervoltage 1 2 for=20s
20s heat site-02
20s memory 2 free=1%
20s flap 3 down=10s up=20s
40s end crash till on=site-01
40s end missing a/menu:2
50s return site-03
60s loop
`)
		if err := o.Check(); err != nil {
			t.Fatal(err)
		}
		var all []*device
		for n := range 8 {
			all = append(all, newDevice(ctx, o, n+1, t.TempDir()))
		}
		till, _ := started(t, all[0], "till-5c6b-x2x4z", "a/till:1"), started(t, all[1], "till-5c6b-other", "a/till:1")
		tiller := started(t, all[0], "tiller-1", "a/till:1")
		go o.Script.play(ctx, o, all)
		time.Sleep(5*time.Second + time.Millisecond) // 10 s of the script, at twice the speed
		if output, c := till(); c.State != engine.Exited || c.ExitCode != 3 ||
			!strings.HasSuffix(output, "\nno prices\nbye\n") {
			t.Errorf("the container is %s with exit code %d and output %q, want it ended with 3", c.State, c.ExitCode, output)
		}
		if output, c := tiller(); c.State != engine.Running {
			t.Errorf("a container of another workload is %s with output %q, want it running", c.State, output)
		}
		if list, _ := all[1].engine.Containers(ctx, plan.LabelPodName); list[0].State != engine.Running {
			t.Errorf("the container on another site is %s, want it running", list[0].State)
		}
		again := started(t, all[3], "till-5c6b-again", "a/till:1")
		if _, c := again(); c.State != engine.Running {
			t.Errorf("the container crashes too early: %s", c.State)
		}
		time.Sleep(2 * time.Second)
		if output, c := again(); c.ExitCode != 3 || !strings.Contains(output, "no prices") {
			t.Errorf("after 4 s of the script the container is %s with output %q", c.State, output)
		}
		err := all[4].engine.Pull(ctx, "a/menu:2", nil, nil)
		if !errors.Is(err, engine.ErrNotFound) ||
			!strings.Contains(err.Error(), "manifest for a/menu:2 not found: manifest unknown") {
			t.Errorf("pulling a missing image: %v, want Docker's error", err)
		}

		time.Sleep(4 * time.Second) // until 22 s of the script
		probe := func(n int) (hardware.Report, hardware.Stats) {
			r, err := all[n-1].board.Probe(ctx, "")
			if err != nil {
				t.Fatal(err)
			}
			return r, all[n-1].board.Measure(ctx, "")
		}
		if r, _ := probe(1); !r.Power.UnderVoltage || r.Power.Throttled {
			t.Errorf("device 1 has %+v, want a low voltage only", r.Power)
		}
		if r, s := probe(2); !r.Power.UnderVoltage || !r.Power.Throttled || r.Temperatures[0].Celsius != 84 ||
			r.Voltages[0].Volts > 4.63 || s.Memory.Available > s.Memory.Capacity/99 {
			t.Errorf("device 2 has %+v %+v %+v %+v, want a low voltage, 84 °C and 1%% of its memory free", r.Power,
				r.Temperatures, r.Voltages, s.Memory)
		}
		if r, s := probe(3); r.Power.UnderVoltage || r.Power.Throttled || s.Memory.Available < s.Memory.Capacity/4 {
			t.Errorf("device 3 has %+v %+v, want no fault", r.Power, s)
		}
		cut := func(n int) bool {
			whole, _, _ := all[n-1].line.state()
			select {
			case <-whole:
				return false
			default:
				return true
			}
		}
		down := 0
		for range 13 { // 26 s of the script; flapping ends at 50 s
			if cut(3) {
				down++
			}
			if cut(6) {
				t.Error("the line of another device flaps")
			}
			time.Sleep(time.Second)
		}
		if down < 4 || down > 6 {
			t.Errorf("the line was cut for %d s of 13 s, want 5: 10 s of 30 s, at twice the speed", down)
		}
		if r, _ := probe(1); r.Power.UnderVoltage || !r.Power.UnderVoltageSeen {
			t.Errorf("after for= device 1 has %+v, want a low voltage only in the past", r.Power)
		}
		if err := all[4].engine.Pull(ctx, "a/menu:2", nil, nil); err != nil {
			t.Error(err)
		}
		time.Sleep(4 * time.Second)
		if cut(3) {
			t.Error("the line flaps after return")
		}
		time.Sleep(3 * time.Second) // until the script has started again
		if r, s := probe(2); r.Power.Throttled || s.Memory.Available < s.Memory.Capacity/4 {
			t.Errorf("after the loop device 2 has %+v %+v, want no fault", r.Power, s.Memory)
		}
		time.Sleep(12 * time.Second)
		if r, _ := probe(2); !r.Power.Throttled {
			t.Error("the loop does not repeat the heat")
		}
		cancel()
		synctest.Wait()
	})
}
