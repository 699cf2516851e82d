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

// While the engine with the agent's containers is down for an upgrade, the agent waits for it.
// Another engine does not have the images.
func TestTheAgentWaitsForTheEngineThatHasTheContainers(t *testing.T) {
	dir, err := os.MkdirTemp("", "engine") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	program, podman := filepath.Join(dir, "bin", "podman"), filepath.Join(dir, "podman", "podman.sock")
	t.Setenv("PATH", filepath.Dir(program))
	if err := errors.Join(os.Mkdir(filepath.Dir(program), 0o700), os.Mkdir(filepath.Dir(podman), 0o700),
		os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700)); err != nil {
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
		t.Fatalf("named engine: got %q %v", socket, err)
	}
	if socket, err := at("auto"); socket != podman {
		t.Errorf("running engine: got %q %v", socket, err)
	}
	_ = first.Close()
	if socket, err := at("auto"); !errors.Is(err, engine.ErrUnavailable) || !strings.Contains(err.Error(), podman) {
		t.Errorf("stopped engine: got %q %v", socket, err)
	}
	if _, err := findWorkloads(t.Context(), "auto", state); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("reset with a stopped engine: the error is %v, want ErrUnavailable", err)
	}
	second := serve(podman)
	if socket, err := at("auto"); socket != podman {
		t.Errorf("restarted engine: got %q %v", socket, err)
	}
	_ = second.Close()
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	docker, err := at("auto")
	if err != nil || docker == podman {
		t.Errorf("uninstalled engine: got %q %v", docker, err)
	}
	serve(podman)
	if socket, err := at("auto"); socket != docker {
		t.Errorf("running engine without the containers: got %q %v", socket, err)
	}
}
