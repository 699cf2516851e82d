package store

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/e2e/postgrestest"
	"flotilla.dev/hub/owner"
)

func TestTheDataDirectoryIsPrivate(t *testing.T) {
	root := os.Geteuid() == 0
	const other = 4242
	for _, tt := range []struct {
		name  string
		root  bool // needs root
		do    func(parent, dir string) error
		wants string // text of the error; "": the directory opens
	}{
		{"a directory that others may read is closed", false, func(_, dir string) error { return os.Chmod(dir, 0o755) }, ""},
		{"a directory that all may write is closed", false, func(_, dir string) error { return os.Chmod(dir, 0o777) }, ""},
		{
			"a directory of another user is refused", true, func(_, dir string) error { return os.Chown(dir, other, other) },
			"belongs to user 4242",
		},
		{
			"a directory that others can replace is refused", false,
			func(parent, _ string) error { return os.Chmod(parent, 0o777) },
			"other users may write",
		},
		{"a directory that another group can replace is refused", true, func(parent, _ string) error {
			if err := os.Chown(parent, 0, other); err != nil {
				return err
			}
			return os.Chmod(parent, 0o775)
		}, "other users may write"},
		{
			"a sticky parent directory, such as /tmp, is fine", false,
			func(parent, _ string) error { return os.Chmod(parent, 0o777|os.ModeSticky) }, "",
		},
		{
			"a parent directory of another user is refused", true,
			func(parent, _ string) error { return os.Chown(parent, other, other) }, "belongs to user 4242",
		},
		{"another program's directory is not changed", false, func(_, dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "thesis.txt"), nil, 0o644), os.Chmod(dir, 0o755))
		}, "not empty and not a hub's (thesis.txt)"},
		{"a directory for all users is not changed", false, func(_, dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "socket"), 0o700), os.Chmod(dir, 0o777|os.ModeSticky))
		}, "not empty and not a hub's (socket)"},
		{
			"an empty directory for all users is not changed", false,
			func(_, dir string) error { return os.Chmod(dir, 0o777|os.ModeSticky) },
			"shared by all users (1777)",
		},
		{"a directory with certificates, such as /etc, is not changed", false, func(_, dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "pki"), 0o755), os.WriteFile(filepath.Join(dir, "fstab"), nil, 0o644))
		}, "not empty and not a hub's (fstab)"},
		{"the root of a disk is fine", false, func(_, dir string) error {
			return os.Mkdir(filepath.Join(dir, "lost+found"),
				0o700)
		}, ""},
		{"an additional file in a hub's directory is fine", false, func(_, dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "hub.lock"), nil, 0o600),
				os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600))
		}, ""},
		{"a file of another user is refused", true, func(_, dir string) error {
			if err := os.WriteFile(filepath.Join(dir, "hub.db"), nil, 0o666); err != nil {
				return err
			}
			return os.Chown(filepath.Join(dir, "hub.db"), other, other)
		}, "hub.db belongs to user 4242"},
		{"a link to a file elsewhere is refused", false, func(parent, dir string) error {
			return os.Symlink(filepath.Join(parent, "victim"), filepath.Join(dir, "ballast"))
		}, "ballast is a link"},
		{"a pipe, which would block the hub, is refused", false, func(_, dir string) error {
			return unix.Mkfifo(filepath.Join(dir, highWaterFile), 0o600)
		}, "hub.rev is a pipe"},
		{"a socket, like the hub's, is fine", false, func(_, dir string) error {
			return unix.Mknod(filepath.Join(dir, "hub.sock"), unix.S_IFSOCK|0o600, 0)
		}, ""},
		{"backups on another disk are fine", false, func(parent, dir string) error {
			return os.Symlink(parent, filepath.Join(dir, "backups"))
		}, ""},
		{"history on an unplugged disk is fine", false, func(parent, dir string) error {
			return os.Symlink(filepath.Join(parent, "stick"), filepath.Join(dir, "history"))
		}, ""},
		{"a link to the authority is refused", false, func(parent, dir string) error {
			return os.Symlink(filepath.Join(parent, "stick"), filepath.Join(dir, "pki"))
		}, "pki is a link"},
		{"a link from backups to a file is refused", false, func(parent, dir string) error {
			return os.Symlink(filepath.Join(parent, "victim"), filepath.Join(dir, "backups"))
		}, "backups is a link"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.root && !root {
				t.Skip("needs root")
			}
			parent := t.TempDir()
			dir, victim := filepath.Join(parent, "hub"), filepath.Join(parent, "victim")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(victim, []byte("dear"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := tt.do(parent, dir); err != nil {
				t.Fatal(err)
			}
			was, had := listed(t, dir)
			o := Options{Dir: dir, Log: slog.New(slog.DiscardHandler)}
			if strings.HasPrefix(tt.wants, "not a hub's") {
				_, lock := Lock(dir)
				for what, err := range map[string]error{"doctor": Foreign(dir), "restore": Restore(t.Context(), o, victim),
					"lock": lock} {
					if err == nil || !strings.Contains(err.Error(), tt.wants) {
						t.Errorf("%s returns %v, want %q", what, err, tt.wants)
					}
				}
			}
			s, err := Open(context.Background(), o)
			if err == nil {
				s.Close()
			} else if now, has := listed(t, dir); now != was || !slices.Equal(has, had) {
				t.Errorf("the directory was %s with %v, and is %s with %v", was, had, now, has)
			}
			if tt.wants == "" && err != nil || tt.wants != "" && (err == nil || !strings.Contains(err.Error(), tt.wants)) {
				t.Errorf("Open returns %v, want %q", err, tt.wants)
			}
			if info, err := os.Stat(dir); tt.wants == "" && (err != nil || info.Mode().Perm() != 0o700) {
				t.Errorf("the directory is %s, want 0700", info.Mode())
			}
			if text, err := os.ReadFile(victim); err != nil || string(text) != "dear" {
				t.Errorf("the link's target now has %.40q, %v", text, err)
			}
		})
	}
}

