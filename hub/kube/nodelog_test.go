package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/ask"
)

// NodeLogs sends the log of pi-1's agent: five lines, ten seconds apart, in pieces. For other nodes
// it sends the request's options.
func (f *fakeFleet) NodeLogs(_ context.Context, node string, o corev1.PodLogOptions, w io.Writer) error {
	if f.nodeLogs != nil {
		return f.nodeLogs(node, o, w)
	}
	if node != "pi-1" {
		b, _ := json.Marshal(o)
		_, err := fmt.Fprintf(w, "%s %s\n", node, b)
		return err
	}
	var log strings.Builder
	from := 0
	if o.TailLines != nil {
		from = max(0, 5-int(*o.TailLines))
	}
	for n := from; n < 5; n++ {
		fmt.Fprintf(&log, "2026-11-20T12:00:%d0.5Z level=%s msg=\"line %d\"\n", n, []string{"INFO", "WARN"}[n%2], n)
	}
	for rest := log.String(); rest != ""; rest = rest[min(7, len(rest)):] {
		if _, err := io.WriteString(w, rest[:min(7, len(rest))]); err != nil {
			return err
		}
	}
	return nil
}

// nodeLogged returns the answer to a query. For lines of pi-1 it returns their numbers.
func nodeLogged(t *testing.T, s *Server, role, node, query string) (code int, answer string) {
	t.Helper()
	w := request{role: role, method: "GET", path: "/api/v1/nodes/" + node + "/proxy/logs/?" + query}.do(s)
	if w.Code == http.StatusOK && node == "pi-1" {
		var numbers []string
		for line := range strings.Lines(w.Body.String()) {
			_, n, _ := strings.Cut(line, "line ")
			numbers = append(numbers, strings.TrimRight(n, "\"\n"))
		}
		if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind, "text/plain") {
			t.Errorf("the answer is not a Status: %s", kind)
		}
		return w.Code, strings.Join(numbers, " ")
	}
	var st metav1.Status
	if json.Unmarshal(w.Body.Bytes(), &st) == nil && st.Kind == "Status" {
		if int(st.Code) != w.Code {
			t.Errorf("code %d, but the Status has %d", w.Code, st.Code)
		}
		return w.Code, string(st.Reason) + ": " + st.Message
	}
	return w.Code, w.Body.String()
}

