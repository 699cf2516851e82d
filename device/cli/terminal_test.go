package cli

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/wire"
)

const escape = "\x1b]0;all is well\x07\x1b[2J"

// An impostor of the hub cannot write control characters to the terminal.
func TestAnImpostorCannotWriteControlCharacters(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 404 "+escape+"\r\nContent-Length: 0\r\n\r\n")
			_ = conn.Close()
		}
	}))
	defer server.Close()
	token := "FLT1." + strings.Repeat("a", 32) + ".abcdefgh.abcdefghijklmnopqrstuvwxyz"
	code, stderr := output(t, "join", server.URL, "--token", token, "--node-name", "pi-1", "--state-dir", t.TempDir())
	if code == 0 || !strings.Contains(stderr, "not a Flotilla hub") || strings.ContainsAny(stderr, "\x1b\x07") {
		t.Errorf("exit code %d, want an error without control characters: %q", code, stderr)
	}
}

func TestAHubCannotWriteControlCharacters(t *testing.T) {
	var b bytes.Buffer
	waitsFor(&b, "https://hub"+escape, "m")("request" + escape)
	s := localStatus{Site: escape, Offline: escape, Dismissed: &dismissed{Dismissed: wire.Dismissed{Reason: escape}}}
	s.Status.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
		Message: "ø" + escape}}
	if err := writeStatus(&b, s); err != nil {
		t.Fatal(err)
	}
	if text := b.String(); strings.ContainsAny(text, "\x1b\x07") || strings.Count(text, `\u001b`) != 2*6 ||
		!strings.Contains(text, "False: ø") {
		t.Errorf("the text is not escaped or incomplete: %q", text)
	}
}
