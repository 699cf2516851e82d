package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/wire"
)

func open(t *testing.T, dir string) (*Memory, *bytes.Buffer) {
	t.Helper()
	var logged bytes.Buffer
	m, err := Open(dir, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() }) // closes tests' memories; a second Close is harmless
	return m, &logged
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
		t.Fatal("a new device has a desired state")
	}
	if err := m.SetDesired(desired(3, "hub", "a", "b")); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m, logged := open(t, dir)
	d, ok := m.Desired()
	if !ok || d.Generation != 3 || len(d.Pods) != 2 || logged.Len() > 0 {
		t.Errorf("after a restart: stored %v, generation %d, %d pods; logged %q", ok, d.Generation, len(d.Pods), logged)
	}
	if info, err := os.Stat(m.slots.path(0)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the file with secrets is %v (%v), want 0600", info.Mode(), err)
	}
}

func TestGenerationsCompareWithinOneHub(t *testing.T) {
	m, _ := open(t, t.TempDir())
	for _, c := range []struct {
		name    string
		d       wire.Desired
		refused bool
	}{
		{"the first desired state is stored", desired(5, "one", "a"), false},
		{"an older state of the same hub is refused", desired(4, "one"), true},
		{"the same generation with other content is stored", desired(5, "one", "b"), false},
		{"a newer state is stored", desired(6, "one", "c"), false},
		{"a lower generation of another hub is stored", desired(1, "two", "d"), false},
	} {
		if err := m.SetDesired(c.d); errors.Is(err, ErrOlder) != c.refused || err != nil && !c.refused {
			t.Errorf("%s: the error is %v", c.name, err)
		}
	}
	if d, _ := m.Desired(); d.Hub != "two" || d.Generation != 1 {
		t.Errorf("the stored state is generation %d of hub %s, want 1 of two", d.Generation, d.Hub)
	}
}

func TestUnchangedContentIsNotWritten(t *testing.T) {
	dir := t.TempDir()
	m, _ := open(t, dir)
	if err := m.SetDesired(desired(3, "hub", "a")); err != nil {
		t.Fatal(err)
	}
	long := time.Unix(1, 0)
	for i := range 2 {
		if err := os.Chtimes(m.slots.path(i), long, long); err != nil {
			t.Fatal(err)
		}
	}
	repeated := desired(3, "hub", "a")
	repeated.Time = time.Unix(99, 0) // each time the hub sends the state, its time differs
	if err := m.SetDesired(repeated); err != nil {
		t.Fatal(err)
	}
	if err := m.SetNotes(nil); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if info, err := os.Stat(m.slots.path(i)); err != nil || !info.ModTime().Equal(long) {
			t.Errorf("file %d was written again (%v)", i, err)
		}
	}
	if _, err := os.Stat(m.journal.path(0)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty journal was written (%v)", err)
	}
	if d, _ := m.Desired(); !d.Time.Equal(repeated.Time) {
		t.Error("the hub's newest time is not stored")
	}
}