// listed returns the mode of a directory and its files.
func listed(t *testing.T, dir string) (mode fs.FileMode, names []string) {
	info, err := os.Stat(dir)
	must(t, err)
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return info.Mode(), names
}

// A hub with its own user can use the files that root creates in the data directory.
func TestFilesThatRootCreatesBelongToTheHub(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const hub = 4242
	file := filepath.Join(t.TempDir(), "backup.db")
	with := func(t *testing.T, s *Store, err error, do func(s *Store) error) {
		t.Helper()
		if err == nil {
			err = errors.Join(do(s), s.Close())
		}
		must(t, err)
	}
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, dir string)
	}{
		{"a restore", func(t *testing.T, dir string) { must(t, Restore(t.Context(), options(t, dir), file)) }},
		{"a restore into an empty directory", func(t *testing.T, dir string) {
			for _, name := range []string{database, highWaterFile} {
				must(t, os.Remove(filepath.Join(dir, name)))
			}
			must(t, Restore(t.Context(), options(t, dir), file))
		}},
		{"a backup beside the daily ones", func(t *testing.T, dir string) {
			s, err := OpenShared(t.Context(), options(t, dir))
			with(t, s, err, func(s *Store) error { _, err := s.BackUpNow(t.Context()); return err })
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := history(t, false)
			if _, err := os.Stat(file); err != nil {
				s, err := Open(t.Context(), options(t, dir))
				with(t, s, err, func(s *Store) error { return s.Backup(t.Context(), file) })
			}
			must(t, os.Remove(filepath.Join(dir, "hub.lock")))
			each := func(do func(path string, info fs.FileInfo) error) {
				must(t, filepath.Walk(dir, func(path string, info fs.FileInfo, err error) error {
					if err == nil {
						err = do(path, info)
					}
					return err
				}))
			}
			each(func(path string, _ fs.FileInfo) error { return os.Chown(path, hub, hub) })
			tt.do(t, dir)
			each(func(path string, info fs.FileInfo) error {
				if owner.Of(info) != hub || owner.Group(info) != hub {
					t.Errorf("%s belongs to %d:%d, want the hub's %d", path, owner.Of(info), owner.Group(info), hub)
				}
				return nil
			})
		})
	}
}

