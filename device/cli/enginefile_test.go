package cli

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"flotilla.dev/device/engine"
)

// The agent waits for the engine that has its containers while that engine is upgraded: another one
// has none of the images.
func TestTheEngineThatHasTheContainersIsWaitedFor(t *testing.T) {
	dir, err := os.MkdirTemp("", "engine") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	program, podman := filepath.Join(dir, "bin", "podman"), filepath.Join(dir, "podman", "podman.sock")
	t.Setenv("PATH", filepath.Dir(program))
	if err := errors.Join(os.Mkdir(filepath.Dir(program), 0o700), os.Mkdir(filepath.Dir(podman), 0o700), os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700)); err != nil {
		t.Fatal(err)
	}
	serve := func(socket string) *http.Server {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			w.Header().Set("Content-Type", "application/json")
			if !strings.HasSuffix(r.URL.Path, "/_ping") {
				_, _ = w.Write([]byte(`{"Os":"linux","Arch":"arm64"}`))
			}
		})}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	state, log := t.TempDir(), slog.New(slog.DiscardHandler)
	at := func(choice string) (string, error) {
		e, err := openEngine(t.Context(), choice, state, log)
		if err != nil {
			return "", err
		}
		defer func() { _ = e.Close() }()
		info, err := e.Info(t.Context())
		return info.Socket, err
	}
	serve(filepath.Join(dir, "docker.sock"))
	first := serve(podman)
	if socket, err := at(podman); socket != podman {
		t.Fatalf("it is named: %q %v", socket, err)
	}
	if socket, err := at("auto"); socket != podman {
		t.Errorf("it is there: %q %v", socket, err)
	}
	_ = first.Close()
	if socket, err := at("auto"); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), podman) {
		t.Errorf("it is away: %q %v", socket, err)
	}
	if _, err := findWorkloads(t.Context(), "auto", state); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("it is away, and its containers are to be removed: %v", err)
	}
	second := serve(podman)
	if socket, err := at("auto"); socket != podman {
		t.Errorf("it is there again: %q %v", socket, err)
	}
	_ = second.Close()
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	other, err := at("auto")
	if err != nil || other == podman {
		t.Errorf("it is installed no more: %q %v", other, err)
	}
	serve(podman)
	if socket, err := at("auto"); socket != other {
		t.Errorf("the other one has the containers: %q %v", socket, err)
	}
}
