package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// signYAML sets no tolerations, so its pods stay for five minutes on a lost node.
const signYAML = `apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {greeting: "hello from the hub"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: sign}
spec:
  replicas: 2
  selector: {matchLabels: {app: sign}}
  template:
    metadata: {labels: {app: sign}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      - name: main
        image: flotilla.test/tool:1
        imagePullPolicy: IfNotPresent
        args: [env, GREETING, then, wait]
        env:
        - {name: GREETING, valueFrom: {configMapKeyRef: {name: words, key: greeting}}}
`

// Agent, hub and device restart or are killed, and the containers must not restart. Then the
// containers are removed while the hub is stopped.
func TestRestarts(t *testing.T) {
	engines(t, func(t *testing.T, e *engine) {
		h := newHub(t)
		d := h.join("bergen", e)
		d.run()
		await(t, "the node is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
		h.kubectlWith(signYAML, "apply", "-f", "-")
		await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
		before, err := e.containers(d.node)
		if err != nil || len(before) < 2 {
			t.Fatalf("%d containers, %v", len(before), err)
		}
		untouched := func(after string) {
			t.Helper()
			now, err := e.containers(d.node)
			if err != nil || !slices.Equal(before, now) {
				t.Fatalf("containers after %s:\n%v\nbefore:\n%v (%v)", after, now, before, err)
			}
		}
		reported := func() {
			t.Helper()
			began := time.Now()
			await(t, "the device reports", patience, func() error {
				if err := errors.Join(h.ready(d.node, corev1.ConditionTrue), h.available("sign", 2)); err != nil {
					return err
				}
				if !h.lastSeen(d.node).After(began) {
					return errors.New("no lease yet")
				}
				return nil
			})
		}

		d.stop()
		untouched("a stop of the agent")
		await(t, "the hub notices the stop", patience, func() error { return h.ready(d.node, corev1.ConditionFalse) })
		d.run()
		reported()
		untouched("a normal restart of the agent")

		d.kill()
		untouched("a kill of the agent")
		d.run()
		reported()
		untouched("a kill and a start of the agent")

		h.kill()
		time.Sleep(2 * leaseInterval) // long enough for the device to notice
		untouched("a kill of the hub")
		h.start()
		reported()
		untouched("a kill and a start of the hub")

		// The device reboots while the hub is stopped.
		h.stop()
		d.kill()
		for i, c := range before {
			path := "/containers/" + c.ID
			if i%2 == 0 { // a reboot removes the containers of some runtimes, and stops those of others
				_, err = e.ask(http.MethodDelete, path+"?force=1&v=1")
			} else {
				_, err = e.ask(http.MethodPost, path+"/kill")
			}
			if err != nil && !strings.Contains(err.Error(), "is not running") {
				t.Fatal(err)
			}
		}
		d.run()
		h.runsOn(d, 2)
		list, err := e.running(d.node)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			await(t, "the container prints the value of the config map", patience, func() error {
				log, err := e.ask(http.MethodGet, "/containers/"+c.ID+"/logs?stdout=1")
				if err == nil && !strings.Contains(string(log), "hello from the hub") {
					err = fmt.Errorf("the container printed %q", log)
				}
				return err
			})
		}
		h.start()
		reported()
		if out := h.kubectl("logs", "deployment/sign"); !strings.Contains(out, "hello from the hub") {
			t.Errorf("kubectl logs printed %q, want the config map's value", out)
		}
		if out := output(t, program(t, "device", here), "status", "--state-dir", d.dir); !strings.Contains(out,
			"connected") || !strings.Contains(out, "sign-") {
			t.Errorf("flotilla-device status must print the connection and the pods:\n%s", out)
		}

		// The device leaves the fleet.
		d.stop()
		output(t, program(t, "device", here), "reset", "--yes", "--state-dir", d.dir, "--engine", e.socket)
		if left, err := e.containers(d.node); err != nil || len(left) > 0 {
			t.Errorf("reset leaves the containers %v, %v", left, err)
		}
		if left, _ := filepath.Glob(filepath.Join(d.dir, "*")); len(left) != 1 || filepath.Base(left[0]) != "lock" {
			t.Errorf("reset leaves the files %v, want only lock", left)
		}
	})
}

// Whatever a power cut leaves of the agent's files, the agent starts, keeps its containers and
// recovers.
func TestAfterDamage(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	h := newHub(t)
	d := h.join("oslo", e)
	d.run()
	await(t, "the node is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before, err := e.containers(d.node)
	if err != nil {
		t.Fatal(err)
	}
	both := []string{filepath.Join(d.dir, "desired.0.state"), filepath.Join(d.dir, "desired.1.state")}
	for _, c := range []struct {
		name   string
		damage func(whole []byte) []byte
	}{
		{"an empty file", func([]byte) []byte { return nil }},
		{"half a line", func(whole []byte) []byte { return whole[:20] }},
		{"one flipped bit", func(whole []byte) []byte { return append([]byte{whole[0] ^ 1}, whole[1:]...) }},
	} {
		d.kill()
		for _, copied := range both { // the agent's own tests damage one copy
			whole, err := os.ReadFile(copied)
			if errors.Is(err, os.ErrNotExist) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(copied, c.damage(whole), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		d.run()
		await(t, "the agent has its desired state after "+c.name, patience, func() error {
			if !h.lastSeen(d.node).After(began) {
				return errors.New("no lease yet")
			}
			if !slices.ContainsFunc(both, func(copied string) bool {
				now, err := os.ReadFile(copied)
				return err == nil && strings.HasPrefix(string(now), "flotilla-slot ") && strings.Contains(string(now), "sign-")
			}) {
				return errors.New("the file is missing")
			}
			return errors.Join(h.ready(d.node, corev1.ConditionTrue), h.available("sign", 2))
		})
		t.Logf("recovered %s after the agent's start with %s", time.Since(began).Round(time.Millisecond), c.name)
		if now, err := e.containers(d.node); err != nil || !slices.Equal(before, now) {
			t.Errorf("containers after %s:\n%v\nbefore:\n%v (%v)", c.name, now, before, err)
		}
		// Two empty files look like those of a device that has never had a desired state.
		if printed := d.output.String(); c.name != "an empty file" && !strings.Contains(printed, "unreadable") {
			t.Errorf("after %s the agent must report its unreadable files:\n%s", c.name, tail(printed, 10))
		}
	}
}
