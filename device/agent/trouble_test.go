package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// A silentEngine sends no events.
type silentEngine struct{ engine.Engine }

func (silentEngine) Events(context.Context, string, func()) error {
	return errors.New("/events: 403 Forbidden")
}

// A fullEngine fails to remove containers.
type fullEngine struct{ engine.Engine }

func (fullEngine) Remove(context.Context, string) error {
	return errors.New("device or resource busy")
}

// A lasting error is logged only at intervals, so that the log stays readable.
func TestALastingErrorIsLoggedAtIntervals(t *testing.T) {
	data := wire.Volume{UID: dataUID, Namespace: "default", Claim: "data", Remove: true}
	limit := resource.MustParse("1Mi")
	for message, begin := range map[string]func(t *testing.T, d *device, want *wire.Desired){
		"read the hardware": func(_ *testing.T, d *device, _ *wire.Desired) {
			time.Sleep(time.Minute)
			d.board.set(func(b *board) { b.fault = errors.New("no such file") })
		},
		"part of the board profile is invalid": func(_ *testing.T, _ *device, want *wire.Desired) {
			want.Profile = &fleet.BoardProfile{}
			want.Profile.Spec.Resources.EvictionHard = map[string]string{"moon.available": "1Mi"}
		},
		"remove the data of persistent volumes": func(t *testing.T, d *device, want *wire.Desired) {
			dir := filepath.Join(d.dir, volume.PersistentDir, dataUID)
			must(t, os.MkdirAll(dir, 0o700))
			if err := unix.Mount("test", dir, "tmpfs", 0, "size=1m"); err != nil {
				t.Skip("cannot mount: ", err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			want.Volumes = []wire.Volume{data}
		},
		"measure the volumes of pod default/app": func(t *testing.T, d *device, want *wire.Desired) {
			p := &want.Pods[0]
			p.Spec.Volumes = []corev1.Volume{{Name: "v",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &limit}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
			must(t, d.agent.Store(*want))
			time.Sleep(time.Second)
			where := filepath.Dir(d.agent.disk.Dir(&p.Spec.Volumes[0], p.UID))
			must(t, errors.Join(os.Rename(where, where+"-was"), os.WriteFile(where, nil, 0o600)))
		},
		"remove default/gone container c0 failed": func(t *testing.T, d *device, want *wire.Desired) {
			d.end()
			d.engine = fullEngine{d.fake}
			d.start()
			want.Pods = append(want.Pods, makePod("gone", "exit 0"))
			must(t, d.agent.Store(*want))
			time.Sleep(time.Second)
			want.Pods[1] = deletedPod(want.Pods[1], 1)
		},
		"the desired state was not stored": func(t *testing.T, d *device, _ *wire.Desired) {
			go func() { // the hub repeats the desired state until it is stored
				time.Sleep(time.Minute)
				for _, slot := range []string{"desired.0.state", "desired.1.state"} {
					must(t, errors.Join(os.Remove(filepath.Join(d.dir, slot)),
						os.Mkdir(filepath.Join(d.dir, slot), 0o700)))
				}
				for range 170 {
					time.Sleep(time.Minute)
					d.agent.Desired(wire.Desired{Generation: 9, Hub: "hub-1"})
				}
			}()
		},
		"the engine's events ended": func(_ *testing.T, d *device, _ *wire.Desired) {
			d.end()
			d.engine = silentEngine{d.fake}
			d.start()
		},
	} {
		t.Run(message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDevice(t)
				var log bytes.Buffer
				d.config.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
				d.config.Policy.LocalVolumes = true
				d.start()
				want := wire.Desired{Generation: 1, Hub: "hub-1", Pods: []corev1.Pod{makePod("app", "wait")}}
				begin(t, d, &want)
				want.Generation++
				must(t, d.agent.Store(want))
				time.Sleep(3 * time.Hour)
				d.end()
				if n := strings.Count(log.String(), message); n == 0 || n > 4 {
					t.Errorf("the error was logged %d times in three hours", n)
				}
			})
		})
	}
}
