package store

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

// FuzzRestore restores a manipulated backup. The restore refuses it, or the restored database opens
// and can be read completely. The former database stays in both cases.
func FuzzRestore(f *testing.F) {
	quiet := slog.New(slog.DiscardHandler)
	work := f.TempDir()
	made := Options{Dir: filepath.Join(work, "made"), Version: "1.0", Log: quiet}
	s, err := Open(f.Context(), made)
	if err != nil {
		f.Fatal(err)
	}
	if err := s.Commit(f.Context(), Commit{Rev: 1, Rows: []Row{pod("a", 1)}}); err != nil {
		f.Fatal(err)
	}
	file := filepath.Join(work, "backup.db")
	if err := s.Backup(f.Context(), file); err != nil {
		f.Fatal(err)
	}
	if err := s.Close(); err != nil {
		f.Fatal(err)
	}
	good, err := os.ReadFile(file)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(0, []byte("SQLite format 4"))
	f.Add(18, []byte{9, 9})
	f.Add(60, []byte{0, 0, 0, 200}) // the schema's version
	f.Add(100, bytes.Repeat([]byte{0xff}, 200))
	f.Add(len(good)-4096, bytes.Repeat([]byte{0}, 4096))
	f.Add(4096, []byte("' OR 1=1 --"))
	f.Fuzz(func(t *testing.T, at int, with []byte) {
		bad := bytes.Clone(good)
		copy(bad[uint(at)%uint(len(bad)):], with)
		dir := t.TempDir()
		backup := filepath.Join(dir, "bad.db")
		if err := os.WriteFile(backup, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		o := Options{Dir: filepath.Join(dir, "hub"), Version: "1.0", Log: quiet}
		if err := os.CopyFS(o.Dir, os.DirFS(made.Dir)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(o.Dir, "secrets.key"), 0o600); err != nil {
			t.Fatal(err)
		}
		if Restore(t.Context(), o, backup) != nil {
			s, err := Open(t.Context(), o)
			if err != nil {
				t.Fatalf("a refused restore has broken the hub's own database: %v", err)
			}
			if r, err := s.Recovered(t.Context()); r != nil || err != nil || len(contents(t, s)) != 1 {
				t.Errorf("a refused restore has changed the database: %+v %v %v", r, contents(t, s), err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			return
		}
		if kept, _ := filepath.Glob(filepath.Join(o.Dir, database+".before-restore-*")); len(kept) == 0 {
			t.Error("the replaced database was not put aside")
		}
		s, err := Open(t.Context(), o)
		if err != nil {
			return // the damage is found only by reading the row
		}
		_ = s.Load(t.Context(), func(Row) error { return nil })
		_, _ = s.JoinTokens(t.Context())
		_, _ = s.Enrolments(t.Context())
		_, _ = s.Users(t.Context())
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
