package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
)

// Podman gives a container that it takes for an init system a writable cgroup, so the container
// could change its own limits.
func TestPodmanRunsNoContainerInSystemdMode(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		defer e.Close()
		for i, tt := range []struct {
			name       string
			entry, arg []string
			privileged bool
			refused    bool // Podman must refuse it
		}{
			{name: "init", entry: []string{"/sbin/init"}, refused: true},
			{name: "init in /usr", entry: []string{"/usr/sbin/init"}, refused: true},
			{name: "init in /usr/local", entry: []string{"/usr/local/sbin/init"}, refused: true},
			{name: "systemd in any directory", entry: []string{"/app/systemd", "--user"}, refused: true},
			{name: "systemd without a path", entry: []string{"systemd"}, refused: true},
			{name: "a privileged container", entry: []string{"/sbin/init"}, privileged: true},
			{name: "init in another directory", entry: []string{"/app/init"}},
			{name: "init as an argument", arg: []string{"/sbin/init"}},
			{name: "another program", entry: []string{"/tool"}},
		} {
			t.Run(tt.name, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
				defer cancel()
				id, err := e.Create(ctx, engine.Spec{
					Name: fmt.Sprintf("flotilla-test-systemd-%d-%d", time.Now().UnixNano(), i), Image: enginetest.ToolImage,
					Entrypoint: tt.entry, Args: tt.arg, Privileged: tt.privileged,
					Labels: map[string]string{"flotilla.test/case": "systemd"},
				})
				if err == nil {
					defer func() { _ = e.Remove(ctx, id) }()
				}
				podman := strings.Contains(socket, "podman")
				switch {
				case podman && tt.refused:
					if !errors.Is(err, engine.ErrUnsupported) || !strings.Contains(err.Error(), "init system") {
						t.Errorf("got %v, want ErrUnsupported that names the init system", err)
					}
				case err != nil:
					t.Error(err)
				}
				if podman && err == nil && !tt.privileged && inSystemdMode(t, ctx, socket, id) {
					t.Error("the container can write its cgroup")
				}
			})
		}
	})
}

func inSystemdMode(t *testing.T, ctx context.Context, socket, id string) bool {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(socket, "unix://"))
	}}}
	defer c.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://podman/v4.0.0/libpod/containers/"+id+"/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var podman struct{ Config struct{ SystemdMode bool } }
	if err := json.NewDecoder(answer.Body).Decode(&podman); err != nil || answer.StatusCode != 200 {
		t.Fatal(answer.Status, err)
	}
	return podman.Config.SystemdMode
}

// Podman silently uses only the lower sixteen bits of a port number.
func TestAPortOutOfRangeIsRefused(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		defer e.Close()
		for i, port := range []int32{65536 + 22, 65536, -1, 1 << 30} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			id, err := e.Create(ctx, engine.Spec{
				Name: fmt.Sprintf("flotilla-test-port-%d-%d", time.Now().UnixNano(), i), Image: enginetest.ToolImage,
				Ports: []engine.Port{{HostPort: port, ContainerPort: 80}}, Labels: map[string]string{"flotilla.test/case": "port"},
			})
			if err == nil {
				_ = e.Remove(ctx, id)
			}
			if !errors.Is(err, engine.ErrUnsupported) {
				t.Errorf("host port %d: %v, want ErrUnsupported", port, err)
			}
		}
	})
}
