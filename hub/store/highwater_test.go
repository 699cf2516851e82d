package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/postgrestest"
)

// killed returns the directory of a killed hub. The newest commits are in the log.
func killed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	s := openIn(t, t.TempDir())
	for rev := range uint64(10) {
		mustCommit(t, s, rev+1, pod(fmt.Sprint("p-", rev+1), rev+1))
	}
	for _, name := range []string{database, database + "-wal", highWaterFile, "secrets.key"} {
		must(t, copyFile(filepath.Join(s.dir, name), filepath.Join(dir, name)))
	}
	return dir
}

// For SQLite a database whose log is cut or damaged is valid, but older. The hub logs an error,
// continues with a larger revision than all earlier ones, and pauses.
func TestAnOlderDatabaseIsReported(t *testing.T) {
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
		{"no damage", func(*testing.T, string) {}, false},
		{"the log is missing", func(t *testing.T, dir string) { must(t, os.Remove(wal(dir))) }, true},
		{"the log is empty", func(t *testing.T, dir string) { must(t, os.Truncate(wal(dir), 0)) }, true},
		{"the log is cut in half", func(t *testing.T, dir string) {
			info, err := os.Stat(wal(dir))
			must(t, err)
			must(t, os.Truncate(wal(dir), info.Size()/2))
		}, true},
		{"a bit in the middle of the log is flipped", flip(func(size int) int { return size / 2 }), true},
		{"a bit of the newest commit is flipped", flip(func(size int) int { return size - 100 }), true},
		{"the database and its log are missing", func(t *testing.T, dir string) {
			must(t, errors.Join(os.Remove(wal(dir)), os.Remove(filepath.Join(dir, database))))
		}, true},
		{
			"the high-water mark is missing", func(t *testing.T,
				dir string) {
				must(t, os.Remove(filepath.Join(dir, highWaterFile)))
			}, false,
		},
		{
			"the high-water mark is empty", func(t *testing.T,
				dir string) {
				must(t, os.Truncate(filepath.Join(dir, highWaterFile), 0))
			},
			false,
		},
		{"the high-water mark is damaged", func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, highWaterFile),
				[]byte(strings.Replace(progress{10, 99}.text(), "0000", "0900", 1)), 0o600))
		}, false},
		{"the high-water mark is older, as after a power cut", func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, highWaterFile), []byte(progress{7, 1}.text()), 0o600))
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
			if got := len(contents(t, s)); (got == 10) == c.lost || (r != nil) != c.lost ||
				strings.Contains(said.String(), "DATABASE") != c.lost {
				t.Fatalf("%d of 10 pods are stored, recovered %+v, logged %s", got, r, said.String())
			}
			if c.lost && rev <= 10 || !c.lost && rev != 10 || s.rev != rev {
				t.Errorf("the revision is %d, and the stored one is %d", s.rev, rev)
			}
			mustCommit(t, s, rev+1, pod("next", rev+1))
			must(t, s.Close())
			if got := readHighWater(dir).rev; got != rev+1 {
				t.Errorf("after revision %d the high-water mark is %d", rev+1, got)
			}
			said.Reset()
			s, err = Open(t.Context(), o)
			must(t, err)
			if again, err := s.Recovered(t.Context()); err != nil || (again != nil) != c.lost ||
				c.lost && !again.At.Equal(r.At) || strings.Contains(said.String(), "DATABASE") {
				t.Errorf("the next start: %+v, %v: %s", again, err, said.String())
			}
			must(t, s.Close())
		})
	}
}

