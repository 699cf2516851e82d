package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A bench is where rows are tried: the built tests, the built programs, the logs.
type bench struct {
	work, logs string
	ours       bool              // the logs' directory was made here
	known      map[test]*outcome // tests hold several rows, and run once
}

// An outcome is how one test went.
type outcome struct {
	state string   // pass, fail, skip; "": it never ran
	seen  []string // its figures
	why   string   // why it was skipped, or the beginning of what it failed with
}

// newBench builds what the rows need.
func newBench(ctx context.Context, logs string, rows []row) (*bench, error) {
	work, err := os.MkdirTemp("", "flotilla-faults-")
	if err != nil {
		return nil, err
	}
	b := &bench{work: work, logs: logs, known: map[test]*outcome{}}
	if logs == "" {
		b.ours = true
		b.logs, err = os.MkdirTemp("", "flotilla-faults-logs-")
	} else {
		err = os.MkdirAll(logs, 0o755)
	}
	rooms := map[string]bool{}
	for _, r := range rows {
		for _, t := range r.tests {
			if err == nil && !rooms[t.room] {
				rooms[t.room] = true
				fmt.Fprintln(os.Stderr, "build the tests of", t.room)
				err = b.build(ctx, "test", "-c", "-trimpath", "-vet=off", "-o", b.binary(t.room), "./"+t.room)
			}
		}
	}
	for _, program := range []string{"hub", "device", "device/simulate"} {
		if err == nil && rooms["hub/e2e"] {
			err = b.build(ctx, "build", "-trimpath", "-ldflags", "-s -w", "-o",
				filepath.Join(work, "flotilla-"+filepath.Base(program)), "./"+program)
		}
	}
	if err != nil {
		return nil, errors.Join(err, b.close(false))
	}
	return b, nil
}

func (b *bench) build(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// binary is where the built tests of a room are.
func (b *bench) binary(room string) string {
	return filepath.Join(b.work, strings.ReplaceAll(room, "/", "-")+".test")
}

// close removes what was built, and the logs unless somebody will read them.
func (b *bench) close(keep bool) error {
	err := os.RemoveAll(b.work)
	if b.ours && !keep {
		err = errors.Join(err, os.RemoveAll(b.logs))
	}
	return err
}

// run runs the tests of the rows, room after room: those of a room that may run side by
// side do.
func (b *bench) run(ctx context.Context, rows []row) {
	names := map[string][]string{}
	var rooms []string
	for _, r := range rows {
		for _, t := range r.tests {
			if b.known[t] != nil {
				continue
			}
			b.known[t] = &outcome{}
			if names[t.room] == nil {
				rooms = append(rooms, t.room)
			}
			names[t.room] = append(names[t.room], t.name)
		}
	}
	for _, room := range rooms {
		if err := b.room(ctx, room, names[room]); err != nil {
			fmt.Fprintln(os.Stderr, "faults:", err) // its tests are judged by what they said
		}
	}
}

// room runs tests of one room.
func (b *bench) room(ctx context.Context, room string, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", b.binary(room), "-test.v=test2json", "-test.run",
		"^("+strings.Join(names, "|")+")$",
		"-test.parallel", "4", "-test.timeout", longest.String()) // most of what takes long here waits
	cmd.Dir = room
	cmd.Env = append(os.Environ(), "FAULTS=1", "FLOTILLA_LONG=1", "E2E_PROGRAMS="+b.work)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(b.logs, strings.ReplaceAll(room, "/", "-")+".log"))
	if err != nil {
		return err
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	err = read(out, func(name string) *outcome {
		if !slices.Contains(names, name) {
			return nil
		}
		return b.known[test{room, name}]
	}, log, func(name, state string, took time.Duration) {
		fmt.Fprintf(os.Stderr, "%-4s %6s  %s %s\n", state, took.Round(time.Second), room, name)
	})
	ended := cmd.Wait()
	for _, name := range names {
		if o := b.known[test{room, name}]; o.state == "" {
			o.state, o.why = "fail", fmt.Sprintf("it did not end: %v", errors.Join(ended, ctx.Err()))
			if ended == nil {
				o.why = "test not found"
			}
		}
	}
	return errors.Join(err, log.Close())
}

// An event is a line of test2json.
type event struct {
	Action, Test, Output, Key, Value string
	Elapsed                          float64 // seconds
}

// read takes what test2json writes to pieces: the outcomes of tests, each as it comes, and,
// for the log, the words.
func read(lines io.Reader, of func(name string) *outcome, log io.Writer,
	ended func(name, state string, took time.Duration)) error {
	sc := bufio.NewScanner(lines)
	sc.Buffer(nil, 16<<20)
	failing := map[string]*bytes.Buffer{}
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			_, _ = log.Write(append(sc.Bytes(), '\n')) // a program's own words
			continue
		}
		_, _ = io.WriteString(log, e.Output)   // the rows are judged without it
		name, _, _ := strings.Cut(e.Test, "/") // what parts of a test have seen, it has
		o := of(name)
		if o == nil {
			continue
		}
		switch {
		case e.Action == "attr" && e.Key == "seen":
			o.seen = append(o.seen, e.Value)
		case e.Action == "output" && !strings.HasPrefix(e.Output, "=== ") &&
			!strings.HasPrefix(strings.TrimSpace(e.Output), "--- "):
			if failing[name] == nil {
				failing[name] = &bytes.Buffer{}
			}
			failing[name].WriteString(e.Output)
		case e.Action == "skip" && e.Test != name:
			o.why = short(failing[name]) // a part of it
		case e.Test == name && slices.Contains([]string{"pass", "fail", "skip"}, e.Action):
			if o.state = e.Action; e.Action == "pass" && o.why != "" {
				o.state = "part"
			} else if e.Action != "pass" {
				o.why = short(failing[name])
			}
			ended(name, o.state, time.Duration(e.Elapsed*float64(time.Second)))
		}
	}
	return sc.Err()
}

// short is the end of what a test said, on one line.
func short(said *bytes.Buffer) string {
	if said == nil {
		return "it said nothing"
	}
	text := strings.ReplaceAll(strings.Join(strings.Fields(said.String()), " "), "|", "¦")
	if r := []rune(text); len(r) > 200 {
		return "… " + string(r[len(r)-200:])
	}
	return text
}
