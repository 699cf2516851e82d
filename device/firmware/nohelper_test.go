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

// Most devices have no boot helper. The agent rarely asks for it, logs no error, and reports it
// only if the hub wants a configuration.
func TestADeviceWithoutABootHelperIsQuiet(t *testing.T) {
	for name, want := range map[string]*wire.Firmware{"nothing is wanted": nil, "something is": {Digest: "sha256:" + strings.Repeat("0", 64)}} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			asked := 0
			var told *wire.FirmwareStatus
			r := Runner{
				Node: "pi-1", Disk: boothelper.Kernel{}, Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil)),
				Ask: func(context.Context, boothelper.Request) (boothelper.Reply, error) {
					asked++
					return boothelper.Reply{}, errors.New("dial unix /run/flotilla-boot-helper.sock: connect: no such file or directory")
				},
				Desired: func() (*wire.Firmware, []byte) { return want, []byte("key") },
				Health: func(context.Context) Health {
					return Health{Disk: func() string { t.Error("the disk is written to, and nothing is tried"); return "" }}
				},
				Report: func(st *wire.FirmwareStatus) { told = st },
			}
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for range int(time.Hour / restTime) {
				if _, err := r.Step(t.Context(), now); err != nil {
					t.Fatal(err)
				}
				now = now.Add(restTime)
			}
			if most := int(time.Hour/askTime) + 1; asked > most {
				t.Errorf("the helper was asked %d times in an hour, at most %d are right", asked, most)
			}
			if n := strings.Count(log.String(), "\n"); want == nil && n > 0 || n > 1 {
				t.Errorf("the log has %d lines:\n%s", n, log.String())
			}
			switch {
			case want == nil && told != nil:
				t.Errorf("the hub is told %+v", told)
			case want != nil && (told == nil || told.State != wire.FirmwareUnsupported || !strings.Contains(told.Message, "no such file")):
				t.Errorf("the hub is told %+v", told)
			}
		})
	}
}