// A restored database is older on purpose, and is reported once.
func TestARestoredDatabaseIsNotReportedAsOlder(t *testing.T) {
	dir := history(t, true)
	must(t, Restore(t.Context(), options(t, dir), filepath.Join(dir, "backups", "hub-20261101T000000Z.db")))
	for _, end := range []string{"-wal", "-shm"} {
		if left, _ := filepath.Glob(filepath.Join(dir, "*"+end)); len(left) > 0 {
			t.Errorf("%v has not been removed", left)
		}
	}
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

// Changes of users and tokens have no revision. An older database with the same objects would give
// removed users access, so it is reported too.
func TestAnOlderDatabaseWithTheSameObjectsIsReported(t *testing.T) {
	for _, where := range []string{"sqlite", "postgres"} {
		var server *postgrestest.Server
		if where == "postgres" {
			server = postgrestest.Start(t)
		}
		now := time.Now()
		for name, c := range map[string]struct {
			do   func(t *testing.T, hub, command *Store) error
			lost bool
		}{
			"no write since the copy": {func(*testing.T, *Store, *Store) error { return nil }, false},
			"the hub has deleted a user": {func(t *testing.T, hub,
				_ *Store) error {
				return hub.DeleteUser(t.Context(), "anna", now)
			}, true},
			"a command has revoked a token": {func(t *testing.T, _, command *Store) error {
				return command.RevokeJoinToken(t.Context(), "j", now)
			}, true},
			"a command has written, and then the hub": {func(t *testing.T, hub, command *Store) error {
				return errors.Join(command.RevokeClients(t.Context(), "eve", now), hub.RevokeClients(t.Context(), "mallory", now))
			}, true},
			"an audit record was added": {func(t *testing.T, hub,
				_ *Store) error {
				return hub.AddAudit(t.Context(), did("pi-1"))
			}, true},
		} {
			t.Run(where+": "+name, func(t *testing.T) {
				o := options(t, t.TempDir())
				file := filepath.Join(o.Dir, database)
				keep := func() { must(t, copyFile(file, file+".older")) }
				back := func() { must(t, os.Rename(file+".older", file)) }
				if server != nil {
					o.Database = server.Database()
					name := postgrestest.Name(o.Database)
					keep = func() { server.Do("postgres", "CREATE DATABASE "+name+"_older TEMPLATE "+name) }
					back = func() {
						server.Do("postgres", "DROP DATABASE "+name)
						server.Do("postgres", "ALTER DATABASE "+name+"_older RENAME TO "+name)
					}
				}
				s := opened(t, o)
				mustCommit(t, s, 5, pod("a", 5))
				must(t, s.AddUser(t.Context(), User{Name: "anna", Role: "admin", Created: now}))
				must(t, s.AddSession(t.Context(), Session{Hash: []byte{1}, User: "anna", Created: now, Expires: now.Add(time.Hour)},
					""))
				must(t, s.AddJoinToken(t.Context(), JoinToken{
					ID: "j", Hash: []byte{2}, Site: "oslo", Uses: 3, Created: now, Expires: now.Add(time.Hour),
				}))
				must(t, s.Close())
				keep()
				if c.lost {
					s = opened(t, o)
					command, err := OpenShared(t.Context(), o)
					must(t, err)
					began := readHighWater(o.Dir).writes
					must(t, c.do(t, s, command))
					counted, err := s.found(t.Context())
					must(t, err)
					if saw := readHighWater(o.Dir); saw != counted || saw.writes <= began {
						t.Errorf("the high-water mark is %+v, and the database is at %+v", saw, counted)
					}
					must(t, errors.Join(command.Close(), s.Close()))
				}
				back()
				var said bytes.Buffer
				o.Log = logTo(&said)
				s = opened(t, o)
				r, err := s.Recovered(t.Context())
				must(t, err)
				if (r != nil) != c.lost || strings.Contains(said.String(), "DATABASE IS OLDER") != c.lost ||
					c.lost && !strings.Contains(r.Cause, "transactions") {
					t.Fatalf("%+v: %s", r, said.String())
				}
				token, err := s.JoinToken(t.Context(), "j")
				must(t, err)
				if _, err := s.Session(t.Context(), []byte{1}); token.Revoked.IsZero() == c.lost ||
					errors.Is(err, ErrNotFound) != c.lost {
					t.Error("a removed user has access again:", token, err)
				}
				rev := s.rev
				must(t, s.Close())
				said.Reset()
				s = opened(t, o) // the older database is reported only once
				if strings.Contains(said.String(), "OLDER") || s.rev != rev {
					t.Error(said.String(), s.rev, rev)
				}
				must(t, s.Close())
			})
		}
	}
}

// A version that counted only revisions has written the file.
func TestAHighWaterMarkOfAnEarlierVersionIsRead(t *testing.T) {
	dir := killed(t)
	must(t, os.Remove(filepath.Join(dir, database+"-wal")))
	must(t, os.WriteFile(filepath.Join(dir, highWaterFile), []byte("00000000000000000010 a15d25e1\n"), 0o600))
	if saw := readHighWater(dir); saw != (progress{rev: 10}) {
		t.Fatal(saw)
	}
	s, err := Open(t.Context(), options(t, dir))
	must(t, err)
	defer s.Close()
	if r, err := s.Recovered(t.Context()); err != nil || r == nil {
		t.Fatal(r, err)
	}
}

// A command, such as kubeconfig in make run, writes while the hub starts. Its write is in the
// database and in the high-water mark.
func TestACommandDuringAStartLosesNothing(t *testing.T) {
	for _, where := range []string{"sqlite", "postgres"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			o := options(t, t.TempDir())
			if where == "postgres" {
				o.Database = postgrestest.Shared(t).Database()
			}
			var said bytes.Buffer
			o.Log = logTo(&said)
			s := opened(t, o)
			mustCommit(t, s, 5, pod("a", 5))
			must(t, s.Close())
			command, err := OpenShared(t.Context(), o)
			must(t, err)
			stop, over := make(chan struct{}), make(chan error, 1)
			var wrote atomic.Int32
			go func() {
				var err error
				for ; err == nil; wrote.Add(1) {
					select {
					case <-stop:
						over <- nil
						return
					case <-time.After(10 * time.Millisecond):
					}
					err = command.tx(t.Context(), func(ctx context.Context, c *conn) error {
						_, err := c.ExecContext(ctx, setMeta, metaVersion, "somebody's") // the hub writes this key at its start
						time.Sleep(20 * time.Millisecond)
						return err
					})
				}
				over <- err
			}()
			for rounds := 0; rounds < 10 || wrote.Load() < 10; rounds++ {
				s := opened(t, o)
				r, err := s.Recovered(t.Context())
				must(t, err)
				if r != nil || s.rev != 5 {
					t.Errorf("a sound database of revision %d: %+v", s.rev, r)
				}
				must(t, s.Close())
				if t.Failed() {
					break
				}
			}
			close(stop)
			must(t, <-over)
			must(t, command.Close())
			if strings.Contains(said.String(), "OLDER") {
				t.Errorf("the hub logged %s", said.String())
			}
		})
	}
}
