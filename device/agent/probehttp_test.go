package agent

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/device/podspec"
)

// As with the kubelet a container is well that answers, and its answer is well that comes to its end.
func TestAnHTTPProbeReadsTheAnswer(t *testing.T) {
	for path, c := range map[string]struct {
		ok, unmade bool
		answer     http.HandlerFunc
	}{
		"/long":  {true, false, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }},
		"/there": {true, false, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/long", http.StatusFound) }},
		"/loop":  {false, false, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) }},
		"/away": {true, false, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://localhost:1/", http.StatusFound)
		}},
		"/hangs": {false, true, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "o")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
		"/breaks": {false, true, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "o")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
	} {
		t.Run(path, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc(path, c.answer)
			mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
			server := httptest.NewServer(mux)
			defer server.Close()
			a := &Agent{c: Config{Dial: new(net.Dialer).DialContext}}
			spec := &corev1.Container{LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: path, Port: intstr.FromInt(server.Listener.Addr().(*net.TCPAddr).Port)}}}}
			err := a.probe(t.Context(), job{step: Step{Spec: spec, Probe: podspec.Liveness, IP: "127.0.0.1"}})
			var unmade *probeError
			if (err == nil) != c.ok || errors.As(err, &unmade) != c.unmade {
				t.Errorf("it is %v", err)
			}
		})
	}
}
