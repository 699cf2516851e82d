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

// Names of the files of an unfinished replace, for example after a power cut.
const (
	partDir     = "next.part" // not committed; the next start removes it
	nextDir     = "next"      // committed; the next start completes it
	removalFile = "remove"    // in nextDir: the names of files to remove
	lockFile    = "lock"
)

// locked runs do under a file lock, so that other processes do not read half of a change.
func (a *Authority) locked(do func() error) error {
	f, err := os.OpenFile(a.path(lockFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("lock %s: %w; run this as the owner of the data directory", a.dir, err)
	}
	defer f.Close() // releases the lock
	if err := owner.Give(f, a.dir); err != nil {
		return fmt.Errorf("lock %s: %w", a.dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w; put the data directory on a local file system", a.dir, err)
	}
	return do()
}

// replace changes several files atomically, also at a power cut. It writes them into another
// directory and commits with one rename; the next start completes the change if necessary. nil
// removes a file.
func (a *Authority) replace(files map[string][]byte) error {
	return a.locked(func() error {
		if err := a.kept(files); err != nil {
			return fmt.Errorf("share a change of the certificate authority with the other hubs: %w; nothing was changed", err)
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

// carryOut completes a committed change. It may run several times.
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
			err = nil // only the last step was missing
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
			"finish a change of the certificate authority: %w; free disk space or make %s writable, then restart", err, a.dir)
	}
	return fsync.Dir(a.dir)
}
