package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// smallDisk mounts a small file system over a directory.
func smallDisk(t testing.TB, dir, size string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("flotilla-e2e", dir, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		need(t, "needs root, to mount a small tmpfs as a disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}

// filler fills a disk as another program's log does.
func filler(t testing.TB, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "filler")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, size := range []int{1 << 20, 4 << 10} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return file
}

// Another program fills the hub's disk. The hub answers reads, leases and deletions, and answers
// additions with 507 and the cause. It starts on the full disk, and recovers without a restart.
func TestAFullDiskOfTheHub(t *testing.T) {
	t.Parallel()
	long(t)
	h := &hub{t: t, dir: filepath.Join(t.TempDir(), "disk", "hub"), https: freePort(t), dev: freePort(t)}
	disk := filepath.Dir(h.dir)
	smallDisk(t, disk, "48m")
	h.args = []string{"serve", "--data-dir", h.dir, "--https-listen", h.https, "--mqtt-listen", freePort(t),
		"--mqtt-dev-listen", h.dev,
		"--lease-interval", leaseInterval.String(), "--node-monitor-grace-period", grace.String(),
		"--node-startup-grace-period", (2 * grace).String()}
	h.start()
	h.simulate(6, 2)
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	h.kubectlWith(strings.ReplaceAll(signYAML, "sign", "spare"), "apply", "-f", "-")
	await(t, "both replicas of the spare are available", patience, func() error { return h.available("spare", 2) })
	before := h.lives()

	const base = "/api/v1/namespaces/default/configmaps"
	create := func(i int) error {
		b, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": fmt.Sprintf("pad-%04d", i)},
			"data":     map[string]string{"count": "1", "pad": strings.Repeat("x", 200<<10)}})
		_, err := h.ask(context.Background(), http.MethodPost, base, "application/json", b)
		return err
	}
	n := &ackLog{counts: map[string]int{}, deleted: map[string]bool{}}
	added := 0
	for ; added < 5; added++ {
		if err := create(added); err != nil {
			t.Fatal(err)
		}
		n.note(fmt.Sprintf("pad-%04d", added), 1)
	}
	full := filler(t, disk)
	var refused refusal
	for i := added; ; i++ {
		err := create(i)
		if err == nil && i < 500 {
			n.note(fmt.Sprintf("pad-%04d", i), 1)
			added++
			continue
		}
		if !errors.As(err, &refused) || refused.code != http.StatusInsufficientStorage ||
			!strings.Contains(refused.text, "full") {
			t.Fatalf("create on a full disk: %v, want 507 and the cause", err)
		}
		break
	}
	alive := func(when string) {
		t.Helper()
		for end := time.Now().Add(2 * grace); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			for node := 1; node <= 6; node++ {
				if err := h.ready(fmt.Sprintf("sim-%04d", node), corev1.ConditionTrue); err != nil {
					t.Fatalf("%s: %v", when, err)
				}
			}
		}
		if age := time.Since(h.lastSeen("sim-0001")); age > grace {
			t.Errorf("%s: the newest lease is %s old, more than the grace period", when, age)
		}
		h.checkNotes(n)
		for _, page := range []string{"/healthz", "/metrics", "/api/v1/pods"} {
			if _, err := h.get(page); err != nil {
				t.Errorf("%s: %s: %v", when, page, err)
			}
		}
	}
	alive("on a full disk")
	// The hub's own additions wait; its deletions continue.
	h.kubectl("scale", "deployment", "sign", "--replicas=3")
	h.kubectl("delete", "deployment", "spare", "--wait=false")
	await(t, "the pods of a deleted workload are removed", patience, func() error {
		b, err := h.get("/api/v1/namespaces/default/pods?labelSelector=app%3Dspare")
		if err == nil && strings.Contains(string(b), `"name":"spare-`) {
			return errors.New("pods are left")
		}
		return err
	})
	if _, err := h.get("/readyz"); err == nil || !strings.Contains(err.Error(), "disk") {
		t.Errorf("/readyz on a full disk: %v, want the cause", err)
	}
	h.kill()
	began := time.Now()
	h.start()
	started := time.Since(began)
	h.allReady(6)
	alive("started on a full disk")
	if err := create(9000); !errors.As(err, &refused) || refused.code != http.StatusInsufficientStorage {
		t.Errorf("create after a start on a full disk: %v, want 507", err)
	}
	for i := range 3 { // users can still delete objects
		name := fmt.Sprintf("pad-%04d", i)
		if _, err := h.ask(context.Background(), http.MethodDelete, base+"/"+name, "", nil); err != nil {
			t.Errorf("deleting on a full disk must succeed: %v", err)
			continue
		}
		n.gone(name)
	}
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	await(t, "creates succeed once there is space", patience, func() error { return create(9001) })
	healed := time.Since(began)
	n.note("pad-9001", 1)
	h.checkNotes(n)
	h.kill()
	sound(t, h.dir)
	h.start()
	h.allReady(6)
	h.checkNotes(n)
	await(t, "every device reports its pods", patience, func() error { return h.available("sign", 3) })
	if after := h.lives(); slices.ContainsFunc(before, func(life string) bool { return !slices.Contains(after, life) }) {
		t.Errorf("containers before:\n%v\nafter:\n%v", before, after)
	}
	seen(t, fmt.Sprintf("answered 507, deleted, restarted on the full disk in %.1f s; 6 nodes stayed ready; created "+
		"objects %.1f s after the disk had space; database sound", started.Seconds(), healed.Seconds()))
}

