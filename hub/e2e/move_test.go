package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// A device with containers moves to another hub only on request. The old hub's desired state is
// removed.
func TestADeviceMovesToAnotherHub(t *testing.T) {
	engines(t, func(t *testing.T, e *engine) {
		old, next := newHub(t), newHub(t)
		d := old.join("oslo", e)
		d.run()
		await(t, "the node is ready", patience, func() error { return old.ready(d.node, corev1.ConditionTrue) })
		old.kubectlWith(signYAML, "apply", "-f", "-")
		await(t, "both replicas are available", patience, func() error { return old.available("sign", 2) })
		d.stop()

		move := func(from *hub, more ...string) result {
			t.Helper()
			words := strings.Fields(output(t, program(t, "hub", here), "token", "create", "--data-dir", from.dir,
				"--site", "bergen"))
			return command{path: program(t, "device", here), args: append(append(words[1:], "--state-dir", d.dir, "--engine",
				e.socket), more...)}.run(t)
		}
		for hub, want := range map[*hub]string{next: "the token is for another hub", old: "is already node"} {
			r := move(hub)
			if r.code != 2 || !strings.Contains(r.err, want) || !strings.Contains(r.err, "--forget-workloads") ||
				!strings.Contains(r.err, d.node) {
				t.Errorf("join without --forget-workloads must be refused: code %d, %q", r.code, r.err)
			}
		}
		if r := move(next, "--forget-workloads", "--engine", "/nowhere/engine.sock"); r.code == 0 ||
			!strings.Contains(r.err, "--engine none") {
			t.Errorf("join with a missing engine must be refused: code %d, %q", r.code, r.err)
		}
		if list, err := e.running(d.node); err != nil || len(list) != 2 {
			t.Fatalf("%d containers run after refused joins, %v", len(list), err)
		}

		was := d.node
		d.node += "-moved"
		t.Cleanup(func() { e.remove(t, d.node) })
		r := move(next, "--forget-workloads", "--node-name", d.node)
		if r.code != 0 || strings.Count(r.out, "removed ") < 2 ||
			!strings.Contains(r.out, "This device is node "+d.node+" on site bergen") {
			t.Fatalf("join at the new hub: code %d: %q %q", r.code, r.out, r.err)
		}
		if list, err := e.containers(was); err != nil || len(list) > 0 {
			t.Errorf("containers of the old hub are left: %v, %v", list, err)
		}
		if left, err := filepath.Glob(filepath.Join(d.dir, "desired*")); err != nil || len(left) > 0 {
			t.Errorf("the old hub's desired state is still stored: %v, %v", left, err)
		}
		d.run()
		await(t, "the node is ready on the new hub", patience,
			func() error { return next.ready(d.node, corev1.ConditionTrue) })
		next.kubectlWith(signYAML, "apply", "-f", "-")
		await(t, "the new hub's pods are available", patience, func() error { return next.available("sign", 2) })
		await(t, "only the new hub's pods run", patience, func() error {
			for node, want := range map[string]int{was: 0, d.node: 2} {
				if list, err := e.running(node); err != nil || len(list) != want {
					return fmt.Errorf("%d containers of node %s run, want %d: %v", len(list), node, want, err)
				}
			}
			return nil
		})
	})
}
