package engine

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Podman sometimes keeps following the log of a container that exited at once, so package engine
// ends such a log.
func TestALogEndsWithItsContainer(t *testing.T) {
	var running, large atomic.Bool
	a := served(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/logs"):
			fmt.Fprint(w, "hello")
			if large.Load() {
				fmt.Fprint(w, strings.Repeat("x", 200_000))
			}
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		case strings.HasSuffix(r.URL.Path, "/json"):
			status := "exited"
			if running.Load() {
				status = "running"
			}
			fmt.Fprintf(w, `{"Id":"x","State":{"Status":%q,"Running":%v},"Config":{"Tty":true}}`, status, running.Load())
		}
	})
	var out strings.Builder
	if err := a.Logs(t.Context(), "x", LogOptions{Tail: -1, Follow: true}, &out, &out); err != nil ||
		out.String() != "hello" {
		t.Errorf("the log of an ended container is %q, %v; want hello", &out, err)
	}
	running.Store(true) // a running container may be silent
	some, cancel := context.WithTimeout(t.Context(), 20*a.silence)
	defer cancel()
	if err := a.Logs(some, "x", LogOptions{Tail: -1, Follow: true}, &out, &out); err != nil || some.Err() == nil {
		t.Errorf("following the log of a running container ended with %v, want it to last until its context ends", err)
	}
	running.Store(false) // a slow reader gets the whole log
	large.Store(true)
	slow := &slowly{pause: 3 * a.silence}
	if err := a.Logs(t.Context(), "x", LogOptions{Tail: -1, Follow: true}, slow, slow); err != nil || slow.n != 200_005 {
		t.Errorf("a slow reader got %d bytes: %v", slow.n, err)
	}
}

type slowly struct {
	pause time.Duration
	n     int
}

func (s *slowly) Write(b []byte) (int, error) {
	time.Sleep(s.pause)
	s.n += len(b)
	return len(b), nil
}

// On a device whose clock is not set yet, "an hour ago" is before 1970.
func TestALogSinceBefore1970IsComplete(t *testing.T) {
	for since, want := range map[time.Time]string{
		{}:                          "",
		time.Unix(-3600, 0):         "",
		time.Unix(-9223372036, 0):   "",
		time.Unix(0, 5):             "0.000000005",
		time.Unix(1800000000, 1000): "1800000000.000001000",
	} {
		var query string
		a := served(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/logs") {
				query = r.URL.Query().Get("since")
				return
			}
			fmt.Fprint(w, `{"Id":"x","State":{"Status":"exited"},"Config":{"Tty":true}}`)
		})
		var out strings.Builder
		if err := a.Logs(t.Context(), "x", LogOptions{Tail: -1, Since: since}, &out, &out); err != nil || query != want {
			t.Errorf("since %s: the request has since=%q, want %q: %v", since, query, want, err)
		}
	}
}
