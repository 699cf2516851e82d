package memory

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/wire"
)

func open(t *testing.T, dir string) (*Memory, *bytes.Buffer) {
	t.Helper()
	var said bytes.Buffer
	m, err := Open(dir, slog.New(slog.NewTextHandler(&said, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() }) // a second time for those closed before
	return m, &said
}

func desired(generation int64, hub string, names ...string) wire.Desired {
	d := wire.Desired{Generation: generation, Hub: hub, Time: time.Unix(generation, 0)}
	for _, n := range names {
		d.Pods = append(d.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: n}})
	}
	return d
}

func TestADesiredStateSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	m, _ := open(t, dir)
	if _, ok := m.Desired(); ok {
		t.Fatal("a new device claims to have a desired state")
	}
	if err := m.SetDesired(desired(3, "hub", "a", "b")); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m, said := open(t, dir)
	d, ok := m.Desired()
	if !ok || d.Generation != 3 || len(d.Pods) != 2 || said.Len() > 0 {
		t.Errorf("after a restart: %v, generation %d, %d pods; said %q", ok, d.Generation, len(d.Pods), said)
	}
	if info, err := os.Stat(filepath.Join(dir, desiredFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file, which holds secrets, is %v (%v), want 0600", info.Mode(), err)
	}
}

func TestGenerationsCompareWithinOneHub(t *testing.T) {
	m, _ := open(t, t.TempDir())
	for _, c := range []struct {
		name    string
		d       wire.Desired
		refused bool
	}{
		{"the first is taken", desired(5, "one", "a"), false},
		{"an older one of the same hub is refused", desired(4, "one"), true},
		{"the same generation with other content is taken", desired(5, "one", "b"), false},
		{"a newer one is taken", desired(6, "one", "c"), false},
		{"a lower one of another hub is taken", desired(1, "two", "d"), false},
	} {
		if err := m.SetDesired(c.d); errors.Is(err, ErrOlder) != c.refused || err != nil && !c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if d, _ := m.Desired(); d.Hub != "two" || d.Generation != 1 {
		t.Errorf("stored: generation %d of %s", d.Generation, d.Hub)
	}
}

func TestNothingIsWrittenWhereNothingHasChanged(t *testing.T) {
	dir := t.TempDir()
	m, _ := open(t, dir)
	path := filepath.Join(dir, desiredFile)
	if err := m.SetDesired(desired(3, "hub", "a")); err != nil {
		t.Fatal(err)
	}
	first, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	again := desired(3, "hub", "a")
	again.Time = time.Unix(99, 0) // every resend has its own
	if err := m.SetDesired(again); err != nil {
		t.Fatal(err)
	}
	if err := m.SetNotes(nil); err != nil {
		t.Fatal(err)
	}
	second, err := os.Stat(path)
	if err != nil || !os.SameFile(first, second) {
		t.Errorf("the file was written again (%v)", err)
	}
	if _, err := os.Stat(filepath.Join(dir, journalFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty journal was written (%v)", err)
	}
	if d, _ := m.Desired(); !d.Time.Equal(again.Time) {
		t.Error("the hub's newest time is not known")
	}
}

func TestABrokenFileIsMovedAsideAndSaidLoudly(t *testing.T) {
	for name, spoil := range map[string]func([]byte) []byte{
		"zero length": func([]byte) []byte { return nil },
		"cut off":     func(b []byte) []byte { return b[:len(b)/2] },
		"one bit":     func(b []byte) []byte { b[len(b)-5] ^= 1; return b },
		"zeros":       func(b []byte) []byte { return make([]byte, len(b)) },
		"plain JSON":  func([]byte) []byte { return []byte(`{"generation":99}`) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m, _ := open(t, dir)
			if err := m.SetDesired(desired(3, "hub", "a")); err != nil {
				t.Fatal(err)
			}
			if err := m.SetNotes([]Note{{UID: "u"}}); err != nil {
				t.Fatal(err)
			}
			_ = m.Close()
			for _, f := range []string{desiredFile, journalFile} {
				path := filepath.Join(dir, f)
				b, err := os.ReadFile(path)
				if err == nil {
					err = os.WriteFile(path, spoil(b), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			m, said := open(t, dir)
			if d, ok := m.Desired(); ok || len(m.Notes()) > 0 {
				t.Errorf("it believes in generation %d and %d notes", d.Generation, len(m.Notes()))
			}
			if strings.Count(said.String(), "level=ERROR") != 2 {
				t.Errorf("said %q, want two errors", said)
			}
			if _, err := os.Stat(filepath.Join(dir, desiredFile+".corrupt")); err != nil {
				t.Error(err)
			}
			if err := m.SetDesired(desired(1, "hub", "b")); err != nil {
				t.Errorf("what the hub sends now: %v", err)
			}
		})
	}
}

func TestTwoAgentsDoNotShareADirectory(t *testing.T) {
	dir := t.TempDir()
	m, _ := open(t, dir)
	if _, err := Open(dir, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("the second agent gets %v", err)
	}
	_ = m.Close()
	open(t, dir)
}

func TestWhatCannotBeStoredIsNotTaken(t *testing.T) {
	dir := t.TempDir()
	m, _ := open(t, dir)
	if err := m.SetDesired(desired(1, "hub", "a")); err != nil {
		t.Fatal(err)
	}
	m.dir = filepath.Join(dir, "gone") // as a disk that has become read-only
	if err := m.SetDesired(desired(2, "hub", "b")); err == nil {
		t.Fatal("it claims to have stored it")
	}
	if d, _ := m.Desired(); d.Generation != 1 {
		t.Errorf("it goes on with generation %d, want 1", d.Generation)
	}
}
