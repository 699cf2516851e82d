package firmware

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/boothelper"
	"flotilla.dev/shared/wire"
)

// Most devices have no boot helper. The agent rarely asks for it, logs no error, and reports the
// missing helper only if the hub wants a configuration.
func TestADeviceWithoutABootHelperIsQuiet(t *testing.T) {
	for name, want := range map[string]*wire.Firmware{"without a desired configuration": nil,
		"with a desired configuration": {Digest: "sha256:" + strings.Repeat("0", 64)}} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			requests := 0
			var reported *wire.FirmwareStatus
			r := Runner{
				Node: "pi-1", Disk: boothelper.Kernel{}, Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil)),
				Ask: func(context.Context, boothelper.Request) (boothelper.Reply, error) {
					requests++
					return boothelper.Reply{}, errors.New(
						"dial unix /run/flotilla-boot-helper.sock: connect: no such file or directory")
				},
				Desired: func() (*wire.Firmware, []byte) { return want, []byte("key") },
				Health: func(context.Context) Health {
					return Health{Disk: func() string { t.Error("the disk is written without a trial"); return "" }}
				},
				Report: func(st *wire.FirmwareStatus) { reported = st },
			}
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for range int(time.Hour / restTime) {
				if _, err := r.Step(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				now = now.Add(restTime)
			}
			if most := int(time.Hour/askTime) + 1; requests > most {
				t.Errorf("the helper got %d requests in an hour, want at most %d", requests, most)
			}
			if n := strings.Count(log.String(), "\n"); want == nil && n > 0 || n > 1 {
				t.Errorf("the log has %d lines, want at most one for a desired configuration:\n%s", n, log.String())
			}
			switch {
			case want == nil && reported != nil:
				t.Errorf("without a desired configuration the reported status is %+v, want none", reported)
			case want != nil && (reported == nil || reported.State != wire.FirmwareUnsupported ||
				!strings.Contains(reported.Message, "no such file")):
				t.Errorf("the reported status is %+v, want unsupported with the reason", reported)
			}
		})
	}
}
