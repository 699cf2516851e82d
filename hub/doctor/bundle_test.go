package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// TestNoSecretIsInABundle plants a different secret in every field that a user or a device can
// write to, and searches the bundle for all of them.
func TestNoSecretIsInABundle(t *testing.T) {
	p, open := made(t)
	st := open()
	var planted []string
	plant := func(where string) string {
		planted = append(planted, fmt.Sprintf("pl4nted%s%d", where, len(planted)))
		return planted[len(planted)-1]
	}
	const last = "kubectl.kubernetes.io/last-applied-configuration"
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{"l": plant("label"), corev1.LabelTopologyZone: "oslo"},
			Annotations: map[string]string{last: `{"password":"` + plant("applied") + `"}`, "x": plant("annotation")},
		}
	}
	ended := &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 3, Message: plant("message")}
	pod := &corev1.Pod{
		ObjectMeta: meta("default", "kiosk-1"),
		Spec: corev1.PodSpec{
			NodeName: "pi-1",
			Containers: []corev1.Container{{Name: "main", Image: plant("image"), Args: []string{plant("arg")},
				Command: []string{plant("command")}, Env: []corev1.EnvVar{{Name: "PASSWORD", Value: plant("env")}}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodFailed, Reason: "Evicted", Message: plant("status"),
			Conditions: []corev1.PodCondition{{Type: "Ready", Status: "False", Reason: "No", Message: plant("condition")}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", RestartCount: 7, Image: plant("image"),
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff",
					Message: "https://u:" + plant("pull") + "@registry"}},
				LastTerminationState: corev1.ContainerState{Terminated: ended},
			}},
		},
	}
	sentence := fmt.Sprintf("pull https://user:%s@registry.example/x: Authorization: Bearer %s; "+
		"https://hooks.example/T0/?sig=%s password=%q token: %s apiKey=%s flotilla1.0123456789abcdef.abcdefghij.%s",
		plant("login"), plant("bearer"), plant("query"), plant("quoted"), plant("token"), plant("key"),
		plant("join")+"abcdefghijkl")
	node := &corev1.Node{
		ObjectMeta: meta("", "pi-1"), Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "broken", Value: plant("taint"),
			Effect: "NoSchedule"}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "False",
			Reason: "KubeletNotReady", Message: "a sentence: " + sentence}}},
	}
	site := &fleet.Site{ObjectMeta: meta("", "oslo")}
	rows := []store.Row{}
	row := func(kind string, m metav1.ObjectMeta, o any) {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, store.Row{Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: fmt.Sprint("uid", len(rows)),
			Rev: uint64(len(rows) + 1), Object: text})
	}
	row("pods", pod.ObjectMeta, pod)
	row("nodes", node.ObjectMeta, node)
	row("sites", site.ObjectMeta, site)
	for i, kind := range []string{"Pod", "Node", "Deployment"} {
		e := &corev1.Event{ObjectMeta: meta("default", fmt.Sprint("event-", i)),
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: "x"}, Reason: "FailedMount", Message: plant("event")}
		if kind == "Node" {
			e.Message = sentence
			planted = planted[:len(planted)-1] // the event of a node no longer has this secret
		}
		row("events", e.ObjectMeta, e)
		n := &fleet.Incident{ObjectMeta: meta("", fmt.Sprint("incident-", i)), About: fleet.IncidentObject{Kind: kind,
			Name: "x"}, Cause: "CrashLoop", Message: sentence, Detail: plant("detail")}
		if kind != "Node" {
			n.Message = plant("incident")
		}
		row("incidents", n.ObjectMeta, n)
	}
	config := &corev1.ConfigMap{ObjectMeta: meta("default", "words"), Data: map[string]string{"a": plant("data")},
		BinaryData: map[string][]byte{"b": []byte(plant("binary"))}}
	row("configmaps", config.ObjectMeta, config)
	secret := &corev1.Secret{ObjectMeta: meta("default", "login"), StringData: map[string]string{"a": plant("secret")},
		Data: map[string][]byte{".dockerconfigjson": []byte(plant("registry"))}}
	row("secrets", secret.ObjectMeta, secret)
	if err := st.Commit(t.Context(), store.Commit{Rev: 100, Rows: rows}); err != nil {
		t.Fatal(err)
	}
	authority, err := pki.OpenWith(p.Config.DataDir, "")
	if err != nil {
		t.Fatal(err)
	}
	guard := access.New(access.Options{Store: st, Authority: authority})
	join, err := guard.CreateJoinToken(t.Context(), access.NewJoinToken{Site: "oslo", Uses: 1,
		Life: time.Hour, By: "admin"})
	if err == nil {
		err = guard.CreateUser(t.Context(), access.NewUser{Name: "ann", Password: plant("password"), Role: access.Viewer})
	}
	token, terr := guard.CreateAPIToken(t.Context(), access.NewAPIToken{User: "ann", Life: time.Hour})
	if err = errors.Join(err, terr); err != nil {
		t.Fatal(err)
	}
	planted = append(planted, join.Secret, token)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	p.Config.IncidentWebhook = "https://hooks.example/services/" + plant("webhook")
	p.Mistakes, p.Warnings = errors.New("password="+plant("mistake")), []string{"token=" + plant("warning")}
	log := fmt.Sprintf("level=INFO msg=%q\nhttps://gw:8443/setup?token=%s\njoin with %s or %s\n%s\n-----BEGIN EC "+
		"PRIVATE KEY-----\n%s\n-----END EC PRIVATE KEY-----\n", sentence, plant("setup"), join.Text(), token,
		sentence, plant("pem"))

	var b bytes.Buffer
	if err := (Bundle{Hub: p, Version: "flotilla-hub 9", Metrics: "flotilla_nodes 3\n",
		Log: strings.NewReader(log)}).Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, &b)
	for name, text := range files {
		for _, secret := range planted {
			if strings.Contains(text, secret) {
				t.Errorf("%s contains the secret %s:\n%.2000s", name, secret, text)
			}
		}
		if strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("%s contains a key", name)
		}
	}
	for name, want := range map[string][]string{
		"version.txt": {"flotilla-hub 9"}, "doctor.txt": {"is intact", "certificates"}, "config.yaml": {"https-listen: 127.0.0.1:0", "https://hooks.example/…"},
		"directory.txt": {"hub.db", "pki/root.key"}, "metrics.txt": {"flotilla_nodes 3"}, "log.txt": {"level=INFO"}, "sites.json": {`"oslo"`},
		"nodes.json": {`"pi-1"`, "KubeletNotReady", "a sentence: pull", "broken:NoSchedule"}, "pods.json": {"kiosk-1", "ImagePullBackOff", `"exitCode":3`, `"restarts":7`, "Evicted"},
		"events.json": {"FailedMount", "registry.example/x"}, "incidents.json": {"CrashLoop"},
	} {
		for _, words := range want {
			if !strings.Contains(files[name], words) {
				t.Errorf("%s does not contain %q:\n%.1000s", name, words, files[name])
			}
		}
	}
}

