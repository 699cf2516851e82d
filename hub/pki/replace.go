package pki

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/owner"
	"flotilla.dev/shared/fsync"
)

// Names of what replace leaves behind when its machine loses power.
const (
	partDir     = "next.part" // not decided yet: forgotten
	nextDir     = "next"      // decided: carried out at the next start
	removalFile = "remove"    // in nextDir: names of files that go
	lockFile    = "lock"
)

// locked keeps every other process from reading the authority's files between two
// of them.
func (a *Authority) locked(do func() error) error {
	f, err := os.OpenFile(a.path(lockFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock %s: %w; run this as the owner of the data directory", a.dir, err)
	}
	defer f.Close() // the kernel gives the lock back
	if err := owner.Give(f, a.dir); err != nil {
		return fmt.Errorf("lock %s: %w", a.dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w; put the data directory on a local file system", a.dir, err)
	}
	return do()
}

// replace changes several files, all or none, whenever the power fails: they are
// written aside, one rename decides, and what is not done then is done at the next
// start. nil removes a file.
func (a *Authority) replace(files map[string][]byte) error {
	return a.locked(func() error {
		if err := a.kept(files); err != nil {
			return fmt.Errorf("have the other hubs know of a change of the certificate authority: %w; nothing was changed", err)
		}
		if err := a.prepare(files); err != nil {
			return fmt.Errorf("change the certificate authority: %w; nothing was changed", err)
		}
		return a.carryOut()
	})
}

func (a *Authority) prepare(files map[string][]byte) error {
	part := a.path(partDir)
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	if err := os.Mkdir(part, 0o700); err != nil {
		return err
	}
	if err := owner.GiveDirectory(part, a.dir); err != nil {
		return err
	}
	var gone []string
	for name, text := range files {
		if text == nil {
			gone = append(gone, name)
		} else if err := owner.WriteFile(filepath.Join(part, name), text); err != nil {
			return err
		}
	}
	slices.Sort(gone)
	if err := owner.WriteFile(filepath.Join(part, removalFile), []byte(strings.Join(gone, "\n"))); err != nil {
		return err
	}
	if err := fsync.Dir(part); err != nil {
		return err
	}
	if err := os.Rename(part, a.path(nextDir)); err != nil {
		return err
	}
	return fsync.Dir(a.dir)
}

// carryOut does what was decided, as often as it takes.
func (a *Authority) carryOut() error {
	next := a.path(nextDir)
	list, err := os.ReadDir(next)
	if errors.Is(err, os.ErrNotExist) {
		return os.RemoveAll(a.path(partDir))
	}
	for _, e := range list {
		if err == nil && e.Name() != removalFile {
			err = os.Rename(filepath.Join(next, e.Name()), a.path(e.Name()))
		}
	}
	var gone []byte
	if err == nil {
		gone, err = os.ReadFile(filepath.Join(next, removalFile))
		if errors.Is(err, os.ErrNotExist) {
			err = nil // all of it was done but the last step
		}
	}
	for _, name := range strings.Fields(string(gone)) {
		if rerr := os.Remove(a.path(filepath.Base(name))); err == nil && !errors.Is(rerr, os.ErrNotExist) {
			err = rerr
		}
	}
	if err == nil {
		err = fsync.Dir(a.dir)
	}
	if err == nil {
		err = os.RemoveAll(next)
	}
	if err != nil {
		return fmt.Errorf(
			"finish a change of the certificate authority: %w; free the disk and make %s writable, then start again", err, a.dir)
	}
	return fsync.Dir(a.dir)
}
