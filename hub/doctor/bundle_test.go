package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// TestNoSecretIsInABundle plants a secret wherever people or devices can write one, each
// another, and looks for all of them.
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
			NodeName:   "pi-1",
			Containers: []corev1.Container{{Name: "main", Image: plant("image"), Args: []string{plant("arg")}, Command: []string{plant("command")}, Env: []corev1.EnvVar{{Name: "PASSWORD", Value: plant("env")}}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodFailed, Reason: "Evicted", Message: plant("status"), Conditions: []corev1.PodCondition{{Type: "Ready", Status: "False", Reason: "No", Message: plant("condition")}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", RestartCount: 7, Image: plant("image"), State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "https://u:" + plant("pull") + "@registry"}},
				LastTerminationState: corev1.ContainerState{Terminated: ended},
			}},
		},
	}
	sentence := fmt.Sprintf("pull https://user:%s@registry.example/x: Authorization: Bearer %s; https://hooks.example/T0/?sig=%s password=%q token: %s apiKey=%s flotilla1.0123456789abcdef.abcdefghij.%s",
		plant("login"), plant("bearer"), plant("query"), plant("quoted"), plant("token"), plant("key"), plant("join")+"abcdefghijkl")
	node := &corev1.Node{
		ObjectMeta: meta("", "pi-1"), Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "broken", Value: plant("taint"), Effect: "NoSchedule"}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "False", Reason: "KubeletNotReady", Message: "a sentence: " + sentence}}},
	}
	site := &fleet.Site{ObjectMeta: meta("", "oslo")}
	rows := []store.Row{}
	row := func(kind string, m metav1.ObjectMeta, o any) {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, store.Row{Kind: kind, Namespace: m.Namespace, Name: m.Name, UID: fmt.Sprint("uid", len(rows)), Rev: uint64(len(rows) + 1), Object: text})
	}
	row("pods", pod.ObjectMeta, pod)
	row("nodes", node.ObjectMeta, node)
	row("sites", site.ObjectMeta, site)
	for i, kind := range []string{"Pod", "Node", "Deployment"} {
		e := &corev1.Event{ObjectMeta: meta("default", fmt.Sprint("event-", i)), InvolvedObject: corev1.ObjectReference{Kind: kind, Name: "x"}, Reason: "FailedMount", Message: plant("event")}
		if kind == "Node" {
			e.Message = sentence
			planted = planted[:len(planted)-1] // it is not in it
		}
		row("events", e.ObjectMeta, e)
		n := &fleet.Incident{ObjectMeta: meta("", fmt.Sprint("incident-", i)), About: fleet.IncidentObject{Kind: kind, Name: "x"}, Cause: "CrashLoop", Message: sentence, Detail: plant("detail")}
		if kind != "Node" {
			n.Message = plant("incident")
		}
		row("incidents", n.ObjectMeta, n)
	}
	config := &corev1.ConfigMap{ObjectMeta: meta("default", "words"), Data: map[string]string{"a": plant("data")}, BinaryData: map[string][]byte{"b": []byte(plant("binary"))}}
	row("configmaps", config.ObjectMeta, config)
	secret := &corev1.Secret{ObjectMeta: meta("default", "login"), StringData: map[string]string{"a": plant("secret")}, Data: map[string][]byte{".dockerconfigjson": []byte(plant("registry"))}}
	row("secrets", secret.ObjectMeta, secret)
	if err := st.Commit(t.Context(), store.Commit{Rev: 100, Rows: rows}); err != nil {
		t.Fatal(err)
	}
	authority, err := pki.OpenWith(p.Config.DataDir, "")
	if err != nil {
		t.Fatal(err)
	}
	guard := access.New(access.Options{Store: st, Authority: authority})
	join, err := guard.CreateJoinToken(t.Context(), access.NewJoinToken{Site: "oslo", Uses: 1, Life: time.Hour, By: "admin"})
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
	log := fmt.Sprintf("level=INFO msg=%q\nhttps://gw:8443/setup?token=%s\njoin with %s or %s\n%s\n-----BEGIN EC PRIVATE KEY-----\n%s\n-----END EC PRIVATE KEY-----\n", sentence, plant("setup"), join.Text(), token, sentence, plant("pem"))

	var b bytes.Buffer
	if err := (Bundle{Patient: p, Version: "flotilla-hub 9", Metrics: "flotilla_nodes 3\n", Log: strings.NewReader(log)}).Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, &b)
	for name, text := range files {
		for _, secret := range planted {
			if strings.Contains(text, secret) {
				t.Errorf("%s has the secret %s:\n%.2000s", name, secret, text)
			}
		}
		if strings.Contains(text, "PRIVATE KEY") {
			t.Errorf("%s has a key", name)
		}
	}
	for name, want := range map[string][]string{
		"version.txt": {"flotilla-hub 9"}, "doctor.txt": {"is whole", "certificates"}, "config.yaml": {"https-listen: 127.0.0.1:0", "https://hooks.example/…"},
		"directory.txt": {"hub.db", "pki/root.key"}, "metrics.txt": {"flotilla_nodes 3"}, "log.txt": {"level=INFO"}, "sites.json": {`"oslo"`},
		"nodes.json": {`"pi-1"`, "KubeletNotReady", "a sentence: pull", "broken:NoSchedule"}, "pods.json": {"kiosk-1", "ImagePullBackOff", `"exitCode":3`, `"restarts":7`, "Evicted"},
		"events.json": {"FailedMount", "registry.example/x"}, "incidents.json": {"CrashLoop"},
	} {
		for _, words := range want {
			if !strings.Contains(files[name], words) {
				t.Errorf("%s does not say %q:\n%.1000s", name, words, files[name])
			}
		}
	}
}

// A hub that is ill is just the one that is asked about: what cannot be read says so.
func TestABundleOfADamagedHubSaysWhatIsDamaged(t *testing.T) {
	p, _ := made(t)
	p.Config.DataDir += "/none"
	var b bytes.Buffer
	if err := (Bundle{Patient: p, WhyNone: "is it running?"}).Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	files := unpack(t, &b)
	for name, words := range map[string]string{"nodes.json": "not found", "doctor.txt": "FAIL", "metrics.txt": "is it running?"} {
		if !strings.Contains(files[name], words) {
			t.Errorf("%s does not say %q: %s", name, words, files[name])
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
