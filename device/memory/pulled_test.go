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

// Pulled images survive a restart. Without the file, as after an earlier agent, the images of the
// agent's pods count as pulled. If the file is damaged, all images count as the owner's.
func TestPulledImagesSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	open := func(want ...Pulled) *Memory {
		t.Helper()
		m, err := Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Pulled(); !slices.Equal(got, want) {
			t.Errorf("the pulled images are %v, want %v", got, want)
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
	must(m.SetDesired(wire.Desired{Hub: "h", Generation: 1,
		Pods: []corev1.Pod{{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Image: "init:1"}},
			Containers: []corev1.Container{{Image: "web:1"}}}}}}))
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
