package agent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/request/requesttest"
	"flotilla.dev/shared/wire"
)

// notes lists the notes of commands in a state directory.
func notes(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "volatile", "execs", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestARunningCommandHasANote(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(d *device, a *requesttest.Stream)
		want int // number of notes at the end
	}{
		{"the command ends with its client", func(_ *device, a *requesttest.Stream) { close(a.Lost) }, 0},
		{"the command ends with its container", func(d *device, _ *requesttest.Stream) { d.fake.Exit(d.name("web"), 0) }, 0},
		{"the command ends with the agent", func(d *device, _ *requesttest.Stream) { d.end(); d.start() }, 0},
		{"the engine stops, and the command may still run", func(d *device, _ *requesttest.Stream) { d.fake.SetDown(true) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				d.desire(1, makePod("web", "wait"))
				time.Sleep(5 * time.Second)
				a := d.request("r1", interactive("/tool wait"))
				time.Sleep(time.Second)
				if n := len(notes(t, d.dir)); n != 1 {
					t.Fatalf("%d commands have a note while one runs", n)
				}
				c.end(d, a)
				time.Sleep(5 * time.Second)
				if n := len(notes(t, d.dir)); n != c.want {
					t.Errorf("%d commands have a note in the end, want %d", n, c.want)
				}
			})
		})
	}
}

// An agent is killed while a command of the hub runs, for example by the OOM killer. The engine
// keeps the command running, and the next agent ends it. Commands of other clients in the same
// container go on.
func TestRealKilledAgent(t *testing.T) {
	if dir := os.Getenv("FLOTILLA_TEST_DIR"); dir != "" {
		d := &realDevice{t: t, board: newBoard(), socket: os.Getenv("FLOTILLA_TEST_SOCKET"), dir: dir,
			node: os.Getenv("FLOTILLA_TEST_NODE")}
		d.start()
		d.await("the container runs", func() bool { return ready(d.pod("left")) })
		a := d.request(wire.Request{Type: wire.RequestExec, Pod: "uid-left-" + d.node,
			Command: strings.Fields("/tool print ours-" + d.node + " then wait")})
		d.await("the command has begun", func() bool { return a.Stdout() != "" })
		fmt.Println("begun")
		select {} // wait for the kill
	}
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		p := makePod("left", "wait")
		p.UID = types.UID("uid-left-" + d.node)
		p.Spec.TerminationGracePeriodSeconds = new(int64)
		if err := d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{p}}); err != nil {
			t.Fatal(err)
		}
		d.await("the container runs", func() bool { return ready(d.pod("left")) })
		ours, others := "ours-"+d.node, "others-"+d.node
		for _, c := range d.list() {
			if c.Labels[plan.LabelContainer] == "c0" {
				go func() {
					_, _ = d.eng.Exec(t.Context(), c.ID, strings.Fields("/tool print "+others+" then wait"),
						engine.Streams{})
				}()
			}
		}
		d.await("another command runs", func() bool { return runs(others) })
		d.end()

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		agent := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestRealKilledAgent$")
		agent.Env = append(os.Environ(), "FLOTILLA_TEST_DIR="+d.dir, "FLOTILLA_TEST_SOCKET="+socket,
			"FLOTILLA_TEST_NODE="+d.node)
		out, err := agent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "begun"; {
			t.Log(lines.Text())
		}
		if err := agent.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = agent.Wait()
		if n := len(notes(t, d.dir)); n != 1 || !runs(ours) {
			t.Fatalf("the killed agent has left %d notes; its command runs: %v", n, runs(ours))
		}

		d.start()
		d.await("the killed agent's command has ended", func() bool { return !runs(ours) })
		d.await("the command's note is removed", func() bool { return len(notes(t, d.dir)) == 0 })
		if !runs(others) {
			t.Error("the other client's command has ended too")
		}
	})
}
