package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/hub/ask"
)

// chatty is the log of the image "chatty". It is longer than what a device sends before the hub
// acknowledges.
var chatty = func() (lines []enginetest.Line) {
	for n := range 3000 {
		lines = append(lines, enginetest.Line{Text: fmt.Sprintf("%04d %s", n, strings.Repeat("flotilla ", 90))})
	}
	return lines
}()

// TestFleetAResponseIsCompleteOrAnError loses, doubles and delays single messages of a request
// to a device and of its response. The client gets the whole response, or an error within two lease
// intervals and may try again.
func TestFleetAResponseIsCompleteOrAnError(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		arm := w.accidents()
		pod := w.talkative()
		log := func(lines *int64) (string, error) {
			var out bytes.Buffer
			err := w.hub.Ask.Logs(context.Background(), pod, corev1.PodLogOptions{Container: "main", TailLines: lines}, &out)
			return out.String(), err
		}
		all, err := log(nil)
		if n := strings.Count(all, "\n"); err != nil || n != len(chatty) {
			t.Fatalf("%d lines of log, want %d: %v", n, len(chatty), err)
		}
		questions := []struct {
			name     string
			requests []int // numbers of the affected messages of the request
			replies  []int
			ask      func() (time.Time, error) // sends the request and returns the time of sending
			again    func() error
		}{
			{"log", []int{1, 2}, []int{1, 70}, func() (time.Time, error) {
				at := time.Now()
				have, err := log(nil)
				if err == nil && have != all || !strings.HasPrefix(all, have) {
					t.Errorf("%d bytes of log, want %d; error %v", len(have), len(all), err)
				}
				return at, err
			}, func() error {
				have, err := log(new(int64(7)))
				if err == nil && (strings.Count(have, "\n") != 7 || !strings.HasSuffix(all, have)) {
					t.Errorf("the last seven lines are %q", have)
				}
				return err
			}},
			{"usage", []int{1}, []int{1}, func() (time.Time, error) {
				time.Sleep(30 * time.Second) // until the cached response has expired
				at := time.Now()
				use, err := w.hub.Ask.Usage(context.Background(), "oslo-1")
				if err == nil && len(use.Pods) != 1 {
					t.Errorf("usage of %d pods, want one", len(use.Pods))
				}
				return at, err
			}, func() error {
				_, err := w.hub.Ask.Usage(context.Background(), "oslo-1")
				return err
			}},
		}
		hits := map[string]int{}
		for _, q := range questions {
			for _, k := range []struct {
				dir  direction
				kind string
				nths []int
			}{{toDevice, "request", q.requests}, {toHub, "reply", q.replies}} {
				for _, f := range fates {
					for _, nth := range k.nths {
						a := &accident{dir: k.dir, kind: k.kind, fate: f.is, left: nth}
						arm(a)
						began, err := q.ask()
						what := fmt.Sprintf("%s; the %s no. %d was %s", q.name, k.kind, nth, f.name)
						if at := a.happened(); !at.IsZero() {
							hits[q.name+" "+k.kind]++
							began = at
						}
						if took := time.Since(began); took > twoLeases {
							t.Errorf("%s: the request took %s", what, took)
						}
						if err != nil && !errors.Is(err, ask.ErrLost) {
							t.Errorf("%s: %v", what, err)
						}
						arm(nil)
						if err = q.again(); err != nil {
							t.Errorf("%s; second request: %v", what, err)
						}
						time.Sleep(15 * time.Second) // until late copies have arrived
					}
				}
			}
		}
		t.Log(hits)
		for _, k := range []string{"log request", "log reply", "usage request", "usage reply"} {
			if hits[k] < len(fates) {
				t.Errorf("only %d messages of %s were affected", hits[k], k)
			}
		}
		w.settleWithin(twoLeases, "all these requests")
	})
}
