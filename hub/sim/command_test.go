package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/hub/ask"
)

// parrot runs any command in a chatty container: it echoes the input.
func parrot([]string) enginetest.ExecResult {
	return enginetest.ExecResult{Run: func(_ context.Context, s engine.Streams) int {
		_, _ = io.Copy(s.Stdout, s.Stdin)
		return 7
	}}
}

// TestFleetACommandsOutputIsCompleteOrAnError loses, doubles and delays single messages of a running
// command in both directions. No byte is missing, doubled or moved, or the command ends with an
// error.
func TestFleetACommandsOutputIsCompleteOrAnError(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		arm := w.accidents()
		pod := w.talkative()
		var said bytes.Buffer
		for n := 0; said.Len() < 1<<20; n++ {
			fmt.Fprintf(&said, "%06d flotilla\n", n)
		}
		all := said.String()
		whole, broken := 0, 0
		wholes, brokens := 10, 5 // least numbers
		if !long {
			wholes, brokens = 5, 3
		}
		for _, k := range []struct {
			dir  direction
			kind string
			nths []int
		}{{toDevice, "request", []int{1, 2, 3, 20, 34}}, {toHub, "reply", []int{1, 2, 5, 30}}, {toDevice, "puback",
			[]int{3}}} {
			for _, f := range fates {
				for _, nth := range k.nths {
					a := &accident{dir: k.dir, kind: k.kind, fate: f.is, left: nth}
					arm(a)
					ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
					var heard bytes.Buffer
					err := w.hub.Ask.Exec(ctx, pod, corev1.PodExecOptions{Container: "main", Command: []string{"parrot"}},
						ask.IO{Stdin: strings.NewReader(all), Stdout: &heard})
					cancel()
					arm(nil)
					what := fmt.Sprintf("the %s no. %d was %s", k.kind, nth, f.name)
					if a.happened().IsZero() {
						t.Errorf("%s: the accident did not happen", what)
					}
					exit := &ask.ExitError{}
					switch {
					case errors.As(err, &exit) && exit.Code == 7:
						if whole++; heard.String() != all {
							t.Errorf("%s: %d bytes of %d came back without an error", what, heard.Len(), len(all))
						}
					case err == nil || errors.Is(err, context.DeadlineExceeded):
						t.Errorf("%s: the command ended with %v", what, err)
					case !strings.HasPrefix(all, heard.String()):
						t.Errorf("%s: %d bytes came back that differ from the sent ones", what, heard.Len())
					default:
						broken++
					}
					time.Sleep(20 * time.Second) // until late copies have arrived
				}
			}
		}
		t.Logf("%d commands ended normally, %d with an error; want at least %d and %d", whole, broken, wholes, brokens)
		if whole < wholes || broken < brokens {
			t.Errorf("%d commands ended normally, %d with an error; want at least %d and %d", whole, broken,
				wholes, brokens)
		}
		w.settleWithin(twoLeases, "all these commands")
	})
}
