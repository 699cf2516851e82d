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
		var told atomic.Int32
		var deaf atomic.Bool
		g := newGadget(nil)
		g.hears = func(g *gadget, id string, r wire.Request) {
			if r.Type != wire.RequestUsage {
				return
			}
			number := g.count(wire.RequestUsage)
			time.AfterFunc(2*time.Second, func() {
				g.mu.Lock()
				g.next = 0
				g.mu.Unlock()
				answer := wire.Reply{Data: fmt.Appendf(nil, `{"window":"2s","node":{"pods":"%d"}}`, number), EOF: true}
				if deaf.Load() {
					answer = wire.Reply{Error: "cannot measure", EOF: true}
				}
				g.says(id, answer)
			})
		}
		look := func(wantNo int64, wantAsked, wantTold int, when string) {
			t.Helper()
			u, ok := g.client.LastUsage("pi-1", func() { told.Add(1) })
			synctest.Wait()
			if n := u.Node.Pods().Value(); ok != (wantNo > 0) || n != wantNo || g.count(wire.RequestUsage) != wantAsked ||
				int(told.Load()) != wantTold {
				t.Errorf("%s: shows measurement %d (%v) of %d, notified %d times; want %d of %d, %d times", when, n, ok,
					g.count(wire.RequestUsage), told.Load(), wantNo, wantAsked, wantTold)
			}
		}
		look(0, 1, 0, "at first")
		look(0, 1, 0, "while it measures")
		time.Sleep(3 * time.Second)
		look(1, 1, 1, "when it has")
		time.Sleep(15 * time.Second)
		look(1, 2, 1, "later, while it measures again")
		time.Sleep(3 * time.Second)
		look(2, 2, 2, "when it has again")
		if _, err := g.client.Usage(t.Context(), "pi-1"); err != nil || g.count(wire.RequestUsage) != 2 {
			t.Errorf("a call at that time measures again: %v", err)
		}
		deaf.Store(true)
		time.Sleep(15 * time.Second)
		look(2, 3, 2, "while it cannot")
		time.Sleep(3 * time.Second)
		look(2, 3, 2, "when it could not: it is not asked all the time")
		time.Sleep(time.Minute)
		look(0, 4, 2, "when it has not for long")
		time.Sleep(3 * time.Second)
	})
}
