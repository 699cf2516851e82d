package probe

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// As in the kubelet, only a complete response is a success.
func TestAnHTTPProbeReadsTheResponse(t *testing.T) {
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
			a := &Prober{Dial: new(net.Dialer).DialContext}
			spec := &corev1.Container{
				LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
					Path: path, Port: intstr.FromInt(server.Listener.Addr().(*net.TCPAddr).Port)}}},
			}
			err := a.Probe(t.Context(), nil, Target{Spec: spec, IP: "127.0.0.1"}, spec.LivenessProbe)
			var unmade *Error
			if (err == nil) != c.ok || errors.As(err, &unmade) != c.unmade {
				t.Errorf("got error %v, want success %v, Error %v", err, c.ok, c.unmade)
			}
		})
	}
}

func TestNetworkProbesUseThePodsAddress(t *testing.T) {
	var dialled []string
	answer := error(nil)
	a := &Prober{Dial: func(_ context.Context, network, address string) (net.Conn, error) {
		dialled = append(dialled, network+" "+address)
		if answer != nil {
			return nil, answer
		}
		ours, theirs := net.Pipe()
		go func() {
			b := make([]byte, 2048)
			n, _ := theirs.Read(b)
			code := "200 OK"
			if strings.HasPrefix(string(b[:n]), "GET /bad") {
				code = "503 Service Unavailable"
			}
			_, _ = theirs.Write([]byte("HTTP/1.1 " + code + "\r\nContent-Length: 0\r\n\r\n"))
			_ = theirs.Close()
		}()
		return ours, nil
	}}
	spec := &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}
	check := func(h corev1.ProbeHandler) error {
		spec.LivenessProbe = &corev1.Probe{ProbeHandler: h}
		return a.Probe(t.Context(), nil, Target{Spec: spec, IP: "10.0.0.9"}, spec.LivenessProbe)
	}
	if err := check(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ok",
		Port: intstr.FromString("web")}}); err != nil {
		t.Errorf("a response with 200: %v", err)
	}
	if err := check(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/bad",
		Port: intstr.FromInt32(8080)}}); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a response with 503: %v, want an error with the status", err)
	}
	if err := check(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9)}}); err != nil {
		t.Errorf("an open port: %v", err)
	}
	answer = errors.New("refused")
	if err := check(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9)}}); err == nil {
		t.Error("the probe of a closed port succeeds")
	}
	if want := []string{"tcp 10.0.0.9:8080", "tcp 10.0.0.9:8080", "tcp 10.0.0.9:9", "tcp 10.0.0.9:9"}; !slices.Equal(
		dialled, want) {
		t.Errorf("dialled %q, want %q", dialled, want)
	}
}

// As in the kubelet, a header name may occur twice, and an empty Accept removes the default.
func TestAProbeSendsItsHeaders(t *testing.T) {
	for _, c := range []struct {
		name string
		all  []corev1.HTTPHeader
		want http.Header
	}{
		{"no headers", nil, http.Header{"User-Agent": {"kube-probe/flotilla"}, "Accept": {"*/*"}}},
		{"a repeated name", []corev1.HTTPHeader{{Name: "x-a", Value: "1"}, {Name: "X-A", Value: "2"}}, http.Header{"User-Agent": {"kube-probe/flotilla"}, "Accept": {"*/*"}, "X-A": {"1", "2"}}},
		{"a User-Agent and an empty Accept", []corev1.HTTPHeader{{Name: "User-Agent", Value: "mine"}, {Name: "Accept"}}, http.Header{"User-Agent": {"mine"}}},
		{"an Accept and a Host", []corev1.HTTPHeader{{Name: "Accept", Value: "text/plain"}, {Name: "Host", Value: "a.example"}}, http.Header{"User-Agent": {"kube-probe/flotilla"}, "Accept": {"text/plain"}, "Host": {"a.example"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan http.Header, 1)
			s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.Host == "a.example" {
					r.Header.Set("Host", r.Host)
				}
				r.Header.Del("Connection")
				got <- r.Header
			}))
			defer s.Close()
			a := &Prober{Dial: new(net.Dialer).DialContext}
			host, port, _ := net.SplitHostPort(s.Listener.Addr().String())
			spec := &corev1.Container{
				Name: "c",
				LivenessProbe: &corev1.Probe{
					ProbeHandler: corev1.ProbeHandler{
						HTTPGet: &corev1.HTTPGetAction{Host: host, Port: intstr.Parse(port), HTTPHeaders: c.all},
					},
				},
			}
			if err := a.Probe(t.Context(), nil, Target{Spec: spec}, spec.LivenessProbe); err != nil {
				t.Fatal(err)
			}
			if h := <-got; !maps.EqualFunc(h, c.want, slices.Equal) {
				t.Errorf("the request has the headers %v, want %v", h, c.want)
			}
		})
	}
}
