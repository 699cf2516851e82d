package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/owner"
)

// overflow is the user that a process in a user namespace sees for unmapped owners.
const overflow = 65534

// checkDirectory makes sure that no other user can read or replace the data directory: the
// directory and its parents belong to the hub, its mode is 0700, and no file in it is a link to
// another place. It closes the directory if only the mode is too open, and refuses everything else.
// Root's commands that replace the database check on behalf of the hub.
func checkDirectory(o Options, log *slog.Logger) error {
	dir := o.Dir
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
	hub, of := os.Geteuid(), os.Getegid()
	if hub == 0 && (o.moving || o.restoring) {
		hub, of = owner.Of(info), owner.Group(info)
	}
	if !info.IsDir() {
		return fmt.Errorf("data directory %s is not a directory: name another one with --data-dir", dir)
	}
	if err := Foreign(dir); err != nil {
		return err
	}
	if uid := owner.Of(info); uid != hub {
		return fmt.Errorf("data directory %s belongs to user %d, who can read and replace everything that the hub (user "+
			"%d) stores: run `chown -R %d %s`, or run the hub as its owner", dir, uid, hub, hub, dir)
	}
	if err := eachParent(dir, hub, of); err != nil {
		return err
	}
	if open := info.Mode().Perm() &^ 0o700; open != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("data directory %s is open to other users (%04o): %w; run `chmod 700 %s`", dir,
				info.Mode().Perm(), err, dir)
		}
		log.Warn("the data directory was open to other users and is now closed: if others use this machine, make new "+
			"tokens and passwords", "dir", dir, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
	}
	return checkContent(dir, hub)
}

// Refuses returns why a hub would refuse to start in its data directory; nil: the hub would start.
// It changes nothing.
func Refuses(dir string) error {
	dir, err := filepath.EvalSymlinks(dir)
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if err := eachParent(dir, owner.Of(info), owner.Group(info)); err != nil {
		return err
	}
	return checkContent(dir, owner.Of(info))
}

// Names in a data directory. Each of hubFiles shows that a hub has used the directory.
var (
	hubFiles   = []string{"hub.lock", database, placeFile, highWaterFile, "hub.sock", secretsKey}
	earlyFiles = []string{"pki", "backups", "history", "ballast", "lost+found"}
)

// Foreign returns an error for a directory that another program uses, because a restrictive mode
// would break that program. It changes nothing. A directory that it cannot read is left to later
// checks.
func Foreign(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return nil //nolint:nilerr // opening it reports the error
	}
	entries, _ := os.ReadDir(dir)
	is := func(names []string) func(fs.DirEntry) bool {
		return func(e fs.DirEntry) bool { return slices.Contains(names, e.Name()) }
	}
	if slices.ContainsFunc(entries, is(hubFiles)) {
		return nil
	}
	const instead = "nothing was changed; name a new or empty directory with --data-dir"
	if others := slices.DeleteFunc(entries, is(earlyFiles)); len(others) > 0 {
		return fmt.Errorf("data directory %s is not empty and not a hub's (%s): %s", dir, others[0].Name(), instead)
	}
	if info.Mode()&fs.ModeSticky != 0 && info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("data directory %s is shared by all users (1%03o), like /tmp: %s", dir, info.Mode().Perm(), instead)
	}
	return nil
}

// eachParent calls checkParent for each parent directory, up to the root.
func eachParent(dir string, hub, of int) error {
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		if err := checkParent(parent, dir, hub, of); err != nil || parent == filepath.Dir(parent) {
			return err
		}
	}
}

// checkParent returns an error if another user could replace dir, which is below parent. hub is the
// hub's user, and of is that user's group.
func checkParent(parent, dir string, hub, of int) error {
	info, err := os.Lstat(parent)
	if err != nil {
		return nil // unreadable for this user, and so for most other users
	}
	uid := owner.Of(info)
	byGroup := info.Mode().Perm()&0o020 != 0 && owner.Group(info) != of // a user's private group has no other members
	switch {
	case uid != hub && uid != 0 && uid != overflow:
		return fmt.Errorf("data directory %s is in %s, which belongs to user %d, who can replace it: move it to a directory "+
			"of root or of the hub's user", dir, parent, uid)
	case (byGroup || info.Mode().Perm()&0o002 != 0) && info.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("data directory %s is in %s, where other users may write (%04o) and can replace it: run "+
			"`chmod go-w %s`, or move it", dir, parent, info.Mode().Perm(), parent)
	}
	return nil
}

