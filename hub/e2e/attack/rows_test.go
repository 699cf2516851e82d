package main

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"flotilla.dev/hub/e2e/harness"
)

// Each attack must report a hub without limits, and a hub that never answers.
func softHub(t *testing.T, answer http.HandlerFunc) *harness.Hub {
	t.Helper()
	dir := t.TempDir()
	web := httptest.NewUnstartedServer(answer)
	web.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	web.StartTLS()
	t.Cleanup(web.Close)
	key, err := x509.MarshalPKCS8PrivateKey(web.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	chain := text("CERTIFICATE", web.Certificate().Raw)
	config := fmt.Sprintf("clusters: [{cluster: {certificate-authority-data: %s}}]\nusers: [{user: "+
		"{client-certificate-data: %s, client-key-data: %s}}]\n", chain, chain, text("PRIVATE KEY", key))
	program := filepath.Join(dir, "hub")
	if err := os.WriteFile(program, fmt.Appendf(nil, "#!/bin/sh\ncat <<'EOF'\n%sEOF\n", config), 0o700); err != nil {
		t.Fatal(err)
	}
	quiet, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	t.Cleanup(func() { _ = quiet.Close(); <-over })
	go func() {
		defer close(over)
		for {
			c, err := quiet.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	a := &harness.Hub{Program: program, Dir: dir, HTTPS: web.Listener.Addr().String(), Dev: quiet.Addr().String()}
	if a.Admin, err = a.As(t.Context(), "admin", "root"); err != nil {
		t.Fatal(err)
	}
	a.Cmd = &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}} // figures of the test's own process, which do not matter
	return a
}

func TestASuccessfulAttackIsReported(t *testing.T) {
	yes := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/login" {
			http.SetCookie(w, &http.Cookie{Name: "session", Value: "s"})
		}
		w.WriteHeader(http.StatusCreated)
	}
	noLists := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "configmaps") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusCreated)
		}
	}
	for _, c := range []struct {
		name  string
		hub   http.HandlerFunc
		run   func(context.Context, *harness.Hub) (string, error)
		wrong string
	}{
		{"connections stay open", yes, hugeMQTT, "not closed"},
		{"a viewer writes", yes, refusedWrites, "is accepted"},
		{"a wrong password is accepted", yes, loginFlood, "a wrong password is accepted"},
		{"no list is answered", noLists, unreadLists, "not answered"},
		{"no watch opens", noLists, unreadWatches, "do not open"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if seen, err := c.run(t.Context(), softHub(t, c.hub)); err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("the attack returned %v, seen %s; want an error with %q", err, seen, c.wrong)
			}
		})
	}
}
