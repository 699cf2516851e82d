package memory

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// damage are the kinds of damage to a file.
var damage = map[string]func(path string, b []byte) error{
	"truncated": func(path string, b []byte) error { return os.Truncate(path, 200) },
	"empty":     func(path string, b []byte) error { return os.Truncate(path, 0) },
	"missing":   func(path string, b []byte) error { return os.Remove(path) },
	"zeros":     func(path string, b []byte) error { return os.WriteFile(path, make([]byte, len(b)), 0o600) },
	"damaged in its text": func(path string, b []byte) error {
		b[bytes.IndexByte(b, '{')+3] ^= 1
		return os.WriteFile(path, b, 0o600)
	},
	"damaged in its number":  func(path string, b []byte) error { b[40] ^= 1; return os.WriteFile(path, b, 0o600) },
	"another program's file": func(path string, b []byte) error { return os.WriteFile(path, []byte("hello\n"), 0o600) },
	"a directory": func(path string, b []byte) error {
		if err := os.Remove(path); err != nil {
			return err
		}
		return os.Mkdir(path, 0o700)
	},
}

// After damage to one of the two copies, the device still has the newest desired state; the
// previous one would stop newer pods. The device reports the damage, and repairs the copy.
func TestOneDamagedCopyLosesNoDesiredState(t *testing.T) {
	for name, spoil := range damage {
		const want = 4
		for slot := range 2 {
			t.Run(fmt.Sprintf("copy %d is %s", slot, name), func(t *testing.T) {
				dir := t.TempDir()
				m, _ := open(t, dir)
				for g := range int64(4) {
					if err := m.SetDesired(desired(g+1, "hub", "a")); err != nil {
						t.Fatal(err)
					}
				}
				_ = m.Close()
				path := m.slots.path(slot)
				b, err := os.ReadFile(path)
				if err == nil {
					err = spoil(path, b)
				}
				if err != nil {
					t.Fatal(err)
				}
				m, logged := open(t, dir)
				if d, ok := m.Desired(); !ok || d.Generation != want {
					t.Fatalf("the memory has generation %d, want %d: %s", d.Generation, want, logged)
				}
				if got := m.Trouble(); !strings.Contains(got, path) ||
					!strings.Contains(got, fmt.Sprintf("generation %d", want)) ||
					!strings.Contains(logged.String(), "level=ERROR") {
					t.Errorf("trouble %q lacks %s or generation %d; logged %q", got, path, want, logged)
				}
				if name != "a directory" { // both copies are written again at the start
					_ = m.Close()
					again, logged := open(t, dir)
					if d, ok := again.Desired(); !ok || d.Generation != want || again.Trouble() != "" ||
						logged.Len() > 0 {
						t.Errorf("at the next start: stored %v, trouble %q, logged %q", ok, again.Trouble(), logged)
					}
					if err := errors.Join(again.Close(), os.Remove(again.slots.path(1-slot))); err != nil {
						t.Fatal(err)
					}
					if m, logged = open(t, dir); m.Trouble() == "" {
						t.Error("the loss of the other copy is not reported")
					}
					if d, ok := m.Desired(); !ok || d.Generation != want {
						t.Fatalf("after the loss of the other copy the memory has generation %d, want %d: %s",
							d.Generation, want, logged)
					}
				}
				if name == "a directory" { // the damaged slot cannot be written, and the good copy stays
					if err := m.SetDesired(desired(5, "hub", "b")); err == nil {
						t.Error("SetDesired with an unwritable copy returned no error")
					}
					return
				}
				for g := range int64(3) { // both copies are written again
					if err := m.SetDesired(desired(5+g, "hub", "b")); err != nil || m.Trouble() != "" {
						t.Fatalf("store the next generation: %v, trouble %q", err, m.Trouble())
					}
				}
				_ = m.Close()
				m, logged = open(t, dir)
				if d, _ := m.Desired(); d.Generation != 7 || m.Trouble() != "" || logged.Len() > 0 {
					t.Errorf("in the end generation %d, trouble %q, logged %q", d.Generation, m.Trouble(), logged)
				}
			})
		}
	}
}

// The first desired state has two copies too.
func TestTheFirstDesiredStateHasTwoCopies(t *testing.T) {
	for slot := range 2 {
		dir := t.TempDir()
		m, _ := open(t, dir)
		if err := m.SetDesired(desired(1, "hub", "a")); err != nil {
			t.Fatal(err)
		}
		_ = m.Close()
		if err := os.Remove(m.slots.path(slot)); err != nil {
			t.Fatal(err)
		}
		m, _ = open(t, dir)
		if d, ok := m.Desired(); !ok || d.Generation != 1 || m.Trouble() == "" {
			t.Errorf("without copy %d: stored %v, generation %d, trouble %q", slot, ok, d.Generation, m.Trouble())
		}
	}
}