// Root moves the database of a stopped hub. systemd creates the hub's user dynamically, so the user
// does not exist meanwhile.
func TestRootMovesADatabaseForTheHub(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const hub = 4242
	server := postgrestest.Shared(t)
	dir, backup := history(t, false), filepath.Join(t.TempDir(), "backup.db")
	each := func(do func(path string, info fs.FileInfo) error) {
		must(t, filepath.Walk(dir, func(path string, info fs.FileInfo, err error) error {
			if err == nil {
				err = do(path, info)
			}
			return err
		}))
	}
	each(func(path string, _ fs.FileInfo) error { return os.Chown(path, hub, hub) })
	url := server.Database()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"to PostgreSQL", func() error { _, err := Move(t.Context(), options(t, dir), url); return err }},
		{"a backup of PostgreSQL", func() error {
			s, err := OpenShared(t.Context(), options(t, dir))
			if err == nil {
				err = errors.Join(s.Backup(t.Context(), backup), s.Close())
			}
			return err
		}},
		{"a restore into PostgreSQL", func() error { return Restore(t.Context(), options(t, dir), backup) }},
		{"back", func() error { _, err := Move(t.Context(), options(t, dir), SQLite); return err }},
		{"a second move to PostgreSQL", func() error {
			_, err := Move(t.Context(), options(t, dir),
				server.Database())
			return err
		}},
	} {
		for _, name := range []string{"hub.lock", highWaterFile, secretsKey, "ballast"} { // missing files are created
			must(t, remove(filepath.Join(dir, name)))
		}
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		each(func(path string, info fs.FileInfo) error {
			if owner.Of(info) != hub || owner.Group(info) != hub {
				t.Errorf("%s: %s belongs to %d:%d, want the hub's %d", step.name, path, owner.Of(info), owner.Group(info), hub)
			}
			return nil
		})
	}
	if info, err := os.Stat(backup); err != nil || owner.Of(info) != 0 {
		t.Errorf("a backup elsewhere changes its owner: %v, %v", info, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "planted"), nil, 0o600))
	must(t, os.Chown(filepath.Join(dir, "planted"), hub+1, hub+1))
	if _, err := Move(t.Context(), options(t, dir), SQLite); err == nil ||
		!strings.Contains(err.Error(), "planted belongs to user 4243") {
		t.Errorf("with another user's file in the directory: %v", err)
	}
}

// The address of the database may be in a file of root that the hub cannot read. So its content is
// stored, not its path.
func TestTheHubCanReadAnAddressThatRootStored(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	server := postgrestest.Shared(t)
	for _, tt := range []struct {
		name string
		hub  int
		says bool // whether the file's content is stored instead of its path
	}{{"the hub is root", 0, false}, {"the hub is another user", 4242, true}} {
		dir, file, url := history(t, false), filepath.Join(t.TempDir(), "database"), server.Database()
		must(t, os.WriteFile(file, []byte(url+"\n"), 0o600))
		must(t, filepath.Walk(dir, func(path string, _ fs.FileInfo, err error) error {
			return errors.Join(err, os.Chown(path, tt.hub, tt.hub))
		}))
		if _, err := Move(t.Context(), options(t, dir), file); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		want := file
		if tt.says {
			want = url
		}
		if got, err := firstLine(filepath.Join(dir, placeFile)); err != nil || got != want {
			t.Errorf("%s: the stored address is %q (%v), want %q", tt.name, got, err, want)
		}
		if _, err := Move(t.Context(), options(t, dir), file); !errors.Is(err, ErrExists) ||
			!strings.Contains(err.Error(), "already") {
			t.Errorf("%s: second start: %v", tt.name, err)
		}
	}
}
