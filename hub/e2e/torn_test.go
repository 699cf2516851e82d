package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// tears are ways in which a power cut or a worn card damages a file.
var tears = []struct {
	name string
	do   func(file string) error
}{
	{"empty", func(file string) error { return os.Truncate(file, 0) }},
	{"half", func(file string) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.Truncate(file, info.Size()/2)
	}},
	{"flipped", func(file string) error {
		body, err := os.ReadFile(file)
		if err != nil || len(body) == 0 {
			return err
		}
		for i := len(body) / 3; i < min(len(body), len(body)/3+64); i++ {
			body[i] ^= 0x55
		}
		return os.WriteFile(file, body, 0o600)
	}},
	{"zeroes", func(file string) error { // some file systems leave zeros in place of unsynced data
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.WriteFile(file, make([]byte, info.Size()), 0o600)
	}},
	{"gone", os.Remove},
}

// files returns the non-empty files in a directory, by relative path.
func files(t testing.TB, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if info, err := d.Info(); err != nil || info.Size() == 0 || strings.HasSuffix(path, "lock") {
			return err
		}
		name, err := filepath.Rel(dir, path)
		out = append(out, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Whichever file of the hub is damaged, the next start has all data, or logs which data is lost, or
// fails and names the file. It never loses data silently.
func TestTornFilesOfTheHub(t *testing.T) {
	t.Parallel()
	long(t)
	h := newHub(t)
	h.simulate(2, 1)
	h.kubectl("create", "configmap", "before", "--from-literal=count=1")
	h.backedUp(2 * time.Minute)
	h.kubectl("create", "configmap", "after", "--from-literal=count=2")
	h.kill() // a killed hub leaves a log that is not checkpointed, as a power cut does
	original := filepath.Join(t.TempDir(), "kept")
	// a socket cannot be copied
	if err := errors.Join(os.Remove(filepath.Join(h.dir, "hub.sock")),
		os.Remove(filepath.Join(h.dir, "images", "registry.sock"))); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(original, os.DirFS(h.dir)); err != nil {
		t.Fatal(err)
	}
	if err := private(original); err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int{}
	tried := 0
	for _, file := range files(t, original) {
		if strings.HasSuffix(file, "-shm") { // every start creates this file
			continue
		}
		for _, tear := range tears {
			what := fmt.Sprintf("%s %s", file, tear.name)
			tried++
			if err := errors.Join(os.RemoveAll(h.dir), os.CopyFS(h.dir, os.DirFS(original)), private(h.dir),
				tear.do(filepath.Join(h.dir, file))); err != nil {
				t.Fatal(err)
			}
			outcome := h.afterTear(t, file, what)
			outcomes[outcome]++
			t.Logf("%s: %s", what, outcome)
		}
	}
	seen(t, fmt.Sprintf("%d times a torn file: %d starts with everything, %d starts that logged the loss, %d refusals "+
		"that named the file", tried, outcomes[complete], outcomes[lossLogged], outcomes[refuses]))
}

// Outcomes of a start with a damaged file.
const (
	complete     = "started with everything"
	lossLogged   = "logged the loss"
	refuses      = "refused"
	lostSilently = "LOST DATA SILENTLY"
)

// private restores the permissions that os.CopyFS does not keep.
func private(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return os.Chmod(path, 0o600)
	})
}

func (h *hub) afterTear(t *testing.T, file, what string) string {
	t.Helper()
	h.client = nil // the hub may have a new certificate
	h.launch()
	defer h.kill()
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if h.ended() {
			printed := h.output.String()
			if code := h.cmd.ProcessState.ExitCode(); code != 1 && code != 2 {
				t.Errorf("%s: the hub exited with code %d:\n%s", what, code, tail(printed, 10))
			}
			if !strings.Contains(printed, filepath.Base(file)) {
				t.Errorf("%s: the hub refuses to start without naming the file:\n%s", what, tail(printed, 10))
			}
			return refuses
		}
		if err = h.triesToAnswer(t); err == nil {
			break
		}
	}
	if err != nil {
		t.Errorf("%s: the hub runs but does not answer: %v\n%s", what, err, tail(h.output.String(), 10))
		return lostSilently
	}
	var missing []string
	for _, name := range []string{"before", "after"} {
		if _, err := h.get("/api/v1/namespaces/default/configmaps/" + name); err != nil {
			missing = append(missing, name)
		}
	}
	printed := h.output.String()
	lossLine := strings.Contains(printed, "DATABASE ") // the log says DATABASE LOST, RESTORED or IS OLDER
	switch {
	case lossLine:
		return lossLogged
	case len(missing) > 0:
		t.Errorf("%s: %v are lost without a log message:\n%s", what, missing, tail(printed, 10))
		return lostSilently
	}
	return complete
}

// triesToAnswer is answers for a hub that may have exited.
func (h *hub) triesToAnswer(t testing.TB) error {
	if h.client == nil {
		r := command{path: program(t, "hub", here), args: []string{"kubeconfig", "--data-dir", h.dir}}.run(t)
		if r.code != 0 {
			return errors.New(r.err)
		}
		if err := h.login([]byte(r.out)); err != nil {
			return err
		}
	}
	_, err := h.get("/readyz")
	return err
}

// Whichever file of the agent is damaged, its next start recovers and keeps the containers. Without
// its identity it runs the last desired state, and says that the device must join again.
func TestTornFilesOfTheDevice(t *testing.T) {
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	t.Parallel()
	long(t)
	h, d, _, before := hubWithTwoPods(t, e)
	outcomes := map[string]int{}
	tried := 0
	var slowest time.Duration
	for _, file := range files(t, d.dir) {
		if strings.HasPrefix(file, "pods") || strings.HasPrefix(file, "volatile") {
			continue // data of the pods
		}
		for _, tear := range tears {
			path := filepath.Join(d.dir, file)
			what := fmt.Sprintf("%s %s", file, tear.name)
			tried++
			d.kill()
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := tear.do(path); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			d.run()
			outcome := complete
			await(t, "after "+what+" the device works", patience, func() error {
				if d.ended() || strings.Contains(d.output.String(), "the identity of this device is lost") {
					outcome = refuses
					return nil
				}
				return h.recovered(d, began)
			})
			if outcome == refuses {
				time.Sleep(2 * time.Second) // the agent may do damage in this time
				if printed := d.output.String(); !strings.Contains(printed, d.dir) || !strings.Contains(printed, "join again") {
					t.Errorf("%s: the agent must name the file and the next step:\n%s", what, tail(printed, 10))
				}
				e.same(t, d.node, before, what)
				d.kill()
				if err := os.WriteFile(path, whole, 0o600); err != nil {
					t.Fatal(err)
				}
				began = time.Now()
				d.run()
				await(t, "with "+file+" intact again the device recovers", patience,
					func() error { return h.recovered(d, began) })
			} else {
				slowest = max(slowest, time.Since(began))
			}
			outcomes[outcome]++
			e.same(t, d.node, before, what)
			t.Logf("%s: %s", what, outcome)
		}
	}
	if err := h.ready(d.node, corev1.ConditionTrue); err != nil {
		t.Error(err)
	}
	seen(t, fmt.Sprintf("%d times a torn file: %d starts, recovered after %.1f s at most; %d without an identity went "+
		"on alone and asked to join again; no container restarted", tried, outcomes[complete], slowest.Seconds(),
		outcomes[refuses]))
}
