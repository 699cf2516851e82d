package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"flotilla.dev/hub/owner"
)

// overflow is who owns, for a process in a namespace of its own, what is nobody's there.
const overflow = 65534

// private makes sure that nobody else can read or replace what the hub remembers: the
// directory is the hub's own and 0700, so are all who could move it away, and nothing in
// it leads elsewhere. What is ours and too open is mended; the rest is for a person.
func private(dir string, log *slog.Logger) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return fmt.Errorf("look at data directory: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at data directory: %w", err)
	}
	switch uid := owner.Of(info); {
	case !info.IsDir():
		return fmt.Errorf("data directory %s is no directory: name another with --data-dir", dir)
	case uid != os.Geteuid():
		return fmt.Errorf("data directory %s belongs to user %d, who can read and replace everything that the hub (user %d) remembers: run `chown -R %d %s`, or run the hub as its owner", dir, uid, os.Geteuid(), os.Geteuid(), dir)
	}
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		if err := holds(parent, dir); err != nil {
			return err
		}
		if parent == filepath.Dir(parent) {
			break
		}
	}
	if open := info.Mode().Perm() &^ 0o700; open != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("data directory %s is open to others (%04o): %w; run `chmod 700 %s`", dir, info.Mode().Perm(), err, dir)
		}
		log.Warn("the data directory was open to others and is not any more: if somebody else uses this machine, make new tokens and passwords", "dir", dir, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
	}
	return unmixed(dir)
}

// holds tells whether nobody else can put something in the place of a directory below.
func holds(parent, dir string) error {
	info, err := os.Lstat(parent)
	if err != nil {
		return nil // may not be looked at, and so not by most others
	}
	uid := owner.Of(info)
	byGroup := info.Mode().Perm()&0o020 != 0 && owner.Group(info) != os.Getegid() // a person's own group is that person
	switch {
	case uid != os.Geteuid() && uid != 0 && uid != overflow:
		return fmt.Errorf("data directory %s lies in %s, which belongs to user %d, who can put another in its place: move it to a directory of root's or of the hub's user", dir, parent, uid)
	case (byGroup || info.Mode().Perm()&0o002 != 0) && info.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("data directory %s lies in %s, into which others may write (%04o), and so put another in its place: run `chmod go-w %s`, or move it", dir, parent, info.Mode().Perm(), parent)
	}
	return nil
}

// unmixed tells whether all in the directory is of the hub, or of root, and no file
// leads elsewhere: what was planted while it was open would be written through.
func unmixed(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("look at data directory: %w", err)
	}
	for _, e := range entries {
		file := filepath.Join(dir, e.Name())
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at data directory: %w", err)
		}
		if uid := owner.Of(info); uid != os.Geteuid() && uid != 0 {
			return fmt.Errorf("%s belongs to user %d: the hub keeps only what is its own; move it away, or run `chown %d %s` if you trust what is in it", file, uid, os.Geteuid(), file)
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			if to, err := os.Stat(file); err != nil || !to.IsDir() {
				return fmt.Errorf("%s leads elsewhere, and the hub would write there: put the file itself in its place, or remove it", file)
			}
		}
	}
	return nil
}