func TestNodeLogQuery(t *testing.T) {
	f := seeded()
	c := newServer(f).Config
	c.Online = func(node string) bool { return node != "pi-2" }
	s := New(c)
	f.put(fakeNode("pi-7", "a"))
	const kubelet = "query=kubelet"
	for _, tt := range []struct {
		name, node, query string
		code              int
		want              string
	}{
		{"the whole log", "pi-1", kubelet, 200, "0 1 2 3 4"},
		{"by the agent's own name", "pi-1", "query=flotilla-device", 200, "0 1 2 3 4"},
		{"by both names at once", "pi-1", "query=flotilla-device.service&query=kubelet", 200, "0 1 2 3 4"},
		{"the last lines", "pi-1", kubelet + "&tailLines=2", 200, "3 4"},
		{"zero lines", "pi-1", kubelet + "&tailLines=0", 200, ""},
		{"since a time", "pi-1", kubelet + "&sinceTime=2026-11-20T12:00:20Z", 200, "2 3 4"},
		{"up to a time", "pi-1", kubelet + "&untilTime=2026-11-20T12:00:20Z", 200, "0 1"},
		{"in another time zone", "pi-1", kubelet + "&sinceTime=2026-11-20T14:00:30%2B02:00", 200, "3 4"},
		{"lines that match", "pi-1", kubelet + "&pattern=level%3DWARN", 200, "1 3"},
		{"the pattern is not matched with the time", "pi-1", kubelet + "&pattern=^2026", 200, ""},
		{"the last lines that match", "pi-1", kubelet + "&pattern=INFO&tailLines=2", 200, "2 4"},
		{"the last lines before a time", "pi-1", kubelet + "&untilTime=2026-11-20T12:00:35Z&tailLines=1", 200, "3"},
		{"this boot's", "pi-1", kubelet + "&boot=0", 200, "0 1 2 3 4"},
		{"an unknown option", "pi-1", kubelet + "&colour=red", 200, "0 1 2 3 4"},
		{"the device sends only the wanted lines", "pi-7", kubelet + "&tailLines=3", 200, `pi-7 {"timestamps":true,"tailLines":3}` + "\n"},
		{"followed", "pi-7", kubelet + "&tailLines=3&follow=true", 200, `pi-7 {"follow":true,"timestamps":true,"tailLines":3}` + "\n"},

		{"an unknown service", "pi-1", "query=docker", 400, `BadRequest: query: Unsupported value: "docker": supported values: "flotilla-device", "kubelet"`},
		{"a file", "pi-1", "query=/etc/shadow", 400, `Unsupported value: "/etc/shadow"`},
		{"no service", "pi-1", "tailLines=5", 400, "BadRequest: query: Required value: name a service: flotilla-device or kubelet"},
		{"an empty service", "pi-1", "query=", 400, "query: Unsupported value"},
		{"an invalid number of lines", "pi-1", kubelet + "&tailLines=many", 400, `tailLines: Invalid value: "many": must be a whole number from 0 to 100000`},
		{"a negative number of lines", "pi-1", kubelet + "&tailLines=-1", 400, `tailLines: Invalid value: "-1"`},
		{"more lines than Kubernetes allows", "pi-1", kubelet + "&tailLines=100001", 400, `tailLines: Invalid value: "100001"`},
		{"an invalid time", "pi-1", kubelet + "&sinceTime=yesterday", 400, `sinceTime: Invalid value: "yesterday"`},
		{"untilTime before sinceTime", "pi-1", kubelet + "&sinceTime=2026-11-20T12:00:20Z&untilTime=2026-11-20T12:00:10Z", 400, "untilTime: Invalid value: \"2026-11-20T12:00:10Z\": must be after `sinceTime`"},
		{"untilTime with follow", "pi-1", kubelet + "&untilTime=2026-11-20T12:00:20Z&follow=true", 400, "untilTime: Forbidden"},
		{"an invalid pattern", "pi-1", kubelet + "&pattern=(", 400, "pattern: Invalid value"},
		{"a pattern that is too long", "pi-1", kubelet + "&pattern=" + strings.Repeat("a", 1025), 400, "pattern: Too long"},
		{"an earlier boot", "pi-1", kubelet + "&boot=-1", 400, `boot: Invalid value: "-1": only the log since the agent's start exists`},
		{"a later boot", "pi-1", kubelet + "&boot=1", 400, `boot: Invalid value: "1": must be a whole number less than 1`},
		{"all mistakes at once", "pi-1", "query=x&boot=1", 400, "boot: Invalid value"},
		{"a missing node", "nobody", kubelet, 404, `NotFound: nodes "nobody" not found`},
		{"a device that is not connected", "pi-2", kubelet, 503, "ServiceUnavailable: the device of node pi-2 is not connected to the hub: it was last seen at"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, answer := nodeLogged(t, s, "viewer", tt.node, tt.query)
			if code != tt.code || code == 200 && answer != tt.want || !strings.Contains(answer, tt.want) {
				t.Errorf("%d %q, want %d %q", code, answer, tt.code, tt.want)
			}
		})
	}
	if _, answer := nodeLogged(t, s, "viewer", "pi-1", "query=x&boot=1&tailLines=x"); !strings.Contains(answer, "query") ||
		!strings.Contains(answer, "boot") || !strings.Contains(answer, "tailLines") {
		t.Errorf("the error must name every mistake: %s", answer)
	}
}

func TestNodesProxyServesOnlyLogs(t *testing.T) {
	s := newServer(seeded())
	for _, tt := range []struct {
		method, path string
		code         int
		want         string
	}{
		{"GET", "/api/v1/nodes/pi-1/proxy", 404, "use /api/v1/nodes/pi-1/proxy/logs/?query=kubelet"},
		{"GET", "/api/v1/nodes/pi-1/proxy/logs/kubelet.log", 404, "use /api/v1/nodes/pi-1/proxy/logs/?query=kubelet"},
		{"GET", "/api/v1/nodes/pi-1/proxy/stats/summary", 404, "use /api/v1/nodes/pi-1/proxy/logs/?query=kubelet"},
		{"GET", "/api/v1/nodes/pi-1/proxy/logs/..%2fsecret?query=kubelet", 404, "404 page not found"},
		{"POST", "/api/v1/nodes/pi-1/proxy/run/default/web/main?cmd=ls", 405, "post is not supported"},
		{"GET", ns + "/pods/kiosk-1/proxy/metrics", 404, "pods/proxy is not served by this hub"},
		{"GET", "/api/v1/nodes/pi-1/status/more", 404, "404 page not found"},
	} {
		if w := (request{role: "admin", method: tt.method, path: tt.path}).do(s); w.Code != tt.code ||
			!strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s %s: %d %s, want %d %q", tt.method, tt.path, w.Code, w.Body, tt.code, tt.want)
		}
	}
}

