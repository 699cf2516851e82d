package ask_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/shared/wire"
)

func TestADeviceIsMeasuredOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notified atomic.Int32
		var fails atomic.Bool
		g := newGadget(nil)
		g.handle = func(g *gadget, id string, r wire.Request) {
			if r.Type != wire.RequestUsage {
				return
			}
			number := g.count(wire.RequestUsage)
			time.AfterFunc(2*time.Second, func() {
				g.mu.Lock()
				g.next = 0
				g.mu.Unlock()
				answer := wire.Reply{Data: fmt.Appendf(nil, `{"window":"2s","node":{"pods":"%d"}}`, number), EOF: true}
				if fails.Load() {
					answer = wire.Reply{Error: "cannot measure", EOF: true}
				}
				g.reply(id, answer)
			})
		}
		look := func(wantNumber int64, wantAsked, wantNotified int, when string) {
			t.Helper()
			u, ok := g.client.LastUsage("pi-1", func() { notified.Add(1) })
			synctest.Wait()
			if n := u.Node.Pods().Value(); ok != (wantNumber > 0) || n != wantNumber || g.count(wire.RequestUsage) != wantAsked ||
				int(notified.Load()) != wantNotified {
				t.Errorf("%s: measurement %d (known: %v), %d requests, %d notifications; want measurement %d, %d, %d",
					when, n, ok, g.count(wire.RequestUsage), notified.Load(), wantNumber, wantAsked, wantNotified)
			}
		}
		look(0, 1, 0, "at the first call")
		look(0, 1, 0, "while the device measures")
		time.Sleep(3 * time.Second)
		look(1, 1, 1, "after the first measurement")
		time.Sleep(15 * time.Second)
		look(1, 2, 1, "while the device measures again")
		time.Sleep(3 * time.Second)
		look(2, 2, 2, "after the second measurement")
		if _, err := g.client.Usage(t.Context(), "pi-1"); err != nil || g.count(wire.RequestUsage) != 2 {
			t.Errorf("Usage right after a measurement measures again: %v", err)
		}
		fails.Store(true)
		time.Sleep(15 * time.Second)
		look(2, 3, 2, "while a measurement fails")
		time.Sleep(3 * time.Second)
		look(2, 3, 2, "after a failure: no new request at once")
		time.Sleep(time.Minute)
		look(0, 4, 2, "a minute after the last measurement")
		time.Sleep(3 * time.Second)
	})
}
