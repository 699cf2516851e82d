package socket

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnOrderWorksWithALongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep/", 40))
	if _, err := Ask(dir, "resume"); !errors.Is(err, ErrNoDirectory) || !strings.Contains(err.Error(), "--data-dir") {
		t.Errorf("a missing directory: %v, want ErrNoDirectory with advice", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Ask(dir, "resume"); err == nil || errors.Is(err, ErrNoDirectory) ||
		!strings.Contains(err.Error(), "is it running?") {
		t.Errorf("a directory without a hub: %v, want the question whether it runs", err)
	}
	for range 2 { // twice, since a killed hub leaves its socket
		if err := os.WriteFile(filepath.Join(dir, Name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() {
			over <- Serve(ctx, filepath.Join(dir, Name), func(_ context.Context, by, order string) (string, error) {
				if order == "fail" {
					return "not told", errors.New("there is a reason")
				}
				return by + " says " + order, nil
			})
		}()
		for { // retry until the socket exists
			if _, err := Ask(dir, "are you there"); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if answer, err := Ask(dir, "ca status"); err != nil || answer != UserName(os.Getuid())+" says ca status\n" {
			t.Errorf("the answer is %q, %v", answer, err)
		}
		if answer, err := Ask(dir, "fail"); err == nil || err.Error() != "there is a reason" || answer != "" {
			t.Errorf("a failed order is answered %q, %v", answer, err)
		}
		if info, err := os.Stat(filepath.Join(dir, Name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the socket's mode is %v, %v; want 0600", info.Mode(), err)
		}
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
}

// A hub that hangs accepts a connection and does not answer. The caller gets an error in time.
func TestAskEndsIfTheHubHangs(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, Name))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := ask(dir, "standing", 20*time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "has not answered") {
		t.Error(err)
	}
}
