package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A hub that was restored from an older backup wants less than it wanted. It tells no
// device so until an administrator has looked, not even over a restart.
func TestAnOldBackup(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	h, d, _, _ := withSign(t, e)
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
				return fmt.Errorf("the newest is of %s", h.lastSeen(d.node))
			}
			return h.ready(d.node, corev1.ConditionTrue)
		})
		if dep, err := h.deployment("sign"); err != nil || *dep.Spec.Replicas != 2 {
			t.Fatalf("the restored hub does not want what the backup says: %v, %v", dep.Spec.Replicas, err)
		}
		for end := time.Now().Add(3 * grace); time.Now().Before(end); time.Sleep(time.Second) {
			e.same(t, d.node, before, start)
		}
		if r := (command{path: hubProgram, args: []string{"doctor", "--data-dir", h.dir}}).run(t); !strings.Contains(r.out, "resume") {
			t.Errorf("after %s doctor does not name resume:\n%s%s", start, r.out, r.err)
		}
		if start == "the start after the restore" {
			h.kill()
		}
	}
	said := output(t, hubProgram, "resume", "--data-dir", h.dir)
	began := time.Now()
	h.runsOn(d, 2)
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	seen(t, fmt.Sprintf("four containers ran on for %s and over a restart; then %q, and %.1f s later two ran", 6*grace, strings.TrimSpace(said), time.Since(began).Seconds()))
}