func TestDamagedFilesAreReported(t *testing.T) {
	for name, spoil := range map[string]func([]byte) []byte{
		"zero length": func([]byte) []byte { return nil },
		"cut off":     func(b []byte) []byte { return b[:len(bytes.TrimRight(b, "\x00"))/2] },
		"one bit":     func(b []byte) []byte { b[len(bytes.TrimRight(b, "\x00"))-5] ^= 1; return b },
		"zeros":       func(b []byte) []byte { return make([]byte, len(b)) },
		"plain JSON":  func([]byte) []byte { return []byte(`{"generation":99}`) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m, _ := open(t, dir)
			for g := range int64(2) {
				if err := m.SetDesired(desired(2+g, "hub", "a")); err != nil {
					t.Fatal(err)
				}
			}
			if err := m.SetNotes([]PodNote{{UID: "u"}}); err != nil {
				t.Fatal(err)
			}
			_ = m.Close()
			for _, f := range []string{"desired.0.state", "desired.1.state", "journal.0.state", "journal.1.state"} {
				path := filepath.Join(dir, f)
				b, err := os.ReadFile(path)
				if err == nil {
					err = os.WriteFile(path, spoil(b), 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			m, logged := open(t, dir)
			if d, ok := m.Desired(); ok || len(m.Notes()) > 0 {
				t.Errorf("the memory has generation %d and %d notes, want none", d.Generation, len(m.Notes()))
			}
			want := 2
			if name == "zero length" || name == "zeros" {
				want = 0 // a device with blank slots is a new device
			}
			if strings.Count(logged.String(), "level=ERROR") != want || (m.Trouble() == "") != (want == 0) {
				t.Errorf("logged %q, trouble %q, want %d errors", logged, m.Trouble(), want)
			}
			if err := m.SetDesired(desired(1, "hub", "b")); err != nil {
				t.Errorf("store the next desired state: %v", err)
			}
		})
	}
}

func TestTwoAgentsCannotShareADirectory(t *testing.T) {
	dir := t.TempDir()
	m, _ := open(t, dir)
	if _, err := Open(dir, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("the second agent gets the error %v", err)
	}
	_ = m.Close()
	open(t, dir)
}

func TestAnUnstoredDesiredStateIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	m, _ := open(t, dir)
	if err := m.SetDesired(desired(1, "hub", "a")); err != nil {
		t.Fatal(err)
	}
	m.slots.dir = filepath.Join(dir, "gone") // simulates a disk that has become read-only
	if err := m.SetDesired(desired(2, "hub", "b")); err == nil {
		t.Fatal("SetDesired returned no error")
	}
	if d, _ := m.Desired(); d.Generation != 1 {
		t.Errorf("the memory has generation %d, want 1", d.Generation)
	}
	if got := m.Trouble(); !strings.Contains(got, "generation 2") {
		t.Errorf("the trouble is %q, want the generation that could not be stored", got)
	}
	m.slots.dir = dir
	if err := m.SetDesired(desired(2, "hub", "b")); err != nil || m.Trouble() != "" {
		t.Errorf("store on the repaired disk: %v, trouble %q", err, m.Trouble())
	}
}

// An attacker who controlled the hub for an hour cannot lock the real hub out.
func TestAHubCanAlwaysBeReplaced(t *testing.T) {
	m, _ := open(t, t.TempDir())
	for _, c := range []struct {
		name       string
		generation int64
		hub        string
		accepted   bool
	}{
		{"the first generation of an old hub", 1 << 40, "one", true},
		{"the highest possible number", math.MaxInt64, "one", false},
		{"the highest number of another hub", math.MaxInt64, "two", false},
		{"one above the highest counted number", 1<<53 + 1, "two", false},
		{"the highest allowed leap", 1 << 53, "one", true},
		{"the generation after the highest leap", 1<<53 + 1, "one", true},
		{"a generation after a restore of the hub", 1<<53 + 1000, "one", true},
		{"a leap from the highest counted number", 1 << 54, "one", false},
	} {
		if err := m.SetDesired(wire.Desired{Generation: c.generation, Hub: c.hub}); (err == nil) != c.accepted {
			t.Errorf("%s: the error is %v", c.name, err)
		}
	}
}

func TestAStateDirectoryThatOtherUsersCanChangeIsRefused(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for name, spoil := range map[string]func(dir string) error{
		"all users may write to the directory":  func(dir string) error { return os.Chmod(dir, 0o777) },
		"the group may write to the directory":  func(dir string) error { return os.Chmod(dir, 0o770) },
		"the directory has the sticky bit":      func(dir string) error { return os.Chmod(dir, 0o777|os.ModeSticky) },
		"the directory belongs to another user": func(dir string) error { return os.Chown(dir, 4711, 0) },
		"the lock is a symbolic link":           func(dir string) error { return os.Symlink(dir+"/../precious", filepath.Join(dir, LockFile)) },
		"the directory is a link to one that all users may change": func(dir string) error {
			return errors.Join(os.Chmod(dir, 0o777), os.Rename(dir, dir+"x"), os.Symlink(dir+"x", dir))
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir, precious := filepath.Join(base, "state"), filepath.Join(base, "precious")
			for _, err := range []error{os.Mkdir(dir, 0o755), os.WriteFile(precious, []byte("not a pid"), 0o600),
				spoil(dir)} {
				if errors.Is(err, os.ErrPermission) {
					t.Skip(err) // the test does not run as root
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if m, err := Open(dir, log); err == nil {
				t.Errorf("the directory was used")
				_ = m.Close()
			} else if !strings.Contains(err.Error(), "--state-dir") {
				t.Errorf("the error has no next step: %v", err)
			}
			if body, err := os.ReadFile(precious); err != nil || string(body) != "not a pid" {
				t.Errorf("another file was changed to %q (%v)", body, err)
			}
		})
	}
}

func TestAdviceSuggestsSudo(t *testing.T) {
	for _, c := range []struct {
		err  error
		user int
		sudo bool
	}{
		{fs.ErrPermission, 1000, true},
		{fs.ErrPermission, 0, false}, // a read-only mount, or a security module
		{syscall.EROFS, 1000, false},
	} {
		if logged := advice(fmt.Errorf("mkdir: %w", c.err), c.user); strings.Contains(logged, "sudo") != c.sudo ||
			!strings.Contains(logged, "--state-dir") {
			t.Errorf("the advice to user %d for the error %v is %q", c.user, c.err, logged)
		}
	}
}

func TestADirectoryWithOtherFilesIsRefused(t *testing.T) {
	for _, c := range []struct {
		name     string
		files    []string
		accepted bool
	}{
		{"an empty directory", nil, true},
		{"the root of a disk", []string{"lost+found"}, true},
		{"a directory after a reset", []string{LockFile, "persistent"}, true},
		{"an agent's directory with another file", []string{LockFile, "identity.json", "notes"}, true},
		{"a directory after a power cut at the first write", []string{LockFile, ".registration.json4711"}, true},
		{"a user's directory", []string{"thesis.txt"}, false},
		{"another program's directory with a lock", []string{LockFile, "data.sqlite"}, false},
		{"a hub's directory", []string{"hub.db", "hub.lock", "secrets.key"}, false},
	} {
		dir := t.TempDir()
		for _, name := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		m, err := Open(dir, slog.New(slog.DiscardHandler))
		if err == nil {
			_ = m.Close()
		} else if entries, _ := os.ReadDir(dir); len(entries) != len(c.files) ||
			!strings.Contains(err.Error(), "--state-dir") {
			t.Errorf("%s: the error is %v, and the files are %v", c.name, err, entries)
		}
		if (err == nil) != c.accepted {
			t.Errorf("%s: the error is %v, want the directory to be used: %v", c.name, err, c.accepted)
		}
	}
}

// The agent writes files only in its state directory, even temporary ones.
func TestFilesAreWrittenOnlyIntoTheStateDirectory(t *testing.T) {
	elsewhere, dir, old := t.TempDir(), t.TempDir(), time.Unix(1, 0)
	t.Setenv("TMPDIR", elsewhere)
	if err := os.Chtimes(elsewhere, old, old); err != nil {
		t.Fatal(err)
	}
	if err := write(realDisk{}, filepath.Join(dir, pulledFile), []byte("[]")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(elsewhere); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("$TMPDIR was written to (%v)", err)
	}
}
