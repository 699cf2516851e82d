package engine

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Find skips an engine that is too old and uses the next one.
func TestTheFirstUsableEngineIsOpened(t *testing.T) {
	dir, err := os.MkdirTemp("", "engine") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	at := func(name, api string) string {
		socket := filepath.Join(dir, name)
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", api)
			w.Header().Set("Content-Type", "application/json")
			if !strings.HasSuffix(r.URL.Path, "/_ping") {
				_, _ = w.Write([]byte(`{"Os":"linux","Arch":"arm64"}`))
			}
		})}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close() })
		return socket
	}
	missing, old, older, good := filepath.Join(dir, "missing"), at("old", "1.30"), at("older", "1.20"), at("good", "1.41")
	e, err := first(t.Context(), []string{missing, old, good})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := e.Info(t.Context()); err != nil || info.Socket != good {
		t.Errorf("the engine is at %s: %v; want %s", info.Socket, err, good)
	}
	if _, err := first(t.Context(), []string{missing, old, older}); !errors.Is(err, ErrUnsupported) ||
		!strings.Contains(err.Error(), old) {
		t.Errorf("if all engines are too old: %v, want ErrUnsupported with %s", err, old)
	}
	if _, err := first(t.Context(), []string{missing, missing}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("if no socket answers: %v, want ErrUnavailable", err)
	}
}
