package cli

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/store"
)

// If a gateway's clock is slow, a command uses the time that the hub has stored, or that the
// running hub answers.
func TestCommandsUseTheHubsTime(t *testing.T) {
	dir := t.TempDir()
	st, err := store.Open(t.Context(), store.Options{Dir: dir, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	about := func(want time.Time) {
		t.Helper()
		if got, err := hubTime(t.Context(), dir, st); err != nil || got.Sub(want).Abs() > time.Minute {
			t.Errorf("hubTime is %s, %v; want %s", got, err, want)
		}
	}
	about(time.Now())
	noted := time.Now().Add(30 * 24 * time.Hour)
	if err := st.End(t.Context(), noted); err != nil {
		t.Fatal(err)
	}
	about(noted)

	var says atomic.Value
	says.Store(noted.Add(3 * time.Hour).UTC().Format(time.RFC3339Nano))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- socket.Serve(ctx, filepath.Join(dir, socket.Name), func(_ context.Context, _, order string) (string, error) {
			if order != "time" {
				t.Errorf("the hub received the order %q, want time", order)
			}
			return says.Load().(string), nil
		})
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := socket.Ask(dir, "time"); err == nil || time.Now().After(end) {
			break
		}
	}
	about(noted.Add(3 * time.Hour))
	says.Store("an order that an old hub does not support")
	about(noted)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
