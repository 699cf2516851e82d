package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// killed is the directory of a hub that was killed: its newest commits are in the log.
func killed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := openIn(t, t.TempDir())
	for rev := range uint64(10) {
		mustCommit(t, s, rev+1, pod(fmt.Sprint("p-", rev+1), rev+1))
	}
	for _, name := range []string{database, database + "-wal", witnessFile, "secrets.key"} {
		must(t, copyFile(filepath.Join(s.dir, name), filepath.Join(dir, name)))
	}
	return dir
}

// A log that was cut or damaged is a sound and older database for SQLite. The hub says it
// loudly, goes on beyond all the revisions that it has given out, and holds still.
func TestADatabaseThatIsOlderThanItWasSaysSo(t *testing.T) {
	wal := func(dir string) string { return filepath.Join(dir, database+"-wal") }
	flip := func(at func(size int) int) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			b, err := os.ReadFile(wal(dir))
			must(t, err)
			b[at(len(b))] ^= 1
			must(t, os.WriteFile(wal(dir), b, 0o600))
		}
	}
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		lost  bool
	}{
		{"nothing is wrong", func(*testing.T, string) {}, false},
		{"the log is gone", func(t *testing.T, dir string) { must(t, os.Remove(wal(dir))) }, true},
		{"the log is empty", func(t *testing.T, dir string) { must(t, os.Truncate(wal(dir), 0)) }, true},
		{"the log is cut in half", func(t *testing.T, dir string) {
			info, err := os.Stat(wal(dir))
			must(t, err)
			must(t, os.Truncate(wal(dir), info.Size()/2))
		}, true},
		{"a bit in the middle of the log is flipped", flip(func(size int) int { return size / 2 }), true},
		{"a bit of the newest commit is flipped", flip(func(size int) int { return size - 100 }), true},
		{"the database and its log are gone", func(t *testing.T, dir string) {
			must(t, errors.Join(os.Remove(wal(dir)), os.Remove(filepath.Join(dir, database))))
		}, true},
		{"the witness is gone", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, witnessFile))) }, false},
		{"the witness is empty", func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, witnessFile), 0)) }, false},
		{"the witness is damaged", func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, witnessFile), []byte(strings.Replace(witnessText(10), "0000", "0900", 1)), 0o600))
		}, false},
		{"the witness is behind, as after a power cut", func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, witnessFile), []byte(witnessText(7)), 0o600))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := killed(t)
			c.spoil(t, dir)
			var said bytes.Buffer
			o := options(t, dir)
			o.Log = slog.New(slog.NewTextHandler(&said, nil))
			s, err := Open(t.Context(), o)
			must(t, err)
			r, err := s.Recovered(t.Context())
			must(t, err)
			rev, err := s.Revision(t.Context())
			must(t, err)
			if got := len(contents(t, s)); (got == 10) == c.lost || (r != nil) != c.lost || strings.Contains(said.String(), "DATABASE") != c.lost {
				t.Fatalf("%d of 10 pods are there, recovered %+v, said %s", got, r, said.String())
			}
			if c.lost && rev <= 10 || !c.lost && rev != 10 || s.rev != rev {
				t.Errorf("the revision is %d, and %d is kept", s.rev, rev)
			}
			mustCommit(t, s, rev+1, pod("next", rev+1))
			must(t, s.Close())
			if got := witnessed(dir); got != rev+1 {
				t.Errorf("after revision %d the witness says %d", rev+1, got)
			}
			said.Reset()
			s, err = Open(t.Context(), o)
			must(t, err)
			if again, err := s.Recovered(t.Context()); err != nil || (again != nil) != c.lost || c.lost && !again.At.Equal(r.At) || strings.Contains(said.String(), "DATABASE") {
				t.Errorf("the next start: %+v, %v: %s", again, err, said.String())
			}
			must(t, s.Close())
		})
	}
}

// A restore goes back on purpose, and says that once.
func TestARestoreIsNoDatabaseThatIsOlderThanItWas(t *testing.T) {
	dir := history(t, true)
	must(t, Restore(t.Context(), options(t, dir), filepath.Join(dir, "backups", "hub-20261101T000000Z.db")))
	var said bytes.Buffer
	o := options(t, dir)
	o.Log = slog.New(slog.NewTextHandler(&said, nil))
	s, err := Open(t.Context(), o)
	must(t, err)
	defer s.Close()
	if strings.Contains(said.String(), "OLDER") {
		t.Error(said.String())
	}
}
