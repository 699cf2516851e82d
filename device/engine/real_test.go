package engine_test

import (
	"context"
	"os"
	"testing"
	"time"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
)

// eachEngine runs a test with the real Docker and the real Podman. A missing engine skips the test,
// and fails it with CI=true.
func eachEngine(t *testing.T, test func(t *testing.T, socket string)) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short skips real engines")
	}
	for _, e := range []struct{ name, variable, socket string }{
		{"docker", "DOCKER_SOCK", "/var/run/docker.sock"},
		{"podman", "PODMAN_SOCK", "/run/flotilla-test/podman.sock"},
	} {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			socket := e.socket
			if s := os.Getenv(e.variable); s != "" {
				socket = s
			}
			missing := t.Skipf
			if os.Getenv("CI") == "true" {
				missing = t.Fatalf
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			opened, err := engine.Open(ctx, socket)
			if err != nil {
				missing("no %s: %v (.ci/services starts it)", e.name, err)
			}
			defer opened.Close()
			if _, ok, err := opened.HasImage(ctx, enginetest.ToolImage); err != nil || !ok {
				missing("%s has no image %s: %v (.ci/services builds it)", e.name, enginetest.ToolImage, err)
			}
			test(t, socket)
		})
	}
}

func open(t *testing.T, socket string) engine.Engine {
	t.Helper()
	e, err := engine.Open(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestRealEnginesConform(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		enginetest.Conformance(t,
			func(t *testing.T) engine.Engine { return open(t, socket) },
			func(t *testing.T, run func(t *testing.T)) { t.Parallel(); run(t) })
	})
}
