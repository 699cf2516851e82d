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

// A bench runs rows. It has the built tests and programs, and the logs.
type bench struct {
	work, logs string
	ours       bool              // whether the bench has created the logs' directory
	known      map[test]*outcome // by test, since a test of several rows runs once
}

// An outcome is the result of one test.
type outcome struct {
	state string   // pass, fail or skip; "" if the test did not run
	seen  []string // figures that the test printed
	why   string   // reason of a skip, or the beginning of a failure
}

// newBench builds the tests and programs that the rows need.
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
	pkgs := map[string]bool{}
	for _, r := range rows {
		for _, t := range r.tests {
			if err == nil && !pkgs[t.pkg] {
				pkgs[t.pkg] = true
				fmt.Fprintln(os.Stderr, "build the tests of", t.pkg)
				err = b.build(ctx, "test", "-c", "-trimpath", "-vet=off", "-o", b.binary(t.pkg), "./"+t.pkg)
			}
		}
	}
	for _, program := range []string{"hub", "device", "device/simulate"} {
		if err == nil && pkgs["hub/e2e"] {
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

// binary returns the path of a package's test program.
func (b *bench) binary(pkg string) string {
	return filepath.Join(b.work, strings.ReplaceAll(pkg, "/", "-")+".test")
}

// close removes the programs. It removes the logs unless a test failed.
func (b *bench) close(keep bool) error {
	err := os.RemoveAll(b.work)
	if b.ours && !keep {
		err = errors.Join(err, os.RemoveAll(b.logs))
	}
	return err
}

// run runs the tests of the rows, one package after the other. Parallel tests of a package run in
// parallel.
func (b *bench) run(ctx context.Context, rows []row) {
	names := map[string][]string{}
	var pkgs []string
	for _, r := range rows {
		for _, t := range r.tests {
			if b.known[t] != nil {
				continue
			}
			b.known[t] = &outcome{}
			if names[t.pkg] == nil {
				pkgs = append(pkgs, t.pkg)
			}
			names[t.pkg] = append(names[t.pkg], t.name)
		}
	}
	for _, pkg := range pkgs {
		if err := b.runPackage(ctx, pkg, names[pkg]); err != nil {
			fmt.Fprintln(os.Stderr, "faults:", err) // the outcomes show the failures too
		}
	}
}

// runPackage runs these tests of one package.
func (b *bench) runPackage(ctx context.Context, pkg string, names []string) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "tool", "test2json", "-t", b.binary(pkg), "-test.v=test2json", "-test.run",
		"^("+strings.Join(names, "|")+")$",
		"-test.parallel", "4", "-test.timeout", longest.String()) // long tests wait most of the time
	cmd.Dir = pkg
	cmd.Env = append(os.Environ(), "FAULTS=1", "FLOTILLA_LONG=1", "E2E_PROGRAMS="+b.work)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(b.logs, strings.ReplaceAll(pkg, "/", "-")+".log"))
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
		return b.known[test{pkg, name}]
	}, log, func(name, state string, took time.Duration) {
		fmt.Fprintf(os.Stderr, "%-4s %6s  %s %s\n", state, took.Round(time.Second), pkg, name)
	})
	ended := cmd.Wait()
	for _, name := range names {
		if o := b.known[test{pkg, name}]; o.state == "" {
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

// read parses the output of test2json. It reports each outcome at once, and writes the text to the
// log.
func read(lines io.Reader, of func(name string) *outcome, log io.Writer,
	ended func(name, state string, took time.Duration)) error {
	sc := bufio.NewScanner(lines)
	sc.Buffer(nil, 16<<20)
	failing := map[string]*bytes.Buffer{}
	for sc.Scan() {
		var e event
		if json.Unmarshal(sc.Bytes(), &e) != nil {
			_, _ = log.Write(append(sc.Bytes(), '\n')) // output of the test itself
			continue
		}
		_, _ = io.WriteString(log, e.Output)   // the rows do not need this output
		name, _, _ := strings.Cut(e.Test, "/") // a subtest's figures belong to its test
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
			o.why = short(failing[name]) // the failure of a subtest
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

// short returns the end of a test's output on one line.
func short(printed *bytes.Buffer) string {
	if printed == nil {
		return "no output"
	}
	text := strings.ReplaceAll(strings.Join(strings.Fields(printed.String()), " "), "|", "¦")
	if r := []rune(text); len(r) > 200 {
		return "… " + string(r[len(r)-200:])
	}
	return text
}
