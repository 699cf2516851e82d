package cli

import (
	"context"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTransparentHugePagesAreDisabled(t *testing.T) {
	over, end := context.WithCancel(t.Context())
	end()
	if err := releaseMemory(over); err != nil {
		t.Error(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0) }()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	if _, on, found := strings.Cut(string(status), "THP_enabled:"); found &&
		!strings.HasPrefix(strings.TrimSpace(on), "0") {
		t.Error("transparent huge pages are not disabled")
	}
}