// checkContent returns an error unless every file belongs to the hub or root, and no file is a link
// to another place. A link may have been planted while the directory was open, and the hub would
// write to its target.
func checkContent(dir string, hub int) error {
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
		if uid := owner.Of(info); uid != hub && uid != 0 {
			return fmt.Errorf("%s belongs to user %d, not to the hub: move it away, or, if you trust its content, run "+
				"`chown %d %s`", file, uid, hub, file)
		}
		if info.Mode()&(fs.ModeNamedPipe|fs.ModeDevice) != 0 {
			return fmt.Errorf("%s is a pipe or a device, which would block the hub: replace it by the file itself, or remove "+
				"it", file)
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			to, err := os.Stat(file)
			if away := err != nil && (e.Name() == "backups" || e.Name() == "history"); away {
				continue // a link to an unplugged disk; MkdirAll does not follow links
			}
			if err != nil || !to.IsDir() {
				return fmt.Errorf("%s is a link, and the hub would write to its target: replace it by the file itself, or "+
					"remove it", file)
			}
		}
	}
	return nil
}

// giveToOwner gives a file of the data directory, or a daily backup, to the directory's owner.
// Other backups are written where the user wants them, and keep their owner.
func (s *Store) giveToOwner(f *os.File) error {
	in, err := os.Stat(filepath.Dir(f.Name()))
	if err != nil {
		return err
	}
	for _, dir := range []string{s.dir, filepath.Join(s.dir, "backups")} {
		if own, err := os.Stat(dir); err == nil && os.SameFile(in, own) {
			return owner.Give(f, s.dir)
		}
	}
	return nil
}

// ownsDir reports whether this user owns the data directory. Otherwise root runs a command.
func (o Options) ownsDir() (bool, error) {
	info, err := os.Stat(o.Dir)
	return err == nil && owner.Of(info) == os.Geteuid(), err
}

// A dirLock is the lock of a data directory.
type dirLock struct{ *os.File }

// Close unlocks explicitly, because a child process between fork and exec shares the file and would
// keep the lock.
func (l *dirLock) Close() error {
	if l == nil {
		return os.ErrInvalid
	}
	return errors.Join(unix.Flock(int(l.Fd()), unix.LOCK_UN), l.File.Close())
}

// Further advice in the error about a locked data directory, for a second hub and for a command.
const (
	anotherHub    = ", or give this one another --data-dir"
	adviceCommand = ", run this again, then start it: the command needs a stopped hub"
)

// takeLock makes this process the only hub on a data directory. The kernel releases the lock when
// the process ends; the file stays.
func takeLock(dir, advice string) (*dirLock, error) {
	if err := Foreign(dir); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "hub.lock")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory %s: %w; %s", dir, err, openAdvice(err))
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		_ = f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w; put the data directory on a local file system", file, err)
		}
		who := "another flotilla-hub"
		if pid := strings.TrimSpace(string(holder)); pid != "" {
			who += " (pid " + pid + ")"
		}
		return nil, fmt.Errorf("lock data directory %s: %w: %s uses it; stop that hub%s", dir, ErrLocked, who, advice)
	}
	if err := owner.Give(f, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file, err), f.Close())
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid()) // the pid is for the error message above
	}
	return &dirLock{f}, nil
}

// openAdvice returns what to do when a file of the data directory cannot be opened.
func openAdvice(err error) string {
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EIO) {
		return "its disk fails or is worn out: see `dmesg`, and copy the directory to another disk"
	}
	return "run this as the owner of that directory"
}

// Lock takes the lock of a stopped hub's data directory, for a command that needs a stopped hub.
// Close releases it.
func Lock(dir string) (io.Closer, error) { return takeLock(dir, adviceCommand) }

const (
	lockShared    = unix.LOCK_SH // commands that have the database open
	lockExclusive = unix.LOCK_EX // a command that replaces the database
)

// lockUse takes a shared or exclusive lock on the directory itself. While one command replaces the
// database, no other command has it open.
func lockUse(ctx context.Context, dir string, how int) (*dirLock, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open data directory: %w; run this as the user of the hub", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		switch err := unix.Flock(int(d.Fd()), how|unix.LOCK_NB); {
		case err == nil:
			return &dirLock{d}, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			_ = d.Close()
			return nil, fmt.Errorf("lock %s: %w; put the data directory on a local file system", dir, err)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			_ = d.Close()
			if how == lockShared {
				return nil, fmt.Errorf("a restore or a move is replacing the database of %s: nothing was changed; run "+
					"this again afterwards", dir)
			}
			return nil, fmt.Errorf("another command has the database of %s open: nothing was changed; end it or wait for it, "+
				"then run this again", dir)
		}
	}
}
