package probe

import (
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A gRPC probe succeeds only if the health service, here over HTTP/2 without TLS, responds with
// SERVING.
func TestAGRPCProbeCallsTheHealthService(t *testing.T) {
	message := func(b ...byte) string {
		return string(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...))
	}
	for name, c := range map[string]struct {
		body, code string
		plain      bool // the server does not speak gRPC
		want       string
	}{
		"serving":                              {message(8, 1), "0", false, ""},
		"not serving":                          {message(8, 2), "0", false, "service unhealthy (responded with NOT_SERVING)"},
		"status UNKNOWN, which is not encoded": {message(), "0", false, "responded with UNKNOWN"},
		"an unknown status number":             {message(8, 0xff, 0xff, 3), "0", false, "responded with SERVICE_UNKNOWN"},
		"no health service":                    {"", "12", false, "does not implement the grpc health protocol"},
		"an unknown service":                   {"", "5", false, `service "web" not found`},
		"an error":                             {"", "14", false, "code 14"},
		"not a gRPC server":                    {"hello", "", true, "is not a gRPC server: it returned HTTP status 200"},
		"a response of another protocol":       {"hello", "0", false, "not a gRPC message"},
		"a truncated response":                 {message(8), "0", false, "not a HealthCheckResponse"},
	} {
		t.Run(name, func(t *testing.T) {
			var asked string
			server := &http.Server{
				Protocols: new(http.Protocols),
				Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					b, _ := io.ReadAll(r.Body)
					asked = r.Proto + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + string(b)
					if !c.plain {
						w.Header().Set("Trailer", "Grpc-Status")
					}
					_, _ = io.WriteString(w, c.body)
					if !c.plain {
						w.Header().Set("Grpc-Status", c.code)
					}
				}),
			}
			server.Protocols.SetUnencryptedHTTP2(true)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = server.Serve(l) }()
			defer func() { _ = server.Close() }()
			service := "web"
			spec := &corev1.Container{
				Name: "c",
				LivenessProbe: &corev1.Probe{TimeoutSeconds: 60, ProbeHandler: corev1.ProbeHandler{
					GRPC: &corev1.GRPCAction{Port: int32(l.Addr().(*net.TCPAddr).Port), Service: &service}}},
			}
			a := &Prober{Dial: (&net.Dialer{}).DialContext}
			err = a.Probe(t.Context(), nil, Target{Spec: spec, IP: "127.0.0.1"}, spec.LivenessProbe)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if want := "HTTP/2.0 /grpc.health.v1.Health/Check application/grpc " +
				message(append([]byte{0x0a, 3}, "web"...)...); asked != want {
				t.Errorf("requested %q, want %q", asked, want)
			}
		})
	}
}

// A container's response is limited before it is read, because the agent has 20 MB in total.
func TestALongResponseIsAFailure(t *testing.T) {
	long := strings.Repeat("x", 512<<10)
	server := &http.Server{
		Protocols: new(http.Protocols),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "Grpc-Status")
			for i := range 12 {
				w.Header().Set("X-"+string(rune('A'+i)), long)
			}
			_, _ = io.WriteString(w, "\x00\x00\x00\x00\x02\x08\x01")
			w.Header().Set("Grpc-Status", "0")
		}),
	}
	server.Protocols.SetUnencryptedHTTP2(true)
	server.Protocols.SetHTTP1(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer func() { _ = server.Close() }()
	port := l.Addr().(*net.TCPAddr).Port
	a := &Prober{Dial: (&net.Dialer{}).DialContext}
	for what, handler := range map[string]corev1.ProbeHandler{
		"HTTP": {HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt(port)}},
		"gRPC": {GRPC: &corev1.GRPCAction{Port: int32(port)}},
	} {
		spec := &corev1.Container{Name: "c", LivenessProbe: &corev1.Probe{TimeoutSeconds: 60, ProbeHandler: handler}}
		if err := a.Probe(t.Context(), nil, Target{Spec: spec, IP: "127.0.0.1"}, spec.LivenessProbe); err == nil {
			t.Errorf("%s: 6 MiB of headers are accepted", what)
		}
	}
}
