package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const repository = "../.."

// git runs git in the repository of this checkout.
func git(t testing.TB, args ...string) string {
	t.Helper()
	printed, err := exec.Command("git", append([]string{"-C", repository}, args...)...).Output()
	if err != nil {
		need(t, "older programs are built from the repository's history: git %s: %v", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(printed))
}

// before returns the newest commit before a file was added, or before a directory last changed.
func before(t testing.TB, path string, filter ...string) string {
	t.Helper()
	if git(t, "rev-parse", "--is-shallow-repository") == "true" {
		need(t, "older programs are built from the repository's history, and this clone is shallow: git fetch --unshallow")
	}
	commit, _, _ := strings.Cut(git(t, append(append([]string{"log", "--format=%H"}, filter...), "--", path)...), "\n")
	if commit == "" {
		need(t, "the repository's history has no commit that added %s", path)
	}
	return git(t, "rev-parse", commit+"^")
}

// beforeNewestSchema returns the newest commit with an older schema of the database.
func beforeNewestSchema(t testing.TB) string {
	t.Helper()
	newest, err := filepath.Glob(filepath.Join(repository, "hub/store/migration/[0-9][0-9][0-9].sql"))
	if err != nil || len(newest) == 0 {
		t.Fatal("no migration of the database found:", err)
	}
	return before(t, strings.TrimPrefix(slices.Max(newest), repository+"/"), "--diff-filter=A")
}

// programsOf builds programs of an older commit with this version. It returns their directory.
func programsOf(t testing.TB, commit, version string, names ...string) string {
	t.Helper()
	src, bin := t.TempDir(), t.TempDir()
	archive := filepath.Join(bin, "source.tar")
	git(t, "archive", "--output="+archive, commit)
	if printed, err := exec.Command("tar", "-xf", archive, "-C", src).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, printed)
	}
	for _, name := range names {
		cmd := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags",
			"-s -w -X main.version="+version, "-o", filepath.Join(bin, "flotilla-"+name), "./"+name)
		cmd.Dir = src
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly -buildvcs=false")
		if printed, err := cmd.CombinedOutput(); err != nil {
			need(t, "%s of %s does not build here: %v\n%s", name, commit, err, printed)
		}
	}
	return bin
}

// mixedVersions are a hub of any version, two devices, and a state that must not change.
type mixedVersions struct {
	*hub
	devices []*device
	before  [][]container
	words   int
}

// joinAs joins a device with an agent of any version.
func (a *mixedVersions) joinAs(agent, name string, e *engine) *device {
	a.t.Helper()
	d := &device{t: a.t, engine: e, dir: filepath.Join(a.t.TempDir(), name), node: fmt.Sprintf("e2e-%d-%d-%s", os.Getpid(),
		devicesMade.Add(1), name)}
	words := strings.Fields(output(a.t, a.path(), "token", "create", "--data-dir", a.dir, "--site", "oslo"))
	output(a.t, agent, append(words[1:], "--state-dir", d.dir, "--node-name", d.node)...)
	a.t.Cleanup(func() {
		e.remove(a.t, d.node)
		forgetVolatile(a.t, d.dir)
	})
	a.devices = append(a.devices, d)
	d.process = start(a.t, agent, "run", "--state-dir", d.dir, "--engine", d.engine.socket, "--eviction-hard", anyDisk)
	await(a.t, d.node+" is ready", patience, func() error { return a.ready(d.node, corev1.ConditionTrue) })
	return d
}

// works checks every device: a lease, a desired state and an API request succeed, and no container
// has restarted.
func (a *mixedVersions) works(when string) {
	a.t.Helper()
	began := time.Now()
	a.words++
	word := fmt.Sprintf("word-%d", a.words)
	await(a.t, when+": the hub takes a change", patience, func() error {
		_, err := a.ask(a.t.Context(), "PATCH", "/api/v1/namespaces/default/configmaps/words", "application/merge-patch+json",
			fmt.Appendf(nil, `{"data":{"word":%q}}`, word))
		return err
	})
	for i, d := range a.devices {
		await(a.t, fmt.Sprintf("%s: lease, desired state and API work on %s", when, d.node), patience,
			func() error { return errors.Join(a.recovered(d, began), d.knows(word)) })
		d.engine.same(a.t, d.node, a.before[i], when)
		pods, err := a.pods("sign", d.node)
		if err != nil || len(pods) == 0 {
			a.t.Fatalf("%s: %d pods on %s, %v; want at least 1", when, len(pods), d.node, err)
		}
		if printed := a.kubectl("logs", pods[0].Name); !strings.Contains(printed, "hello") {
			a.t.Errorf("%s: the log of %s is %q", when, pods[0].Name, printed)
		}
		if printed := a.kubectl("exec", pods[0].Name, "--", "/tool", "print", "in",
			"there"); !strings.Contains(printed, "in there") {
			a.t.Errorf("%s: a command in %s prints %q", when, pods[0].Name, printed)
		}
	}
}

// knows returns nil when a file of the device has this text. The files depend on the agent's
// version.
func (d *device) knows(text string) error {
	found := errors.New("no file of the device contains " + text)
	err := filepath.WalkDir(d.dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // the agent is replacing the file
		}
		if body, err := os.ReadFile(file); err == nil && strings.Contains(string(body), text) {
			found = nil
		}
		return nil
	})
	return errors.Join(err, found)
}

