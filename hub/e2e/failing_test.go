package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The hub's disk fails or becomes read-only for a while, and its database is moved away. The hub
// answers reads and leases, answers writes with 503 and the next step, and recovers without a
// restart.
func TestAFailingDiskOfTheHub(t *testing.T) {
	t.Parallel()
	strace, err := exec.LookPath("strace")
	if err != nil {
		need(t, "needs strace, which makes the hub's writes fail: %v", err)
	}
	h := newHub(t)
	h.simulate(2, 1)
	create := func(name string) error {
		b, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
			"data": map[string]string{"count": "1"}})
		_, err := h.ask(context.Background(), http.MethodPost, "/api/v1/namespaces/default/configmaps", "application/json", b)
		return err
	}
	n := &ackLog{counts: map[string]int{}, deleted: map[string]bool{}}
	keep := func(name string) {
		t.Helper()
		await(t, name+" is accepted", patience, func() error { return create(name) })
		n.note(name, 1)
	}
	refused := func(when, name string) {
		t.Helper()
		var r refusal
		if err := create(name); !errors.As(err, &r) || r.code != http.StatusServiceUnavailable {
			t.Errorf("%s: create: %v, want 503", when, err)
		}
	}
	alive := func(when string) {
		t.Helper()
		for end := time.Now().Add(grace + 2*time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
			for node := 1; node <= 2; node++ {
				if err := h.ready(fmt.Sprintf("sim-%04d", node), corev1.ConditionTrue); err != nil {
					t.Fatalf("%s: %v", when, err)
				}
			}
		}
		h.checkNotes(n)
		if _, err := h.get("/healthz"); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	keep("before")
	file := filepath.Join(h.dir, "hub.db")
	for i, fault := range []string{"pwrite64:error=EROFS", "pwrite64:error=EIO", "fsync,fdatasync:error=EIO"} {
		printed := len(h.output.String())
		tracer := start(t, strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64,fsync,fdatasync",
			"-e", "inject="+fault,
			"-P", file, "-P", file+"-wal", "-p", strconv.Itoa(h.cmd.Process.Pid))
		await(t, "strace traces every thread of the hub", patience, func() error { return traced(h.cmd.Process.Pid) })
		refused(fault, "during")
		alive(fault)
		refused(fault, "still")
		reported := h.output.String()[printed:]
		if i == 0 && (!strings.Contains(reported, "fails (see") || !strings.Contains(reported, file) || !strings.Contains(reported, "dmesg")) { // later the hub logs this at most once a minute
			t.Errorf("%s: the log must name the fault, the file and dmesg:\n%s", fault, reported)
		}
		if lines := strings.Count(reported, "\n"); lines > 20 {
			t.Errorf("%s: %d lines of log in %s, want at most 20:\n%s", fault, lines, grace, tail(reported, 30))
		}
		tracer.end(syscall.SIGTERM)
		keep("after-" + strings.ToLower(strings.NewReplacer(":", "-", "=", "-", ",", "-").Replace(fault)))
	}
	if err := os.Rename(file, file+".bak"); err != nil {
		t.Fatal(err)
	}
	refused("its database was moved", "moved")
	alive("its database was moved")
	if printed := h.output.String(); !strings.Contains(printed, "MOVED OR REMOVED") {
		t.Errorf("the log must report the moved database:\n%s", tail(printed, 5))
	}
	if err := os.Rename(file+".bak", file); err != nil {
		t.Fatal(err)
	}
	keep("back")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	refused("its database was removed", "removed")
	h.kill()
	h.start()
	h.allReady(2)
	h.checkNotes(n)
	keep("new")
	h.kill()
	sound(t, h.dir)
	seen(t, "answered 503 while writes and syncs failed and while its database was away; 2 nodes stayed ready, nothing "+
		"acknowledged is lost")
}

// traced returns nil if every thread of a process has a tracer.
func traced(pid int) error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		return fmt.Errorf("the process has no threads: %v", err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err == nil && strings.Contains(string(text), "TracerPid:\t0\n") {
			return errors.New("a thread is not traced yet")
		}
	}
	return nil
}
