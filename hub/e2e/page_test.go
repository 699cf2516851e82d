package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
)

// form posts a form as the page does.
func (h *hub) form(path string, fields ...string) (string, error) {
	v := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		v.Set(fields[i], fields[i+1])
	}
	text, err := h.ask(context.Background(), http.MethodPost, path, "application/x-www-form-urlencoded",
		[]byte(v.Encode()))
	return string(text), err
}

// The page's tools work with a whole hub. A pasted manifest runs on a device, its log and terminal
// work, and the audit records the changes.
func TestThePagesTools(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.simulate(2, 1)
	manifest := `apiVersion: apps/v1
kind: Deployment
metadata: {name: till}
spec:
  selector: {matchLabels: {app: till}}
  template:
    metadata: {labels: {app: till}}
    spec: {containers: [{name: web, image: example.org/till:1}]}
`
	page, err := h.form("/yaml", "action", "check", "text", manifest, "namespace", "default")
	if err != nil || !strings.Contains(page, "Accepted") {
		t.Fatalf("check of the manifest: %v %s", err, page)
	}
	page, err = h.form("/yaml", "action", "apply", "text", manifest, "namespace", "default", "checked",
		"default false\n"+manifest)
	if err != nil || !strings.Contains(page, "Created") {
		t.Fatalf("applying: %v %s", err, page)
	}
	await(t, "the pasted deployment is available", patience, func() error { return h.available("till", 1) })
	pods, err := h.pods("till", "")
	if err != nil || len(pods) != 1 {
		t.Fatal(pods, err)
	}
	pod := "/pods/default/" + pods[0].Name

	await(t, "the page shows the pod's log", patience, func() error { return h.shows(pod+"/logs", "simulated flotilla_web_") })
	if err := h.shows(pod+"/logs/download", "simulated flotilla_web_"); err != nil {
		t.Error(err)
	}
	h.typeIn(pods[0], pod+"/terminal/socket")
	for path, words := range map[string]string{
		"/audit":    "ran a command in pod default/" + pods[0].Name,
		"/settings": "Root CA",
		"/boards":   "raspberrypi-4",
		"/yaml/apis/apps/v1/namespaces/default/deployments/till": "example.org/till:1",
	} {
		if err := h.shows(path, words); err != nil {
			t.Error(err)
		}
	}
	if page, err := h.form("/settings", "action", "backup"); err != nil ||
		!strings.Contains(page, "A backup has been written.") {
		t.Errorf("a backup: %v %.300s", err, page)
	}
}

// shows returns nil when a page contains these words.
func (h *hub) shows(path, words string) error {
	text, err := h.get(path)
	if err == nil && !strings.Contains(string(text), words) {
		err = fmt.Errorf("%s does not contain %q", path, words)
	}
	return err
}

// typeIn types into a pod's terminal until the shell ends.
func (h *hub) typeIn(p corev1.Pod, path string) {
	h.t.Helper()
	config, err := websocket.NewConfig("wss://"+h.https+path, "https://"+h.https)
	if err != nil {
		h.t.Fatal(err)
	}
	config.TlsConfig = h.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.TlsConfig.NextProtos = []string{"http/1.1"}
	config.TlsConfig.MinVersion = tls.VersionTLS12
	conn, err := websocket.DialConfig(config)
	if err != nil {
		h.t.Fatalf("open a terminal in %s: %v", p.Name, err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		h.t.Fatal(err)
	}
	for _, message := range []any{`{"cols":80,"rows":24}`, []byte("echo hello from the page\r"), []byte("exit 3\r")} {
		if err := websocket.Message.Send(conn, message); err != nil {
			h.t.Fatal(err)
		}
	}
	printed := ""
	for !strings.Contains(printed, `"end":`) {
		var part []byte
		if err := websocket.Message.Receive(conn, &part); err != nil {
			h.t.Fatalf("the terminal in %s printed %q: %v", p.Name, printed, err)
		}
		printed += string(part)
	}
	if !strings.Contains(printed, "\nhello from the page") || !strings.Contains(printed, "exit code 3") {
		h.t.Errorf("the terminal in %s printed %q, want the hello and exit code 3", p.Name, printed)
	}
}