// A device with a full or read-only state directory reports it, and keeps its lease and its
// containers. It applies the desired state as soon as it can.
func TestAFullDiskOfTheDevice(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	h := newHub(t)
	d := h.join("oslo", e)
	whole, err := os.ReadFile(filepath.Join(d.dir, "identity.json"))
	if err != nil {
		t.Fatal(err)
	}
	smallDisk(t, d.dir, "512m") // the agent starts new containers only if more than half of the disk is free
	if err := os.WriteFile(filepath.Join(d.dir, "identity.json"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	d.run()
	await(t, "the node is ready", patience, func() error { return h.ready(d.node, corev1.ConditionTrue) })
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before, err := e.containers(d.node)
	if err != nil {
		t.Fatal(err)
	}
	remount := func(flags uintptr) {
		t.Helper()
		if err := syscall.Mount("", d.dir, "", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	var figures []string
	for _, c := range []struct {
		name        string
		spoil, mend func()
		storesNext  bool // whether the next desired state can be stored: a full disk has space reserved for it
		ready       corev1.ConditionStatus
	}{
		{"full", func() { filler(t, d.dir) }, func() { _ = os.Remove(filepath.Join(d.dir, "filler")) }, true, corev1.ConditionTrue},
		{"read-only", func() { // the kernel makes open files read-only only if the disk fails
			d.kill()
			remount(syscall.MS_RDONLY)
			d.run()
		}, func() { // a new process, since a running agent checks its disks only every five minutes
			d.kill()
			remount(0)
			d.run()
		}, false, corev1.ConditionFalse},
	} {
		c.spoil()
		h.kubectl("patch", "configmap", "words", "-p", fmt.Sprintf(`{"data":{"disk":"was %s"}}`, c.name))
		if c.storesNext {
			await(t, "the new desired state is stored", patience, func() error { return d.stores("was " + c.name) })
			await(t, "the node reports its full disk", patience,
				func() error { return h.condition(d.node, "OutOfDisk", corev1.ConditionTrue) })
		} else {
			await(t, "the node reports that it cannot store", patience, func() error {
				return errors.Join(h.condition(d.node, "StateStored", corev1.ConditionFalse), h.ready(d.node, c.ready))
			})
		}
		for end := time.Now().Add(2 * grace); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			if age := time.Since(h.lastSeen(d.node)); age > grace {
				t.Fatalf("%s: the lease is %s old, more than the grace period", c.name, age)
			}
			if err := h.ready(d.node, c.ready); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
		e.same(t, d.node, before, "the disk was "+c.name)
		d.kill() // the agent starts on that disk
		d.run()
		began := time.Now()
		await(t, "the agent starts on a disk that is "+c.name, patience, func() error {
			if !h.lastSeen(d.node).After(began) {
				return errors.New("no lease yet")
			}
			return h.ready(d.node, c.ready)
		})
		c.mend()
		began = time.Now()
		await(t, "the desired state is stored after the disk's recovery", patience, func() error {
			return errors.Join(h.condition(d.node, "StateStored", corev1.ConditionTrue), h.ready(d.node, corev1.ConditionTrue),
				h.available("sign", 2), d.stores("was "+c.name))
		})
		figures = append(figures, fmt.Sprintf("%s: recovered %.1f s after its end", c.name, time.Since(began).Seconds()))
		e.same(t, d.node, before, "the end of a disk that was "+c.name)
	}
	seen(t, strings.Join(figures, ", ")+"; leases went on, no container restarted")
}

// stores returns nil when the desired state on the device's disk contains this text.
func (d *device) stores(text string) error {
	for i := range 2 {
		body, err := os.ReadFile(filepath.Join(d.dir, fmt.Sprintf("desired.%d.state", i)))
		if err != nil {
			return err
		}
		if !strings.Contains(string(body), text) {
			return fmt.Errorf("copy %d does not have %q", i, text)
		}
	}
	return nil
}

// condition returns nil when a node's condition has this status.
func (h *hub) condition(node, kind string, want corev1.ConditionStatus) error {
	n, err := h.node(node)
	if err != nil {
		return err
	}
	for _, c := range n.Status.Conditions {
		if string(c.Type) == kind {
			if c.Status != want {
				err = fmt.Errorf("%s is %s: %s: %s", kind, c.Status, c.Reason, c.Message)
			}
			return err
		}
	}
	return fmt.Errorf("condition %s not found", kind)
}
