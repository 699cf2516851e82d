package cli

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestADisconnectedDeviceRequestsTheHubsAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var online atomic.Bool
		renew := make(chan struct{}, 1)
		done := make(chan struct{})
		go func() { defer close(done); _ = askForAddresses(ctx, online.Load, renew) }()
		count := func(d time.Duration) (asked int) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
				select {
				case <-renew:
					asked++
				default:
				}
			}
			return asked
		}
		online.Store(true)
		if n := count(24 * time.Hour); n != 0 {
			t.Errorf("got %d renewals in a day with a connection, want 0", n)
		}
		online.Store(false)
		if n := count(59 * time.Second); n != 0 {
			t.Errorf("got %d renewals in the first minute of an outage, want 0", n)
		}
		if n := count(70 * time.Second); n != 1 {
			t.Errorf("got %d renewals in the first two minutes of an outage, want 1", n)
		}
		if n := count(24 * time.Hour); n < 22 || n > 50 {
			t.Errorf("got %d renewals in a day without a connection, want one every 32 to 64 minutes", n)
		}
		online.Store(true)
		count(time.Minute)
		online.Store(false)
		if n := count(130 * time.Second); n != 1 {
			t.Errorf("got %d renewals in the first two minutes of the next outage, want 1", n)
		}
		cancel()
		<-done
	})
}
