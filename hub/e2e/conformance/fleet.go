package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"flotilla.dev/shared/loopback"
)

// patience is the time limit of a start or a normal end, also on a busy machine.
const patience = 3 * time.Minute

// policy allows the hub and the devices everything that the suite needs.
const policy = `privileged: true
hostNetwork: true
hostPID: true
hostPaths: [/]
capabilities: [ALL]
allowNewPrivileges: true
`

// systemPods run on every node. Serial specs wait for pods with these three names for a minute.
const systemPods = `{"apiVersion": "apps/v1", "kind": "DaemonSet",
"metadata": {"name": "kube-proxy-fluentd-elasticsearch-node-problem-detector", "namespace": "kube-system"},
"spec": {"selector": {"matchLabels": {"app": "kube-proxy"}}, "template": {"metadata": {"labels": {"app": "kube-proxy"}},
"spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10.2"}]}}}}`

// A fleet is a hub with its devices.
type fleet struct {
	r          *run
	name, dir  string
	https      string
	kubeconfig string
	nodes      int
	children   []*child
	joined     []string // state directories of agents with containers
	socket     string   // socket of the agents' engine
}

// fleet starts a hub with further arguments.
func (r *run) fleet(ctx context.Context, name string, args ...string) (*fleet, error) {
	f := &fleet{r: r, name: name, dir: filepath.Join(r.work, name)}
	f.kubeconfig = filepath.Join(f.dir, "kubeconfig")
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	var mqtt string
	if f.https, err = loopback.Address(); err == nil {
		mqtt, err = loopback.Address()
	}
	if err != nil {
		return nil, err
	}
	args = append([]string{"serve", "--data-dir", f.data(), "--https-listen", f.https, "--mqtt-listen", mqtt,
		"--advertise-address", "127.0.0.1", "--policy", r.policy}, args...)
	hub, err := f.begin("hub", r.hub, args...)
	if err != nil {
		return f, err
	}
	err = until(ctx, "the hub of "+name, func() error {
		if hub.ended() {
			return fmt.Errorf("the hub has exited: %s", hub.tail())
		}
		text, err := output(exec.CommandContext(ctx, r.hub, "kubeconfig", "--data-dir", f.data(), "--ttl", "24h"))
		if err == nil {
			err = os.WriteFile(f.kubeconfig, text, 0o600)
		}
		if err == nil {
			_, err = f.kubectl(ctx, "get", "--raw", "/readyz")
		}
		return err
	})
	return f, err
}

func (f *fleet) data() string { return filepath.Join(f.dir, "hub") }

// simulate adds devices with engines in memory.
func (r *run) simulate(ctx context.Context, name string) (*fleet, error) {
	dev, err := loopback.Address()
	if err != nil {
		return nil, err
	}
	f, err := r.fleet(ctx, name, "--mqtt-dev-listen", dev)
	if err != nil {
		return f, err
	}
	f.nodes = 4
	if _, err := f.begin("devices", r.simulator, "--hub", "mqtt://"+dev, "--count", "4", "--sites", "2"); err != nil {
		return f, err
	}
	return f, f.ready(ctx)
}

// agents joins two agents that share an engine, with the commands that a user runs.
func (r *run) agents(ctx context.Context, name, socket string) (*fleet, error) {
	f, err := r.fleet(ctx, name, "--cluster-cidr", r.cidr)
	if err != nil {
		return f, err
	}
	f.nodes, f.socket = 2, socket
	if err := os.WriteFile(filepath.Join(r.work, socketFile), []byte(socket), 0o600); err != nil {
		return f, err
	}
	for i := range f.nodes {
		node := fmt.Sprintf("conformance-%d-%d", os.Getpid(), i+1)
		state := filepath.Join(f.dir, node)
		line, err := output(exec.CommandContext(ctx, r.hub, "token", "create", "--data-dir", f.data(), "--site",
			"conformance"))
		if err != nil {
			return f, err
		}
		words := strings.Fields(string(line)) // the line is: flotilla-device join URL --token TOKEN
		if len(words) < 2 {
			return f, fmt.Errorf("token create printed %q, not a command", line)
		}
		if _, err := output(exec.CommandContext(ctx, r.device,
			append(words[1:], "--state-dir", state, "--node-name", node)...)); err != nil {
			return f, err
		}
		f.joined = append(f.joined, state)
		// The machine has its own work, so a full disk must not make the agents remove images.
		anyDisk := "nodefs.available<0,nodefs.inodesFree<0,imagefs.available<0,imagefs.inodesFree<0"
		if _, err := f.begin(fmt.Sprintf("agent%d", i+1), r.device, "run", "--state-dir", state, "--engine", socket,
			"--policy", r.policy, "--eviction-hard", anyDisk); err != nil {
			return f, err
		}
	}
	return f, f.ready(ctx)
}

