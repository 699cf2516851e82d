package e2e

import (
	"database/sql"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A mistake is a wrong command line with the expected message.
type mistake struct {
	name string
	args string // words separated by spaces; "''" is an empty word, DIR the case's directory
	env  string
	file string // content of DIR/file
	code int    // exit code; 0 means 2
	want []string
}

// try runs every mistake of a program. Each prints one sentence to standard error, and nothing to
// standard output.
func try(t *testing.T, name string, mistakes []mistake) {
	path := program(t, name, here)
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c := command{path: path, dir: dir}
			for a := range strings.FieldsSeq(m.args) {
				c.args = append(c.args, strings.ReplaceAll(strings.Trim(a, "'"), "DIR", dir))
			}
			if m.env != "" {
				c.env = []string{strings.ReplaceAll(m.env, "DIR", dir)}
			}
			if m.file != "" {
				if err := os.WriteFile(filepath.Join(dir, "file"), []byte(m.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			refused(t, c, m.code, m.want...)
		})
	}
}

// refused runs a command that must fail with one sentence and an exit code; code 0 means 2.
func refused(t testing.TB, c command, code int, want ...string) {
	t.Helper()
	if code == 0 {
		code = 2
	}
	r := c.run(t)
	if r.code != code {
		t.Errorf("%s: exit code %d, want %d", strings.Join(c.args, " "), r.code, code)
	}
	for _, w := range want {
		if !strings.Contains(r.err, w) {
			t.Errorf("%s: %q is missing in\n%s", strings.Join(c.args, " "), w, r.err)
		}
	}
	prefix := filepath.Base(c.path) + ": "
	last := tail(r.err, 1)
	if !strings.Contains(r.err, prefix) || r.out != "" || len(want) == 1 && !strings.HasPrefix(last, prefix) {
		t.Errorf("%s: want one sentence after %q on standard error:\n%s\nstandard output:\n%s",
			strings.Join(c.args, " "), prefix, r.err, r.out)
	}
}

func TestMistakesWithTheHub(t *testing.T) {
	t.Parallel()
	const quiet = " --https-listen 127.0.0.1:0 --mqtt-listen 127.0.0.1:0"
	try(t, "hub", []mistake{
		{name: "an unknown command", args: "serv", want: []string{`unknown command "serv" of flotilla-hub; see`}},
		{name: "an unknown command of token", args: "token make", want: []string{`unknown command "make" of flotilla-hub token`}},
		{name: "an unknown flag", args: "serve --leese-interval 3s", want: []string{"unknown setting --leese-interval; did you mean lease-interval?"}},
		{name: "an unexpected argument", args: "serve now", want: []string{"takes 0 arguments, not 1"}},
		{name: "a duration without a unit", args: "serve --lease-interval 3", want: []string{`lease-interval is "3"; write a number with its unit`}},
		{name: "a grace period of too few leases", args: "serve --node-monitor-grace-period 15s", want: []string{"node-monitor-grace-period is 15s; devices renew every 10s", "use 40s or more"}},
		{name: "a rate below zero", args: "serve --node-eviction-rate -1", want: []string{"node-eviction-rate is -1; write 0 or more"}},
		{name: "an unknown policy", args: "serve --site-disruption-policy maybe", want: []string{`"maybe"; write Evict or Hold`}},
		{name: "a development listener on all addresses", args: "serve --mqtt-dev-listen 0.0.0.0:1883", want: []string{"mqtt-dev-listen is 0.0.0.0:1883", "127.0.0.1:1883"}},
		{name: "an address without a port", args: "serve --https-listen localhost", want: []string{"https-listen is localhost; write host:port"}},
		{name: "an unknown log level", args: "serve --log-level loud", want: []string{`log-level is "loud"; write debug, info, warn or error`}},
		{name: "a wrong value in the environment", args: "serve", env: "FLOTILLA_LEASE_INTERVAL=often", want: []string{`FLOTILLA_LEASE_INTERVAL: lease-interval is "often"`}},
		{name: "a misspelt name in the environment", args: "serve", env: "FLOTILLA_LEASE_INTERVALL=5s", want: []string{"FLOTILLA_LEASE_INTERVALL", "did you mean lease-interval?"}},
		{name: "a missing configuration file", args: "serve --config DIR/none", want: []string{"none: no such file", "correct --config"}},
		{name: "a misspelt name in the configuration file", args: "serve --config DIR/file", file: "lease-intervall: 5s\n", want: []string{"file:1: unknown setting lease-intervall; did you mean lease-interval?"}},
		{name: "a configuration file that is not YAML", args: "serve --config DIR/file", file: "\tx: [", want: []string{"file:"}},
		{name: "several mistakes at once", args: "serve --lease-interval 3 --log-level loud", want: []string{"lease-interval", "log-level"}},
		{name: "a data directory that is a file", args: "serve --data-dir DIR/file" + quiet, file: "x", code: 1, want: []string{"file: not a directory", "--data-dir"}},
		{name: "an address of another machine", args: "serve --data-dir DIR/hub --mqtt-listen 127.0.0.1:0 --https-listen 192.0.2.250:8443", code: 1, want: []string{"--https-listen 192.0.2.250:8443: bind: cannot assign requested address"}},
		{name: "a token of a hub that has never run", args: "token create --site oslo --data-dir DIR", want: []string{"no hub has run here yet", "--data-dir"}},
		{name: "a kubeconfig of a hub that has never run", args: "kubeconfig --data-dir DIR", want: []string{"no hub has run here yet"}},
		{name: "a kubeconfig without a user", args: "kubeconfig --data-dir DIR --user ''", want: []string{"--user is empty"}},
		{name: "a kubeconfig that has already expired", args: "kubeconfig --data-dir DIR --ttl -1h", want: []string{"--ttl: -1h0m0s is not"}},
		{name: "a kubeconfig for an unknown role", args: "kubeconfig --data-dir DIR --role king", want: []string{`unknown role "king"; use admin, operator or viewer`}},
		{name: "a user with an unknown role", args: "user create kari --data-dir DIR --role king", want: []string{`unknown role "king"; use admin, operator or viewer`}},
		{name: "a backup to nowhere", args: "backup --data-dir DIR", want: []string{"takes 1 arguments, not 0"}},
		{name: "an order for a missing hub", args: "resume --data-dir DIR/none", want: []string{"none: no such file", "--data-dir"}},
	})
}

func TestMistakesWithTheDevice(t *testing.T) {
	t.Parallel()
	const run, token = "run --state-dir DIR/state ",
		" --state-dir DIR/state --token FLT1.62f4d72865633f93de4040b90cf60b3a.vypoghexvu.x5ui7q5lsreuwxfmuucva6or3v"
	const hub = "--hub mqtt://127.0.0.1:1 "
	try(t, "device", []mistake{
		{name: "an unknown command", args: "runn", want: []string{`"runn" is not a command`}},
		{name: "an unknown flag", args: run + "--nope", want: []string{"--nope is not a flag of flotilla-device run; flotilla-device run --help lists them"}},
		{name: "an unexpected argument", args: run + "now", want: []string{`takes no arguments, but got "now"`}},
		{name: "a device that has not joined", args: run, want: []string{"has not joined a hub; run `flotilla-device join URL --token …`"}},
		{name: "no state directory", args: "run --state-dir ''", want: []string{"--state-dir is empty: give a directory"}},
		{name: "a state directory that is a file", args: "run --state-dir DIR/file", file: "x", want: []string{"file: not a directory", "--state-dir"}},
		{name: "a duration without a unit", args: run + "--lease-interval 3", want: []string{`--lease-interval "3": write a number with its unit, h, m or s, such as 24h for a day, or 1m30s`}},
		{name: "a lease interval of an hour", args: run + "--lease-interval 1h", want: []string{"--lease-interval 1h0m0s must be between 1s and 10m"}},
		{name: "a wrong value in the environment", args: run, env: "FLOTILLA_LEASE_INTERVAL=often", want: []string{`FLOTILLA_LEASE_INTERVAL="often" in the environment`, "write a number with its unit"}},
		{name: "an unknown engine", args: run + "--engine rocket", want: []string{`--engine "rocket" is not auto, docker, podman`}},
		{name: "an unknown log level", args: run + "--log-level loud", want: []string{`--log-level "loud" is not debug, info, warn or error`}},
		{name: "an unknown log format", args: run + "--log-format xml", want: []string{`--log-format "xml" is not text or json`}},
		{name: "a reserve that is not a quantity", args: run + "--system-reserved cpu=lots", want: []string{`--system-reserved`, `"lots" is not a quantity`}},
		{name: "a reserve of an unknown resource", args: run + "--system-reserved gpu=1", want: []string{`--system-reserved`, `gpu`}},
		{name: "a threshold without an amount", args: run + "--eviction-hard memory.available", want: []string{"--eviction-hard", "memory.available<100Mi"}},
		{name: "a missing policy", args: run + "--policy DIR/none", want: []string{"--policy", "none: no such file"}},
		{name: "a policy with a misspelt name", args: run + "--policy DIR/file", file: "privilegd: true\n", want: []string{"file", "privilegd"}},
		{name: "a development listener of another protocol", args: run + "--hub http://127.0.0.1:1883", want: []string{`--hub "http://127.0.0.1:1883" must be mqtt://127.0.0.1:PORT`}},
		{name: "a development listener of another machine", args: run + "--hub mqtt://192.0.2.1:1883", want: []string{"is not on this machine"}},
		{name: "an invalid node name", args: run + hub + "--node-name Kiosk_7", want: []string{`--node-name: node name "Kiosk_7" must be a DNS-1123 subdomain`}},
		{name: "a label without a value", args: run + hub + "--node-name a --label floor", want: []string{`--label "floor" must be key=value`}},
		{name: "a taint without an effect", args: run + hub + "--node-name a --taint camera=true", want: []string{`--taint "camera=true" must be key=value:Effect`}},
		{name: "a name for a device that was named when it joined", args: run + "--node-name a", want: []string{"need --hub"}},
		{name: "joining nothing", args: "join", want: []string{"join needs the address of the hub"}},
		{name: "joining without a token", args: "join https://127.0.0.1:1 --state-dir DIR/state", want: []string{"--token is missing; flotilla-hub token create prints the whole command"}},
		{name: "joining with half a token", args: "join https://127.0.0.1:1 --state-dir DIR/state --token FLT1.62f4d7", want: []string{"a join token has the form FLT1."}},
		{name: "joining without TLS", args: "join http://127.0.0.1:1" + token, want: []string{"is not an https address"}},
		{name: "joining with an invalid address", args: "join gateway" + token, want: []string{`"gateway" is not the address of a hub; give one such as https://gateway:8443`}},
		{name: "joining without an answer", args: "join https://127.0.0.1:1" + token, code: 1, want: []string{"hub did not answer", "connection refused; is it running, is the port right"}},
		{name: "the status of an agent that does not run", args: "status --state-dir DIR/state", code: 1, want: []string{"no agent runs", "flotilla-device join"}},
		{name: "the log of an agent that does not run", args: "logs --state-dir DIR/state", code: 1, want: []string{"no agent runs", "flotilla-device join"}},
		{name: "the log of two pods", args: "logs kiosk till", want: []string{"logs takes"}},
		{name: "the log from a missing engine", args: "logs kiosk --state-dir DIR/state --engine DIR/none", code: 1, want: []string{"none"}},
		{name: "a reset without a yes", args: "reset --state-dir DIR", want: []string{"confirm with --yes"}},
		{name: "a reset of a missing directory", args: "reset --yes --state-dir DIR/none", want: []string{"none: no such file"}},
	})
}

// A hub that could do harm does not start. It says why, and changes nothing.
func TestTheHubRefusesToStart(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	path := program(t, "hub", here)
	other := []string{"serve", "--data-dir", filepath.Join(t.TempDir(), "other"), "--https-listen", h.https,
		"--mqtt-listen", "127.0.0.1:0"}
	refused(t, command{path: path, args: other}, 1, "listen on --https-listen "+h.https+
		": bind: address already in use; stop the program that uses it, or choose another address")
	if _, err := os.Stat(other[2]); err == nil {
		t.Error("a hub whose port is in use must not create a data directory")
	}
	again := func() command {
		return command{path: path, args: []string{"serve", "--data-dir", h.dir, "--https-listen", "127.0.0.1:0",
			"--mqtt-listen", "127.0.0.1:0"}}
	}
	refused(t, again(), 1, "another flotilla-hub (pid ", "stop that hub, or give this one another --data-dir")
	h.stop()

	for _, name := range []string{"root.key", "intermediate.key"} {
		file := filepath.Join(h.dir, "pki", name)
		was, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		change := func(body []byte, mode os.FileMode) {
			t.Helper()
			if err := os.WriteFile(file, body, mode); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(file, mode); err != nil {
				t.Fatal(err)
			}
		}
		change(was, 0o644)
		refused(t, again(), 1, file, "other users may read it", "chmod 600")
		change([]byte("nonsense"), 0o600)
		refused(t, again(), 1, file, "not a PEM key; restore")
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		refused(t, again(), 1, file, "missing", "restore")
		change(was, 0o600)
	}

	db, err := sql.Open("sqlite", filepath.Join(h.dir, "hub.db"))
	if err != nil {
		t.Fatal(err)
	}
	var schema int
	if err := db.QueryRow("PRAGMA user_version").Scan(&schema); err != nil || schema == 0 {
		t.Fatal(schema, err)
	}
	if _, err := db.Exec("PRAGMA user_version = 9999"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	refused(t, again(), 1, "9999", "newer")
	refused(t, command{path: path, args: []string{"token", "create", "--site", "oslo", "--data-dir", h.dir}},
		1, "9999", "newer")
}

// The hub works in a data directory whose path is longer than a socket allows.
func TestADeepDataDirectory(t *testing.T) {
	t.Parallel()
	h := &hub{t: t, dir: filepath.Join(t.TempDir(), strings.Repeat("deep/", 20), "hub"), https: freePort(t)}
	if err := os.MkdirAll(filepath.Dir(h.dir), 0o700); err != nil {
		t.Fatal(err)
	}
	h.args = []string{"serve", "--data-dir", h.dir, "--https-listen", h.https, "--mqtt-listen", "127.0.0.1:0"}
	h.start()
	if out := output(t, program(t, "hub", here), "resume", "--data-dir", h.dir); !strings.Contains(out,
		"resumed 0 devices") {
		t.Errorf("resume printed %q, want 0 devices", out)
	}
}

// Each failure between a token and a node has its message.
func TestJoining(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	hubProgram, deviceProgram := program(t, "hub", here), program(t, "device", here)
	token := func(args ...string) string {
		t.Helper()
		words := strings.Fields(output(t, hubProgram, append([]string{"token", "create", "--data-dir", h.dir, "--site",
			"oslo"}, args...)...))
		return words[len(words)-1]
	}
	join := func(url, token string, args ...string) command {
		return command{path: deviceProgram, args: append([]string{"join", url, "--token", token, "--state-dir",
			filepath.Join(t.TempDir(), "state")}, args...)}
	}
	here := "https://" + h.https

	used := token()
	c := join(here, used, "--node-name", "kiosk-1")
	if r := c.run(t); r.code != 0 {
		t.Fatal(r.err)
	}
	refused(t, c, 2, "this device is already node kiosk-1 of this hub ("+here+")", "--forget-workloads", "reset --yes")
	lock, err := os.Open(filepath.Join(c.args[5], "lock")) // a running agent holds this lock
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	refused(t, c, 2, "this device is already node kiosk-1 of this hub ("+here+")", "reset --yes")
	refused(t, join(here, used, "--node-name", "kiosk-2"), 1, "is used up", "flotilla-hub token create")

	revoked := token()
	output(t, hubProgram, "token", "revoke", strings.Split(revoked, ".")[2], "--data-dir", h.dir)
	refused(t, join(here, revoked, "--node-name", "kiosk-3"), 1, "revoked")

	bound := token("--node", "kiosk-4")
	refused(t, join(here, bound, "--node-name", "kiosk-5"), 1, "kiosk-4")

	good := token()
	refused(t, join(here, good[:len(good)-4]+"aaaa", "--node-name", "kiosk-6"), 1, "the join token is wrong")
	refused(t, join(here, good, "--node-name", "Kiosk_6"), 2, "DNS-1123")
	refused(t, join("https://"+freePort(t), good), 1, "hub did not answer", "connection refused")

	// The address is another hub's, or that of a server that is not a hub.
	other := newHub(t)
	refused(t, join("https://"+other.https, good), 1, "this is not the hub of the token", "The secret was not sent")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n")) // the client may have closed the connection before
			_ = conn.Close()
		}
	}()
	refused(t, join("https://"+l.Addr().String(), good), 1, "does not speak TLS")
}

// If both copies of the identity are damaged, the agent names the file and the next step.
func TestADamagedIdentity(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	d := h.join("oslo", nil)
	file := filepath.Join(d.dir, "identity.json")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(d.dir, "identity.copy.json")); err != nil {
		t.Fatal(err)
	}
	without := func(key string) string {
		var m map[string]any
		if err := json.Unmarshal(whole, &m); err != nil {
			t.Fatal(err)
		}
		delete(m, key)
		b, _ := json.Marshal(m)
		return string(b)
	}
	for _, body := range []string{
		"", string(whole[:len(whole)/2]), "null", "[]", without("mqttAddress"), without("node"), without("key"),
		without("certificate"),
	} {
		if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
		c := command{path: program(t, "device", here), args: []string{"run", "--state-dir", d.dir, "--engine", "none"}}
		refused(t, c, 2, "read "+file, "join again")
	}
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	d.run()
	await(t, "the agent runs with its restored identity", patience, func() error {
		_, err := h.node(d.node)
		return err
	})
	refused(t, command{path: program(t, "device", here), args: []string{"run", "--state-dir", d.dir}}, 2, "state")
}
