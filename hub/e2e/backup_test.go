package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/join"
)

// A hub restored from an older backup has an older desired state. Until an administrator runs
// resume, it sends that state to no device, even after a restart.
func TestAnOldBackup(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	h, d, _, _ := hubWithTwoPods(t, e)
	backup := filepath.Join(t.TempDir(), "old.db")
	hubProgram := program(t, "hub", here)
	output(t, hubProgram, "backup", "--data-dir", h.dir, backup)
	h.kubectl("scale", "deployment/sign", "--replicas=4")
	h.kubectl("create", "configmap", "newer")
	await(t, "four replicas are available", patience, func() error { return h.available("sign", 4) })
	h.runsOn(d, 4)
	before, err := e.containers(d.node)
	if err != nil {
		t.Fatal(err)
	}
	h.stop()
	output(t, hubProgram, "restore", "--data-dir", h.dir, backup)
	for _, start := range []string{"the start after the restore", "the next start"} {
		h.start()
		began := time.Now()
		await(t, "the device's lease after "+start, patience, func() error {
			if !h.lastSeen(d.node).After(began) {
				return fmt.Errorf("the newest lease is from %s", h.lastSeen(d.node))
			}
			return h.ready(d.node, corev1.ConditionTrue)
		})
		if dep, err := h.deployment("sign"); err != nil || *dep.Spec.Replicas != 2 {
			t.Fatalf("the restored hub must have the backup's desired state: %v, %v", dep.Spec.Replicas, err)
		}
		for end := time.Now().Add(3 * grace); time.Now().Before(end); time.Sleep(time.Second) {
			e.same(t, d.node, before, start)
		}
		if r := (command{path: hubProgram, args: []string{"doctor", "--data-dir", h.dir}}).run(t); !strings.Contains(r.out,
			"resume") {
			t.Errorf("after %s doctor must name resume:\n%s%s", start, r.out, r.err)
		}
		if start == "the start after the restore" {
			h.kill()
		}
	}
	printed := output(t, hubProgram, "resume", "--data-dir", h.dir)
	began := time.Now()
	h.runsOn(d, 2)
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	seen(t, fmt.Sprintf("four containers ran on for %s and over a restart; then %q, and %.1f s later two ran", 6*grace,
		strings.TrimSpace(printed), time.Since(began).Seconds()))
}

// The same rule holds for several hubs. The leader is killed, its database is restored, and then a
// standby takes over with the restored state. The shared authority is not restored, because devices
// have certificates of a root that the backup lacks.
func TestARestoreWithAHubOnStandby(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	c := newHubGroup(t, 2)
	a, standbys := c.leader()
	b := standbys[0]
	d := a.join("oslo", e)
	d.run()
	a.allReady(1)
	a.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return a.available("sign", 2) })
	backup := filepath.Join(t.TempDir(), "old.db")
	hubProgram := program(t, "hub", here)
	output(t, hubProgram, "backup", "--data-dir", a.dir, backup)
	output(t, hubProgram, "ca", "rotate", "--root", "--data-dir", a.dir)
	await(t, d.node+" trusts the new root", patience, func() error {
		id, err := join.Load(d.dir)
		if err == nil && strings.Count(id.CA, "BEGIN") != 2 {
			err = errors.New("the device does not trust the new root")
		}
		return err
	})
	a.kubectl("scale", "deployment/sign", "--replicas=4")
	a.kubectl("create", "configmap", "newer")
	await(t, "four replicas are available", patience, func() error { return a.available("sign", 4) })
	a.runsOn(d, 4)
	before, err := e.containers(d.node)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the standby has all objects", patience,
		func() error { _, err := b.get("/api/v1/namespaces/default/configmaps/newer"); return err })
	a.kill()
	output(t, hubProgram, "restore", "--data-dir", a.dir, backup)
	if next, _ := c.leader(); next != b {
		t.Fatal("the standby must lead after the kill")
	}
	began := time.Now()
	await(t, "the device's lease", patience, func() error {
		if !b.lastSeen(d.node).After(began) {
			return fmt.Errorf("the newest lease is from %s", b.lastSeen(d.node))
		}
		return b.ready(d.node, corev1.ConditionTrue)
	})
	if dep, err := b.deployment("sign"); err != nil || *dep.Spec.Replicas != 2 {
		t.Fatalf("the new leader must have the backup's desired state: %+v, %v", dep, err)
	}
	if _, err := b.get("/api/v1/namespaces/default/configmaps/newer"); err == nil {
		t.Error("the new leader must not have objects that the backup lacks")
	}
	for end := time.Now().Add(3 * grace); time.Now().Before(end); time.Sleep(time.Second) {
		e.same(t, d.node, before, "the restore")
	}
	a.start() // as a standby
	if r := (command{path: hubProgram, args: []string{"resume", "--data-dir", a.dir}}).run(t); !strings.Contains(r.err,
		"is a standby") {
		t.Errorf("resume at the standby prints %s%s, want a refusal", r.out, r.err)
	}
	printed := output(t, hubProgram, "resume", "--data-dir", b.dir)
	b.runsOn(d, 2)
	await(t, "both replicas are available", patience, func() error { return b.available("sign", 2) })
	seen(t, fmt.Sprintf("the standby led with the restored state; four containers ran on for %s; then %q, and two ran",
		3*grace, strings.TrimSpace(printed)))
}
