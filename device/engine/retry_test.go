package engine

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A container that ends while Podman inspects it makes the call fail once. Containers must neither
// fail nor report the container as broken.
func TestAnInternalErrorIsRetried(t *testing.T) {
	const id = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789ab0123"
	for _, failing := range []string{"/containers/json", "/containers/" + id + "/json"} {
		for _, c := range []struct {
			times, status int
			requests      int
			well          bool
		}{
			{times: 1, status: http.StatusInternalServerError, requests: 2, well: true},
			{times: 3, status: http.StatusInternalServerError, requests: 4, well: true},
			{times: 99, status: http.StatusInternalServerError, requests: 4},
			{times: 99, status: http.StatusConflict, requests: 1}, // a client error is final, so it is not retried
		} {
			t.Run(fmt.Sprintf("%s fails %d times with %d", failing[:15], c.times, c.status), func(t *testing.T) {
				requests := 0
				a := served(t, func(w http.ResponseWriter, r *http.Request) {
					path := r.URL.Path
					if strings.HasSuffix(path, failing) {
						if requests++; requests <= c.times {
							w.WriteHeader(c.status)
							fmt.Fprint(w, `{"message":"read /proc/26032/cgroup: no such process"}`)
							return
						}
					}
					switch {
					case strings.HasSuffix(path, "/containers/json"):
						fmt.Fprintf(w, `[{"Id":%q,"Names":["/one"],"State":"running","Labels":{}}]`, id)
					case strings.HasSuffix(path, "/json"):
						fmt.Fprintf(w, `{"Id":%q,"Name":"/one","State":{"Status":"exited","ExitCode":7},"Config":{"Image":"x"}}`, id)
					}
				})
				found, err := a.Containers(context.Background(), "x")
				if requests != c.requests {
					t.Errorf("sent %d requests, want %d", requests, c.requests)
				}
				well := err == nil && len(found) == 1 && found[0].Error == "" && found[0].ExitCode == 7
				if well != c.well {
					t.Errorf("the list is %+v, %v; want success: %v", found, err, c.well)
				}
			})
		}
	}
}

// If a container ends just as Podman opens its log, the error arrives after the response has begun.
func TestALogThatBreaksOffWithAnErrorIsRetried(t *testing.T) {
	for _, c := range []struct {
		times, requests int
		well            bool
	}{{1, 2, true}, {3, 4, true}, {99, 4, false}} {
		for _, follow := range []bool{false, true} {
			requests := 0
			a := served(t, func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/logs") {
					fmt.Fprint(w, `{"Id":"x","State":{"Status":"running","Running":true},"Config":{}}`)
					return
				}
				w.WriteHeader(http.StatusOK)
				w.(http.Flusher).Flush()
				if requests++; requests <= c.times {
					fmt.Fprint(w,
						`{"cause":"no such process","message":"failed to obtain logs: read /proc/26032/cgroup: no such process","response":500}`)
					return
				}
				_, _ = w.Write(append([]byte{1, 0, 0, 0, 0, 0, 0, 5}, "hello"...))
			})
			var out strings.Builder
			err := a.Logs(context.Background(), "x", LogOptions{Tail: -1, Follow: follow}, &out, &out)
			if requests != c.requests || (err == nil && out.String() == "hello") != c.well {
				t.Errorf("with %d failures, following %v: sent %d requests, got %q, %v", c.times, follow, requests, &out, err)
			}
			if err != nil &&
				!strings.Contains(err.Error(), "read the log of container x: failed to obtain logs: read /proc/26032/cgroup") {
				t.Errorf("the error is %v, want the engine's message", err)
			}
		}
	}
}
