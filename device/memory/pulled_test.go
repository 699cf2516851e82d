package memory

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/wire"
)

// Pulled images survive a restart. Without a note, as of an earlier agent, the images of its pods
// count as pulled; a damaged note makes all images the owner's.
func TestPulledImagesSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	open := func(want ...Pulled) *Memory {
		t.Helper()
		m, err := Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Pulled(); !slices.Equal(got, want) {
			t.Errorf("pulled are %v, want %v", got, want)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m := open()
	must(m.SetDesired(wire.Desired{Hub: "h", Generation: 1, Pods: []corev1.Pod{{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Image: "init:1"}}, Containers: []corev1.Container{{Image: "web:1"}}}}}}))
	must(m.Close())
	m = open(Pulled{Name: "init:1"}, Pulled{Name: "web:1"})
	must(m.SetPulled(Pulled{"web:1", "sha256:a"}))
	must(m.SetPulled(Pulled{"web:1", "sha256:b"}))
	must(m.SetPulled(Pulled{"web:1", "sha256:b"}))
	must(m.DropPulled(func(p Pulled) bool { return p.Name == "init:1" }))
	must(m.Close())
	m = open(Pulled{"web:1", "sha256:a"}, Pulled{"web:1", "sha256:b"})
	must(m.Close())
	must(os.WriteFile(filepath.Join(dir, pulledFile), []byte("x"), 0o600))
	open()
}