// A pattern cannot recognize file names of users, so the bundle names only files that the hub
// names.
func TestABundleHidesFileNamesOfUsers(t *testing.T) {
	p, _ := made(t)
	for _, name := range []string{"pl4nted", "hub.db.pl4nted", "pl4nted.key", "backups/hub-pl4nted.db",
		"backups/before-pl4nted.db", "pki/pl4nted.crt", "pki/root.key.pl4nted", "history/pl4nted.samples", "pl4nted-dir/x",
		"hub.yaml~pl4nted"} {
		file := filepath.Join(p.Config.DataDir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/pl4nted", filepath.Join(p.Config.DataDir, "hub.rev")); err != nil &&
		!errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := (Bundle{Hub: p}).Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, &b)
	for name, text := range files {
		if strings.Contains(text, "pl4nted") {
			t.Errorf("%s contains a user's file name:\n%s", name, text)
		}
	}
	for _, want := range []string{"hub.db", "hub.lock", "secrets.key", "pki/intermediate.crt", "pki/root.key",
		"backups/hub-2", "/hub/(not of the hub)", "pki/(not of the hub)"} {
		if !strings.Contains(files["directory.txt"], want) {
			t.Errorf("directory.txt does not name %s:\n%s", want, files["directory.txt"])
		}
	}
}

// Names of the hub's own files stay readable, and words in them such as revoked stay in other text.
func TestABundleNamesTheFilesOfARotatedAuthority(t *testing.T) {
	p, _ := made(t)
	authority, err := pki.OpenWith(p.Config.DataDir, "")
	if err != nil {
		t.Fatal(err)
	}
	authority.Keep = func(map[string][]byte) error { return nil }
	files, err := authority.Files()
	if err == nil {
		err = errors.Join(pki.Install(p.Config.DataDir, "the-hub", files), authority.RotateRoot(), authority.Revoke(),
			authority.RotateRoot())
	}
	if err != nil {
		t.Fatal(err)
	}
	const log = "a certificate that was revoked; pki/former-root.crt; the of-database"
	var b bytes.Buffer
	if err := (Bundle{Hub: p, Log: strings.NewReader(log)}).Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	all := unpack(t, &b)
	if all["log.txt"] != log {
		t.Errorf("mask(%q) = %q, want it unchanged", log, all["log.txt"])
	}
	if text := all["directory.txt"]; strings.Contains(text, "(not of the hub)") ||
		!strings.Contains(text, "pki/former-root.key") {
		t.Errorf("a file of the hub must be listed by its name:\n%s", text)
	}
	if !strings.Contains(all["doctor.txt"], "pki/former-root.crt is valid until") {
		t.Errorf("doctor.txt does not name the certificates:\n%s", all["doctor.txt"])
	}
}

// A secret of the settings is removed wherever it occurs, whatever its form.
func TestSecretsOfTheSettingsAreRemovedExactly(t *testing.T) {
	p, _ := made(t)
	write := func(name, text string) string {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	p.Config.IncidentWebhook = "https://hooks.example/services/T0pl4nted/B0pl4nted/Xpl4nted"
	p.Config.IncidentWebhookSecretFile = write("hook", "signs-pl4nted")
	p.Config.IncidentMailPasswordFile = write("mail", "mails pl4nted")
	p.Config.Inventory = "https://machines.example/raw/Ipl4nted/list.yaml?sig=Spl4nted"
	log := []string{"asked services/T0pl4nted/B0pl4nted/Xpl4nted", "X-Sig of signs-pl4nted", "AUTH mails pl4nted",
		"GET /raw/Ipl4nted/list.yaml?sig=Spl4nted", "path Xpl4nted", "Spl4nted"}
	for name, database := range map[string]string{
		"in a flag": "postgres://flotilla:d%2Fpl4nted@127.0.0.1:1/flotilla?sslpassword=Kpl4nted&sslmode=disable",
		"in a file": write("database", "postgres://flotilla:d%2Fpl4nted@127.0.0.1:1/flotilla?sslpassword=Kpl4nted&sslmode=disable"),
	} {
		p.Config.Database = database
		var b bytes.Buffer
		text := strings.Join(append(log, "user d/pl4nted", "user d%2Fpl4nted", "key Kpl4nted", "kept"), "\n")
		if err := (Bundle{Hub: p, Log: strings.NewReader(text), Metrics: "m{l=\"Xpl4nted\"} 1\n"}).Write(t.Context(),
			&b); err != nil {
			t.Fatal(err)
		}
		files := unpack(t, &b)
		for file, text := range files {
			if strings.Contains(text, "pl4nted") {
				t.Errorf("%s: %s contains a secret of the settings:\n%s", name, file, text)
			}
		}
		if !strings.HasSuffix(files["log.txt"], "kept") {
			t.Errorf("%s: the masked log is %q, want the other text kept", name, files["log.txt"])
		}
	}
}

// Text that looks like a secret is replaced in logs and messages; other text stays.
func TestMask(t *testing.T) {
	for _, text := range []string{
		"mqtts://u:pl4nted@a:8883", "postgres://u:p/l4nted/pl4nted@db/x", "postgres://u:a@pl4nted@db/x",
		"PostgreSQL://u:pl4nted@db", "postgres:/u:pl4nted@db/x", "postgres:u:pl4nted@db/x",
		`"smtp://u:pl\"pl4nted@mail:25"`, "https://host?sig=pl4nted", "HTTPS://host/x?sig=pl4nted",
		"https://hooks.slack.com/services/T0/B0/pl4nted", "https://api.telegram.org/bot1:pl4nted/send",
		"password: three words pl4nted", `password="a b pl4nted"`, "--password pl4nted", "--token=pl4nted",
		"PGPASSWORD=pl4nted postgres", "FLOTILLA_TOKEN='a pl4nted'", `{"auth":"cGw0bnRlpl4nted"}`, `auth: pl4nted`,
		`{\"password\":\"pl4nted\"}`, `"password" : "a\"pl4nted"`, "Cookie: a=1; session=pl4nted",
		"Set-Cookie: session=pl4nted; Path=/", "passphrase = correct horse pl4nted", "pwd=pl4nted",
		"Authorization: Digest username=\"u\", response=\"pl4nted\"", "X-Api-Key: pl4nted", "access_key=pl4nted",
		"private_key: pl4nted", "ghp_pl4ntedpl4ntedpl4ntedpl4ntedpl4nted", "AKIAPL4NTEDPL4NTED00",
		"https://blob.example/x?sv=1&sig=pl4nted",
		"-----BEGIN OPENSSH PRIVATE KEY-----\npl4nted-with-dashes\npl4nted\n-----END OPENSSH PRIVATE KEY-----",
		"-----BEGIN EC PRIVATE KEY-----\\npl4nted\\n-----END EC PRIVATE KEY-----",
		"client-key-data: cl4pl4nted", `{"client-key-data":"pl4nted"}`,
		"LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tpl4nted+/pl4nted==", "DB_PASS=pl4nted", "pass: pl4nted",
		`{"pass":"pl4nted"}`, "WIFI_PSK=pl4nted", `psk="a pl4nted"`,
		"passcode: pl4nted", "ENCRYPTION_KEY=pl4nted", ".dockerconfigjson: pl4nted", "--db-pass pl4nted",
	} {
		if got := Mask(text); strings.Contains(strings.ToLower(got), "pl4nted") {
			t.Errorf("%q becomes %q, want it without the secret", text, got)
		}
	}
	for _, text := range []string{
		`time=2026-11-24T06:54:23.673Z level=INFO msg="hub is up" version=0.1.0 https=127.0.0.1:8443 mqtt=127.0.0.1:8883 nodes=0 pods=0`,
		"pull registry.example/x/y:1 by sha256:0123456789abcdef0123456789abcdef: not found", "the page is https://gw:8443",
		"see https://gw:8443/readyz", "node pi-1 Ready=Unknown: no heartbeat for 40s",
		"GET https://127.0.0.1:8443/api/v1/nodes/pi-1 answers 404",
		`msg="pass failed, will try again" err="remember 1 changes" every=1s`, "flotilla_passes_total 7",
		"a pass of the control loop took 10.6s: much had to be decided",
		"bypass=true compass: north", "read pki/root.key: it is missing", "gpsk=1",
	} {
		if got := Mask(text); got != text {
			t.Errorf("%q becomes %q, want it unchanged", text, got)
		}
	}
}

// Support needs the bundle of a damaged hub, so an unreadable part is replaced by its error.
func TestABundleOfADamagedHubHasTheErrors(t *testing.T) {
	p, _ := made(t)
	p.Config.DataDir += "/none"
	var b bytes.Buffer
	if err := (Bundle{Hub: p, WhyNone: "is it running?"}).Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, &b)
	for name, words := range map[string]string{"nodes.json": "not found", "doctor.txt": "FAIL",
		"metrics.txt": "is it running?"} {
		if !strings.Contains(files[name], words) {
			t.Errorf("%s does not contain %q: %s", name, words, files[name])
		}
	}
}

func unpack(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if err == io.EOF {
			return files
		}
		text, rerr := io.ReadAll(in)
		if err = errors.Join(err, rerr); err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "flotilla-support/")] = string(text)
	}
}