// of checks whether a node reports an agent of this version.
func (a *mixedVersions) of(d *device, version string, is bool) {
	a.t.Helper()
	n, err := a.node(d.node)
	if err != nil || strings.HasSuffix(n.Status.NodeInfo.KubeletVersion, "."+version) != is {
		a.t.Errorf("the agent of %s has version %s, %v", d.node, n.Status.NodeInfo.KubeletVersion, err)
	}
}

// newMixedVersions starts a hub of an older version, and two devices with one pod each.
func newMixedVersions(t *testing.T, hubProgram string, agents [2]string) *mixedVersions {
	t.Helper()
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	a := &mixedVersions{hub: &hub{t: t, dir: filepath.Join(t.TempDir(), "hub"), https: freePort(t), dev: freePort(t),
		older: hubProgram}}
	a.args = []string{"serve", "--data-dir", a.dir, "--https-listen", a.https, "--mqtt-listen", freePort(t),
		"--mqtt-dev-listen", a.dev, "--cluster-cidr", ownAddresses(t)}
	a.start()
	for i, agent := range agents {
		a.joinAs(agent, fmt.Sprint("age-", i), e)
	}
	a.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return a.available("sign", 2) })
	for _, d := range a.devices {
		list, err := e.containers(d.node)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s has %d containers, %v; want at least 1", d.node, len(list), err)
		}
		a.before = append(a.before, list)
	}
	return a
}

// upgrade replaces the agents one after the other by agents of this checkout.
func (a *mixedVersions) upgrade(version string) {
	a.t.Helper()
	for i, d := range a.devices {
		d.stop()
		d.engine.same(a.t, d.node, a.before[i], "the older agent stopped")
		d.run()
		a.works("with a newer agent on " + d.node)
		a.of(d, version, false)
	}
}

// As the manual says, the hub with an older schema is upgraded first, and then its agents. The
// older hub refuses the upgraded database.
func TestAnUpgradeFromAnOlderSchema(t *testing.T) {
	t.Parallel()
	long(t)
	const version = "0.0.1"
	commit := beforeNewestSchema(t)
	bin := programsOf(t, commit, version, "hub", "device")
	oldHub, oldAgent := filepath.Join(bin, "flotilla-hub"), filepath.Join(bin, "flotilla-device")
	a := newMixedVersions(t, oldHub, [2]string{oldAgent, oldAgent})
	a.works("with an old hub and old agents")
	a.of(a.devices[0], version, true)

	a.stop()
	a.older = ""
	a.start()
	a.works("with a newer hub")
	if kept, err := filepath.Glob(filepath.Join(a.dir, "backups", "before-schema-*.db")); err != nil || len(kept) != 1 {
		t.Errorf("the backups before the upgrade are %v, %v", kept, err)
	}
	a.renewed("by a newer hub")

	a.stop()
	if r := (command{path: oldHub, args: a.args}).run(t); r.code == 0 || !strings.Contains(r.err, "newer version") {
		t.Errorf("the older hub exited with code %d on the newer database: %s", r.code, r.err)
	}
	a.start()
	a.works("after a refused downgrade")
	a.upgrade(version)
	a.quiet()
	seen(t, fmt.Sprintf("hub and agents of %.10s: the hub upgraded in place under them, the way back refused, then "+
		"they; no container restarted", commit))
}

// Devices may run older or newer versions than the hub.
func TestAgentsOfOtherVersions(t *testing.T) {
	t.Parallel()
	long(t)
	const version = "0.0.2"
	commit := before(t, "shared/wire/testdata")
	bin := programsOf(t, commit, version, "hub", "device")
	oldHub, oldAgent := filepath.Join(bin, "flotilla-hub"), filepath.Join(bin, "flotilla-device")
	a := newMixedVersions(t, oldHub, [2]string{oldAgent, program(t, "device", here)})
	a.works("with an older hub")
	a.of(a.devices[0], version, true)
	a.of(a.devices[1], version, false)
	a.kill()
	a.start()
	a.works("after the older hub was killed")
	a.stop()
	a.older = ""
	a.start()
	a.works("with a newer hub")
	a.renewed("by a newer hub")
	a.upgrade(version)
	a.quiet()
	seen(t, fmt.Sprintf("a hub of %.10s with its own agent and today's, then today's hub with both, then all of today; "+
		"no container restarted", commit))
}

// renewed makes every device renew its certificate.
func (a *mixedVersions) renewed(how string) {
	a.t.Helper()
	printed := make([]int, len(a.devices))
	const words = "the certificate was renewed"
	for i, d := range a.devices {
		printed[i] = strings.Count(d.output.String(), words)
	}
	output(a.t, program(a.t, "hub", here), "ca", "rotate", "--intermediate", "--data-dir", a.dir)
	for i, d := range a.devices {
		await(a.t, d.node+" has a new certificate "+how, 3*patience, func() error {
			if strings.Count(d.output.String(), words) == printed[i] {
				return fmt.Errorf("the agent printed %s", tail(d.output.String(), 3))
			}
			return nil
		})
	}
	a.works("with certificates " + how)
}

// quiet fails if a pod was evicted.
func (a *mixedVersions) quiet() {
	a.t.Helper()
	if events := a.kubectl("get", "events", "-A"); strings.Contains(events, "TaintManagerEviction") {
		a.t.Errorf("a pod was evicted:\n%s", events)
	}
}