// ready waits until every device is a Ready node with its system pods.
func (f *fleet) ready(ctx context.Context) error {
	file := filepath.Join(f.dir, "system.json")
	if err := os.WriteFile(file, []byte(systemPods), 0o600); err != nil {
		return err
	}
	err := until(ctx, "the nodes of "+f.name, func() error {
		text, err := f.kubectl(ctx, "get", "nodes", "-o",
			`jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {end}`)
		if n := strings.Count(string(text), "True"); err == nil && n != f.nodes {
			err = fmt.Errorf("%d of %d nodes are ready", n, f.nodes)
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := f.kubectl(ctx, "apply", "-f", file); err != nil {
		return err
	}
	return until(ctx, "the system pods of "+f.name, func() error {
		text, err := f.kubectl(ctx, "get", "daemonset", "-n", "kube-system", "-o", "json")
		var list struct {
			Items []struct{ Status struct{ NumberReady int } }
		}
		if err == nil {
			err = json.Unmarshal(text, &list)
		}
		if err == nil && (len(list.Items) != 1 || list.Items[0].Status.NumberReady != f.nodes) {
			err = errors.New("the system pods are not ready")
		}
		return err
	})
}

// alone runs do while new pods go to the first node only.
func (f *fleet) alone(ctx context.Context, do func() error) error {
	node := filepath.Base(f.joined[1])
	if _, err := f.kubectl(ctx, "cordon", node); err != nil {
		return err
	}
	err := do()
	_, after := f.kubectl(ctx, "uncordon", node)
	return errors.Join(err, after)
}

// kubectl runs kubectl as the hub's administrator.
func (f *fleet) kubectl(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, f.r.suite.program("kubectl"),
		append([]string{"--kubeconfig", f.kubeconfig}, args...)...)
	cmd.Env = f.r.environment()
	return output(cmd)
}

// end ends the fleet. The agents remove their containers, networks and mounts.
func (f *fleet) end() error {
	var wrong []error
	for i := len(f.children) - 1; i >= 1; i-- {
		wrong = append(wrong, f.children[i].end())
	}
	for _, state := range f.joined {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		_, err := output(exec.CommandContext(ctx, f.r.device, "reset", "--yes", "--state-dir", state, "--engine", f.socket))
		cancel()
		wrong = append(wrong, err)
	}
	if len(f.children) > 0 {
		wrong = append(wrong, f.children[0].end())
	}
	return errors.Join(wrong...)
}

// A child is a program that runs until the end of the fleet.
type child struct {
	cmd  *exec.Cmd
	log  string
	over chan struct{}
}

// begin starts a program of the fleet; the hub is the first. A log file gets its output.
func (f *fleet) begin(name, program string, args ...string) (*child, error) {
	c := &child{cmd: exec.Command(program, args...), log: filepath.Join(f.r.logs, f.name+"."+name+".log"),
		over: make(chan struct{})}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.Env = log, log, f.r.environment()
	// Each child has its own process group, so that they can be ended in order after Ctrl-C. The
	// kernel ends them if this process is killed.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	f.children = append(f.children, c)
	go func() {
		defer close(c.over)
		_ = c.cmd.Wait() // the child's log has the reason of a failure
	}()
	return c, nil
}

func (c *child) ended() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// end stops a child, and fails if the child ends with an error or too late.
func (c *child) end() error {
	if c.ended() {
		return fmt.Errorf("%s exited early: %s", filepath.Base(c.cmd.Path), c.tail())
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // the child may have ended since
	select {
	case <-c.over:
		return nil
	case <-time.After(patience):
		_ = c.cmd.Process.Kill()
		<-c.over
		return fmt.Errorf("%s did not exit %s after SIGTERM", filepath.Base(c.cmd.Path), patience)
	}
}

func (c *child) tail() string {
	text, _ := os.ReadFile(c.log)
	return string(text[max(0, len(text)-500):])
}

// until repeats so until it succeeds or the time limit is over.
func until(ctx context.Context, what string, so func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := so()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, err)
		case <-time.After(300 * time.Millisecond):
		}
	}
}