// A power cut may leave any part of a write.
func TestAnInterruptedWriteKeepsThePreviousText(t *testing.T) {
	dir := t.TempDir()
	m, _ := open(t, dir)
	for g := range int64(3) {
		if err := m.SetDesired(desired(g+1, "hub", strings.Repeat("a", 50))); err != nil {
			t.Fatal(err)
		}
	}
	first, second := m.slots.path(m.slots.next), m.slots.path(1-m.slots.next)
	before, old := contents(t, first), contents(t, second)
	if err := m.SetDesired(desired(4, "hub", strings.Repeat("b", 80))); err != nil {
		t.Fatal(err)
	}
	_ = m.Close()
	after, new := contents(t, first), contents(t, second)
	end := len(bytes.TrimRight(after, "\x00"))
	for cut := range end + 1 {
		for _, c := range []struct {
			first, second []byte
			want          int64
		}{
			{append(bytes.Clone(after[:cut]), before[cut:]...), old, 3}, // cut during the write of the first copy
			{after, append(bytes.Clone(new[:cut]), old[cut:]...), 4},    // cut during the write of the second copy
		} {
			if err := errors.Join(os.WriteFile(first, c.first, 0o600),
				os.WriteFile(second, c.second, 0o600)); err != nil {
				t.Fatal(err)
			}
			m, err := Open(dir, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			d, ok := m.Desired()
			if cut == end {
				c.want = 4
			}
			if !ok || d.Generation != c.want {
				t.Fatalf("cut after %d of %d bytes: generation %d, want %d", cut, end, d.Generation, c.want)
			}
			_ = m.Close()
		}
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// badBlock is a disk that fails after a number of writes.
type badBlock struct {
	disk
	writesLeft int
}

func (b *badBlock) WriteAt(f *os.File, text []byte) error {
	if b.writesLeft--; b.writesLeft == 0 {
		return unix.EIO
	}
	return b.disk.WriteAt(f, text)
}

// A text with one copy is stored and used, because a reboot would use it too. Trouble reports the
// missing copy until there are two copies again.
func TestATextWithOneCopyIsUsed(t *testing.T) {
	dir := t.TempDir()
	bad := &badBlock{disk: realDisk{}, writesLeft: 4} // the write of the second copy of generation 2 fails
	m, err := openOn(bad, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for g := range int64(2) {
		if err := m.SetDesired(desired(g+1, "hub", "a")); err != nil {
			t.Fatal(err)
		}
	}
	if d, _ := m.Desired(); d.Generation != 2 || !strings.Contains(m.Trouble(), "only one of the two copies") {
		t.Errorf("generation %d, trouble %q; want 2 and that one copy is missing", d.Generation, m.Trouble())
	}
	_ = m.Close()
	again, _ := open(t, dir)
	if d, _ := again.Desired(); d.Generation != 2 {
		t.Errorf("after a restart the generation is %d, want 2", d.Generation)
	}
	if err := again.SetDesired(desired(3, "hub", "a")); err != nil || again.Trouble() != "" {
		t.Errorf("store the next generation: %v, trouble %q", err, again.Trouble())
	}
}

// A full disk still stores a desired state that is not much larger than the last one, because that
// state may remove pods.
func TestAFullDiskStoresTheNextDesiredState(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("test", dir, "tmpfs", 0, "size=1m,mode=0700"); err != nil {
		t.Skip("cannot make a small disk: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	m, _ := open(t, dir)
	if err := m.SetDesired(desired(1, "hub", "a", "b", "c")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 2<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	for g := range int64(4) {
		if err := m.SetDesired(desired(2+g, "hub", "a", "b", "c", fmt.Sprint("new", g))); err != nil {
			t.Errorf("store generation %d: %v", 2+g, err)
		}
	}
	large := desired(9, "hub", strings.Repeat("x", 1<<20))
	if err := m.SetDesired(large); err == nil || !strings.Contains(err.Error(), "no space") ||
		!strings.Contains(m.Trouble(), "no space") {
		t.Errorf("store a state that is too large: %v, trouble %q", err, m.Trouble())
	}
	if err := m.SetDesired(desired(10, "hub")); err != nil || m.Trouble() != "" {
		t.Errorf("store a state without pods: %v, trouble %q", err, m.Trouble())
	}
	_ = m.Close()
	m, _ = open(t, dir)
	if d, _ := m.Desired(); d.Generation != 10 {
		t.Errorf("after a restart generation %d, want 10", d.Generation)
	}
}

// The file of an agent without slots is used until newer content is stored.
func TestAnOlderAgentsDesiredStateIsRead(t *testing.T) {
	dir := t.TempDir()
	if err := write(realDisk{}, filepath.Join(dir, desiredFile),
		[]byte(`{"generation":7,"hub":"hub","pods":[]}`)); err != nil {
		t.Fatal(err)
	}
	m, _ := open(t, dir)
	d, ok := m.Desired()
	if !ok || d.Generation != 7 {
		t.Fatalf("stored %v, generation %d, want 7", ok, d.Generation)
	}
	if err := m.SetDesired(d); err != nil { // the desired state is unchanged
		t.Fatal(err)
	}
	_ = m.Close()
	if _, err := os.Stat(filepath.Join(dir, desiredFile)); err == nil {
		t.Error("the older agent's file is not removed")
	}
	m, logged := open(t, dir)
	if d, _ := m.Desired(); d.Generation != 7 || logged.Len() > 0 {
		t.Errorf("after a restart generation %d, logged %q", d.Generation, logged)
	}
}
