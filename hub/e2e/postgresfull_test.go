package e2e

import (
	"context"
	crand "crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/postgrestest"
)

// The disk with PostgreSQL's log is full, and the server ends and cannot start. The hub still
// answers reads, and answers writes with the cause and the next step. When the disk has space
// again, all acknowledged writes are there.
func TestPostgresWithoutSpaceForItsLog(t *testing.T) {
	t.Parallel()
	long(t)
	disk := filepath.Join(t.TempDir(), "disk")
	smallDisk(t, disk, "96m")
	for at := disk; at != os.TempDir() && at != "/"; at = filepath.Dir(at) { // PostgreSQL's user needs access
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	server := postgrestest.Make(t, "", "fsync=on", "full_page_writes=on", "max_wal_size=32MB", "min_wal_size=4MB")
	log := filepath.Join(server.Dir, "pg_wal") // becomes a link to the small disk
	away, err := filepath.EvalSymlinks(log)
	if err == nil {
		err = os.Remove(log)
	}
	small := filepath.Join(disk, "wal")
	if err == nil {
		err = os.Symlink(small, log)
	}
	if err != nil {
		t.Fatal(err)
	}
	if printed, err := exec.Command("cp", "-a", away, small).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	server.Run()
	h := newHub(t, "--database", server.Database(), "--node-monitor-grace-period", "40s")
	h.simulate(4, 2)
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before := h.lives()

	n := &ackLog{counts: map[string]int{}, deleted: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var g sync.WaitGroup
	for w := range 3 {
		g.Go(func() { h.write(ctx, n, w) })
	}
	await(t, "some writes are acknowledged", patience, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.acks < 30 {
			return fmt.Errorf("%d are, want 30", n.acks)
		}
		return nil
	})
	full := filler(t, disk)
	refused := map[string]int{} // refusals by message
	big := func(i int) error {
		name := fmt.Sprintf("pad-%04d", i)
		pad := make([]byte, 135<<10) // PostgreSQL does not free the space of these
		_, _ = crand.Read(pad)
		body, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": name}, "data": map[string]string{"count": "1", "pad": base64.StdEncoding.EncodeToString(pad)}})
		_, err := h.ask(ctx, http.MethodPost, "/api/v1/namespaces/default/configmaps", "application/json", body)
		if err == nil {
			n.note(name, 1)
		}
		return err
	}
	for i, end := 0, time.Now().Add(40*time.Second); time.Now().Before(end); i++ {
		var r refusal
		if err := big(i); errors.As(err, &r) {
			var status struct{ Message string }
			_ = json.Unmarshal([]byte(r.text), &status) // status is checked below
			refused[fmt.Sprintf("%d %s", r.code, status.Message)]++
			if r.code != http.StatusInsufficientStorage && r.code != http.StatusServiceUnavailable &&
				r.code != http.StatusGatewayTimeout {
				t.Errorf("write without space for the log: %d, want 503, 504 or 507: %s", r.code, r.text)
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	if !strings.Contains(server.Log(), "PANIC") {
		t.Errorf("the server must end without space for its log, as the manual says\n%s", tail(server.Log(), 20))
	}
	for printed, times := range refused {
		t.Logf("%d times: %s", times, printed)
	}
	if len(refused) == 0 {
		t.Error("no write was refused")
	}
	for _, page := range []string{"/healthz", "/api/v1/pods", "/api/v1/nodes"} {
		if _, err := h.get(page); err != nil {
			t.Errorf("read without a database must succeed: %s: %v", page, err)
		}
	}
	doctor := command{path: program(t, "hub", here), args: []string{"doctor", "--data-dir", h.dir}}.run(t)
	if !strings.Contains(doctor.out, "FAIL  database") || !strings.Contains(doctor.out, "its disk has space") {
		t.Errorf("doctor must name the disk and the log:\n%s%s", doctor.out, doctor.err)
	}
	t.Log(doctor.out)
	if err := os.Remove(full); err != nil {
		t.Fatal(err)
	}
	server.Kill() // it may still run
	server.Run()
	began := time.Now()
	await(t, "the hub writes again", patience, func() error {
		_, err := h.ask(ctx, http.MethodPatch, "/api/v1/namespaces/default", "application/merge-patch+json",
			[]byte(`{"metadata":{"annotations":{"a":"b"}}}`))
		return err
	})
	took := time.Since(began)
	cancel()
	g.Wait()
	if h.ended() {
		t.Fatalf("the hub has exited: %s", tail(h.output.String(), 10))
	}
	h.checkNotes(n)
	h.kill()
	h.start()
	h.checkNotes(n)
	h.allReady(4)
	if events := h.kubectl("get", "events", "-A"); strings.Contains(events, "NodeNotReady") {
		t.Errorf("a node became NotReady while the database had no space:\n%s", events)
	}
	await(t, "every device reports its pods", patience, func() error { return h.available("sign", 2) })
	if after := h.lives(); !slices.Equal(before, after) {
		t.Errorf("containers before:\n%v\nafter:\n%v", before, after)
	}
	seen(t, fmt.Sprintf("PostgreSQL ended without space for its log; none of %d acknowledged writes lost, the hub "+
		"wrote again %.1f s after there was space", n.acks, took.Seconds()))
}
