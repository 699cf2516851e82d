package serve

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/enrolment"
	"flotilla.dev/hub/pki"
)

// If the authority of a database is lost, the hub does not start. A new authority would lock every
// device out without an error.
func TestALostAuthorityIsNotReplaced(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	dir := filepath.Join(cfg.DataDir, "pki")
	run := func(do func(*Hub)) (pin string, err error) {
		hub, err := New(t.Context(), Options{Config: cfg, Version: "test", Log: slog.New(slog.DiscardHandler),
			Listeners: Listeners{Dev: pipe.New()}})
		if err != nil {
			return "", err
		}
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- hub.Run(ctx) }()
		<-hub.Up()
		if do != nil {
			do(hub)
		}
		stop()
		return hub.authority.Pin(), <-over
	}
	first, err := run(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	second, err := run(func(h *Hub) { // until here no device has joined, so the authority is new
		if err := (enrolment.Enrolments{Loop: h.Loop}).Enrol(t.Context(), access.Enrolment{Node: "pi-1", Key: "k",
			MachineID: "m", Site: "oslo", At: time.Now(), Expires: time.Now().AddDate(1, 0, 0)}); err != nil {
			t.Error(err)
		}
	})
	if err != nil || second == first {
		t.Fatalf("the start of a fleet without devices: %v", err)
	}
	for _, lose := range []func() error{
		func() error { return os.Rename(dir, dir+".kept") },
		func() error { return os.Mkdir(dir, 0o700) }, // an empty directory
	} {
		if err := lose(); err != nil {
			t.Fatal(err)
		}
		if _, err := run(nil); !errors.Is(err, pki.ErrKey) || !strings.Contains(err.Error(), dir) ||
			!strings.Contains(err.Error(), "(1) have joined with it") {
			t.Fatalf("the start without the authority: %v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, "root.crt")); err == nil {
			t.Fatal("a new authority is created")
		}
	}
	if err := errors.Join(os.Remove(dir), os.Rename(dir+".kept", dir)); err != nil {
		t.Fatal(err)
	}
	if again, err := run(nil); err != nil || again != second {
		t.Fatalf("the start with the restored authority: %v", err)
	}
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, pki.BeginAnew), nil,
		0o600)); err != nil {
		t.Fatal(err)
	}
	third, err := run(nil)
	if err != nil || third == second {
		t.Fatalf("the start with the file for a new authority: %v", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := run(nil); !errors.Is(err, pki.ErrKey) {
		t.Fatalf("the file for a new authority is not removed: %v", err)
	}
}

// A lost key of boot configurations is replaced, with a warning if boards may know the former one.
func TestALostFirmwareKeyGivesAWarning(t *testing.T) {
	cfg := config.Default()
	cfg.DataDir = t.TempDir()
	start := func() (*Hub, string) {
		var said bytes.Buffer
		hub, err := New(t.Context(), Options{Config: cfg, Version: "test", Log: slog.New(slog.NewTextHandler(&said, nil)),
			Listeners: Listeners{Dev: pipe.New()}})
		if err != nil {
			t.Fatal(err)
		}
		return hub, said.String()
	}
	for _, joined := range []bool{false, true, true} {
		hub, said := start()
		if warned := strings.Contains(said, "boot configurations was missing"); warned != joined {
			t.Errorf("devices have joined: %t; there is a warning: %t\n%s", joined, warned, said)
		}
		ctx, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() { over <- hub.Run(ctx) }()
		<-hub.Up()
		if err := (enrolment.Enrolments{Loop: hub.Loop}).Enrol(t.Context(), access.Enrolment{Node: "pi-1", Key: "k",
			MachineID: "m", Site: "oslo", At: time.Now(), Expires: time.Now().AddDate(1, 0, 0)}); err != nil && !joined {
			t.Error(err)
		}
		stop()
		if err := <-over; err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(cfg.DataDir, "pki", "firmware.key")); err != nil {
			t.Fatal(err)
		}
	}
}
