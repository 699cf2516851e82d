package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// A run is one run of the suite.
type run struct {
	options
	suite                  suite
	work                   string // directory that is removed at the end
	hub, device, simulator string // paths of the programs
	policy                 string // path of the policy
}

// programs finds Flotilla's programs, or builds them as for a release.
func (r *run) programs(ctx context.Context) error {
	r.policy = filepath.Join(r.work, "policy.yaml")
	if err := os.WriteFile(r.policy, []byte(policy), 0o600); err != nil {
		return err
	}
	dir := r.bin
	if dir == "" {
		dir = r.work
	}
	r.hub, r.device, r.simulator = filepath.Join(dir, "flotilla-hub"), filepath.Join(dir, "flotilla-device"),
		filepath.Join(dir, "flotilla-simulate")
	if r.bin != "" {
		return nil
	}
	if err := goBuild(ctx, r.hub, "flotilla.dev/hub"); err != nil {
		return err
	}
	if err := goBuild(ctx, r.simulator, "flotilla.dev/device/simulate"); err != nil {
		return err
	}
	return goBuild(ctx, r.device, "flotilla.dev/device")
}

// goBuild builds a static program of this repository.
func goBuild(ctx context.Context, to, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	_, err := output(cmd)
	return err
}

// environment returns this process's environment without the programs' settings, and with a home
// for kubectl's cache.
func (r *run) environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "FLOTILLA_") && !strings.HasPrefix(e, "HOME=") && !strings.HasPrefix(e, "KUBECONFIG=") {
			env = append(env, e)
		}
	}
	return append(env, "HOME="+r.work)
}

// all runs the chosen specs. Every lane has its own fleet, and lanes run concurrently.
func (r *run) all(ctx context.Context, specs []*spec) error {
	lanes := map[lane][]*spec{}
	for _, s := range specs {
		if s.chosen {
			lanes[s.lane] = append(lanes[s.lane], s)
		}
	}
	if len(lanes) == 0 {
		return fmt.Errorf("no claimed spec matches -focus %s", r.focus)
	}
	socket := ""
	if len(lanes[engine])+len(lanes[engineOne])+len(lanes[engineSerial]) > 0 {
		var err error
		if socket, err = r.socket(); err != nil {
			return err
		}
		fmt.Printf("building the images, and importing them into %s\n", socket)
		if err := r.images(ctx, socket); err != nil {
			return err
		}
	}
	// Lanes start one after the other, and run concurrently.
	var fleets []*fleet
	defer func() {
		for _, f := range fleets {
			if err := f.end(); err != nil {
				fmt.Fprintln(os.Stderr, "conformance: end", f.name+":", err)
			}
		}
	}()
	var g errgroup.Group
	start := func(f *fleet, err error, steps ...func() error) error {
		if f != nil {
			fleets = append(fleets, f)
		}
		if err == nil {
			g.Go(func() error {
				for _, step := range steps {
					if err := step(); err != nil {
						return err
					}
				}
				return nil
			})
		}
		return err
	}
	err := func() error {
		if socket != "" {
			f, err := r.agents(ctx, "engine", socket)
			if err := start(f, err,
				func() error { return r.lane(ctx, f, engine, lanes[engine], r.procs) },
				func() error {
					return f.alone(ctx, func() error { return r.lane(ctx, f, engineOne, lanes[engineOne], r.procs) })
				},
				func() error { return r.lane(ctx, f, engineSerial, lanes[engineSerial], 1) }); err != nil {
				return err
			}
		}
		for _, l := range []lane{workloads, placement, api} {
			if len(lanes[l]) == 0 {
				continue
			}
			procs := 1
			if l == api {
				procs = r.procs
			}
			f, err := r.simulate(ctx, string(l))
			if err := start(f, err, func() error { return r.lane(ctx, f, l, lanes[l], procs) }); err != nil {
				return err
			}
		}
		return nil
	}()
	err = errors.Join(err, g.Wait())
	if r.keep && ctx.Err() == nil {
		for _, f := range fleets {
			fmt.Printf("%s --kubeconfig %s get nodes\n", r.suite.program("kubectl"), f.kubeconfig)
		}
		fmt.Println("until Ctrl-C")
		<-ctx.Done()
		return err
	}
	return err
}