// The hub answers a log query if a device has an older agent, disconnects, or runs another program.
func TestAnswersOfDevicesToLogQueries(t *testing.T) {
	f := seeded()
	s := newServer(f)
	held := 0
	for _, tt := range []struct {
		name, query string
		log         func(w io.Writer) error
		code        int
		want        string
	}{
		{"an agent that is too old", "", func(io.Writer) error { return fmt.Errorf("the log of node x: %w", ask.ErrTooOld) }, 501, "NotImplemented: the log of node x: the device's agent is too old"},
		{"a device that disconnects", "", func(io.Writer) error { return fmt.Errorf("x: %w", ask.ErrLost) }, 503, "ServiceUnavailable: x: the device's response was interrupted"},
		{"a device that disconnects in the middle", "", func(w io.Writer) error {
			_, _ = io.WriteString(w, "a\n")
			return ask.ErrLost
		}, 200, "a\n"},
		{"tail lines of an incomplete log", "&tailLines=5&pattern=a", func(w io.Writer) error {
			_, _ = io.WriteString(w, "a\n")
			return ask.ErrLost
		}, 503, "was interrupted"},
		{"an empty log", "", func(io.Writer) error { return nil }, 200, ""},
		{"a line without its end or time", "&pattern=b", func(w io.Writer) error { _, err := io.WriteString(w, "a\nb"); return err }, 200, "b\n"},
		{"a line without a time is older than all others", "&sinceTime=0001-01-01T00:00:01Z", func(w io.Writer) error { _, err := io.WriteString(w, "a\nb"); return err }, 200, ""},
		{"a line without an end", "&tailLines=100000&pattern=.", func(w io.Writer) error {
			for range 400 {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return err
				}
				sv := w.(*lineFilter)
				held = max(held, len(sv.rest), sv.size)
			}
			return nil
		}, 200, "\x00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.nodeLogs = func(_ string, _ corev1.PodLogOptions, w io.Writer) error { return tt.log(w) }
			code, answer := nodeLogged(t, s, "viewer", "pi-2", "query=kubelet"+tt.query)
			if code != tt.code || !strings.Contains(answer, tt.want) || len(tt.want) < 5 && code == 200 &&
				len(answer) > 0 && tt.want == "" {
				t.Errorf("%d %.200q, want %d %q", code, answer, tt.code, tt.want)
			}
		})
	}
	if held == 0 || held > maxLogHeld+maxLogLine {
		t.Errorf("the hub buffered %d bytes", held)
	}
}

// A logReader reads this many pieces of an answer, and then closes it.
type logReader struct {
	*httptest.ResponseRecorder
	takes int
}

func (r *logReader) Write(b []byte) (int, error) {
	if r.takes--; r.takes < 0 {
		return 0, errors.New("client disconnected")
	}
	return r.ResponseRecorder.Write(b)
}

// The hub logs a device that fails in the middle of a log, but not a client that closes it.
func TestOnlyAFailedLogIsLogged(t *testing.T) {
	broken := errors.New("the device disconnected")
	for _, c := range []struct {
		name   string
		takes  int
		fails  error
		logged bool
	}{
		{"the whole log is read", 9, nil, false},
		{"the client closes", 1, nil, false},
		{"the client closes, and the device disconnects", 1, broken, false},
		{"the device fails", 9, broken, true},
	} {
		var log strings.Builder
		f := seeded()
		f.nodeLogs = func(_ string, _ corev1.PodLogOptions, w io.Writer) error {
			for range 3 {
				if _, err := io.WriteString(w, "a line\n"); err != nil {
					return cmp.Or(c.fails, fmt.Errorf("copy: %v", err))
				}
			}
			return c.fails
		}
		s := New(Config{Fleet: f, Leases: f, Logs: f, Metrics: f, Access: fakeAccess{}, Settings: fakeSettings,
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		r := httptest.NewRequest("GET", "/api/v1/nodes/pi-1/proxy/logs/?query=kubelet", nil)
		r.Header.Set("Authorization", "Bearer admin")
		w := &logReader{httptest.NewRecorder(), c.takes}
		s.ServeHTTP(w, r)
		if got := strings.Count(w.Body.String(), "a line"); got != min(c.takes, 3) {
			t.Errorf("%s: read %d lines: code %d %s; want %d lines", c.name, got, w.Code, w.Body, min(c.takes, 3))
		}
		if logged := strings.Contains(log.String(), "copy a log"); logged != c.logged {
			t.Errorf("%s: the hub logs %q", c.name, log.String())
		}
	}
}