// socket returns the path of the engine's socket.
func (r *run) socket() (string, error) {
	known := map[string]string{"docker": "/var/run/docker.sock", "podman": "/run/podman/podman.sock"}
	path, ok := known[r.engine]
	if !ok {
		return "", fmt.Errorf("-engine: unknown engine %s; use docker or podman", r.engine)
	}
	variable := strings.ToUpper(r.engine) + "_SOCK"
	if s := os.Getenv(variable); s != "" {
		path = s
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w; start %s, or set its socket with %s (.ci/services starts both)", err, r.engine,
			variable)
	}
	return path, nil
}

// longest is the time limit of a lane. A killed run of several processes leaves no report.
const longest = 2 * time.Hour

// lane runs the specs of a lane on its fleet, and records their results.
func (r *run) lane(ctx context.Context, f *fleet, l lane, specs []*spec, procs int) error {
	if len(specs) == 0 {
		return nil
	}
	began := time.Now()
	fmt.Printf("%-14s %d specs, %d at once\n", l, len(specs), procs)
	if l == placement {
		for i := range specs {
			if err := r.suiteOf(ctx, f, fmt.Sprint(l, "-", i+1), specs[i:i+1], procs); err != nil {
				return err
			}
			if err := f.emptied(ctx); err != nil {
				return err
			}
		}
	} else if err := r.suiteOf(ctx, f, string(l), specs, procs); err != nil {
		return err
	}
	passed := 0
	for _, s := range specs {
		if s.state == "passed" {
			passed++
		}
	}
	fmt.Printf("%-14s %d of %d passed, %s\n", l, passed, len(specs), time.Since(began).Round(time.Second))
	return nil
}

// emptied waits until the pods of earlier specs have gone, because the suite does not wait.
// Terminating pods still use the nodes' resources, so new pods would have to preempt each other,
// with any scheduler.
func (f *fleet) emptied(ctx context.Context) error {
	_, err := f.kubectl(ctx, "wait", "--for=delete", "namespaces", "--selector=e2e-framework", "--timeout=5m")
	return err
}

// suiteOf runs specs in one run of the suite, and records their results.
func (r *run) suiteOf(ctx context.Context, f *fleet, called string, specs []*spec, procs int) error {
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = regexp.QuoteMeta(s.name)
	}
	log, err := os.Create(filepath.Join(r.logs, called+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	file := called + ".json"
	cmd, err := guarded(ctx, r.suite.program("ginkgo"), "run", fmt.Sprintf("--procs=%d", procs),
		"--timeout="+longest.String(), "--no-color", "--succinct",
		"--poll-progress-after=0", "--output-dir="+r.logs, "--json-report="+file, "--focus="+strings.Join(names, "|"),
		r.suite.program("e2e.test"), "--",
		"--kubeconfig="+f.kubeconfig, "--kubectl-path="+r.suite.program("kubectl"), "--provider=skeleton",
		fmt.Sprintf("--num-nodes=%d", f.nodes), "--allowed-not-ready-nodes=1", "--dump-logs-on-failure=false")
	if err != nil {
		return err
	}
	cmd.Dir, cmd.Env = f.dir, r.environment()
	cmd.Stdout, cmd.Stderr = log, log
	ended := finish(cmd) // the report shows failed specs too
	reports, err := read(filepath.Join(r.logs, file))
	if err != nil {
		return fmt.Errorf("%s: the suite left no report (%w, %w): see %s", called, ended, err, log.Name())
	}
	byName := map[string]report{}
	for _, rep := range reports {
		if rep.LeafNodeType == "It" && rep.State != "skipped" {
			byName[rep.name()] = rep
		}
	}
	for _, s := range specs {
		rep := byName[s.name]
		s.state, s.took = rep.State, time.Duration(rep.RunTime)
		if s.why = rep.Failure.Message; s.state == "" {
			s.state, s.why = "not run", "see "+log.Name()
		}
	}
	return nil
}
