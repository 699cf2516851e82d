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

// overflow is who owns, for a process in a namespace of its own, what is nobody's there.
const overflow = 65534

// private makes sure that nobody else can read or replace what the hub remembers: the
// directory is the hub's own and 0700, so are all who could move it away, and nothing in
// it leads elsewhere. What is ours and too open is mended; the rest is for a person. A command
// of root's that puts another database in the place of the hub's asks for the hub.
func private(o Options, log *slog.Logger) error {
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
		return fmt.Errorf("data directory %s is no directory: name another with --data-dir", dir)
	}
	if err := Foreign(dir); err != nil {
		return err
	}
	if uid := owner.Of(info); uid != hub {
		return fmt.Errorf("data directory %s belongs to user %d, who can read and replace everything that the hub (user "+
			"%d) remembers: run `chown -R %d %s`, or run the hub as its owner", dir, uid, hub, hub, dir)
	}
	if err := above(dir, hub, of); err != nil {
		return err
	}
	if open := info.Mode().Perm() &^ 0o700; open != 0 {
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("data directory %s is open to others (%04o): %w; run `chmod 700 %s`", dir, info.Mode().Perm(), err,
				dir)
		}
		log.Warn("the data directory was open to others and is not any more: if somebody else uses this machine, make new "+
			"tokens and passwords", "dir", dir, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
	}
	return unmixed(dir, hub)
}

// Refuses is why a hub would not start in a data directory that is its own, nil: it would. It mends nothing.
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
	if err := above(dir, owner.Of(info), owner.Group(info)); err != nil {
		return err
	}
	return unmixed(dir, owner.Of(info))
}

// Names in a data directory. A hub has used it where one of hubFiles is there.
var (
	hubFiles   = []string{"hub.lock", database, placeFile, witnessFile, "hub.sock", secretsKey}
	earlyFiles = []string{"pki", "backups", "history", "ballast", "lost+found"}
)

// Foreign refuses a directory that something else uses: closing it to others would break that. It changes
// nothing. A directory that cannot be read is left to the checks that follow.
func Foreign(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return nil //nolint:nilerr // whoever opens it says so
	}
	entries, _ := os.ReadDir(dir)
	is := func(names []string) func(fs.DirEntry) bool {
		return func(e fs.DirEntry) bool { return slices.Contains(names, e.Name()) }
	}
	if slices.ContainsFunc(entries, is(hubFiles)) {
		return nil
	}
	const instead = "nothing was changed; name a new or an empty directory with --data-dir"
	if others := slices.DeleteFunc(entries, is(earlyFiles)); len(others) > 0 {
		return fmt.Errorf("data directory %s is not a hub's, and not empty (%s): %s", dir, others[0].Name(), instead)
	}
	if info.Mode()&fs.ModeSticky != 0 && info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("data directory %s is shared by all users (1%03o), as /tmp: %s", dir, info.Mode().Perm(), instead)
	}
	return nil
}

// above asks holds of each directory above.
func above(dir string, hub, of int) error {
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		if err := holds(parent, dir, hub, of); err != nil || parent == filepath.Dir(parent) {
			return err
		}
	}
}

// holds tells whether nobody but the hub, a user with a group, can put something in the place of a
// directory below.
func holds(parent, dir string, hub, of int) error {
	info, err := os.Lstat(parent)
	if err != nil {
		return nil // may not be looked at, and so not by most others
	}
	uid := owner.Of(info)
	byGroup := info.Mode().Perm()&0o020 != 0 && owner.Group(info) != of // a person's own group is that person
	switch {
	case uid != hub && uid != 0 && uid != overflow:
		return fmt.Errorf("data directory %s lies in %s, which belongs to user %d, who can put another in its place: move "+
			"it to a directory of root's or of the hub's user", dir, parent, uid)
	case (byGroup || info.Mode().Perm()&0o002 != 0) && info.Mode()&fs.ModeSticky == 0:
		return fmt.Errorf("data directory %s lies in %s, into which others may write (%04o), and so put another in its "+
			"place: run `chmod go-w %s`, or move it", dir, parent, info.Mode().Perm(), parent)
	}
	return nil
}

// unmixed tells whether all in the directory is of the hub, or of root, and no file
// leads elsewhere: what was planted while it was open would be written through.
func unmixed(dir string, hub int) error {
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
			return fmt.Errorf("%s belongs to user %d: the hub keeps only what is its own; move it away, or run `chown %d %s` "+
				"if you trust what is in it", file, uid, hub, file)
		}
		if info.Mode()&(fs.ModeNamedPipe|fs.ModeDevice) != 0 {
			return fmt.Errorf("%s is a pipe or a device, for which the hub would wait for ever: put the file itself in its "+
				"place, or remove it", file)
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			to, err := os.Stat(file)
			if away := err != nil && (e.Name() == "backups" || e.Name() == "history"); away {
				continue // as a stick that was pulled: a directory is made through no link
			}
			if err != nil || !to.IsDir() {
				return fmt.Errorf("%s leads elsewhere, and the hub would write there: put the file itself in its place, or "+
					"remove it", file)
			}
		}
	}
	return nil
}

// belong gives a file to whom the data directory belongs, if it is one of it, or a backup beside the daily
// ones: others are made where somebody wants them.
func (s *Store) belong(f *os.File) error {
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

// ours tells whether the data directory belongs to whoever runs this: else it is a command of root's.
func (o Options) ours() (bool, error) {
	info, err := os.Stat(o.Dir)
	return err == nil && owner.Of(info) == os.Geteuid(), err
}

// A dirLock is the lock of a data directory.
type dirLock struct{ *os.File }

// Close gives the lock back in so many words: a program that is being started at this moment has a copy of
// the file until it is another program, and the lock would be held by that.
func (l *dirLock) Close() error {
	if l == nil {
		return os.ErrInvalid
	}
	return errors.Join(unix.Flock(int(l.Fd()), unix.LOCK_UN), l.File.Close())
}

// What else helps, beside stopping the hub that runs on a data directory, whoever wants it alone: another
// hub, or a command that is for just this directory.
const (
	anotherHub = ", or give this one its own --data-dir"
	thisOne    = ", run this again, and start it: the command is for a hub that is down"
)

// takeLock makes this process the only hub on a data directory. The kernel gives
// the lock back when the process ends, however it ends; the file stays.
func takeLock(dir, instead string) (*dirLock, error) {
	if err := Foreign(dir); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "hub.lock")
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory %s: %w; %s", dir, err, mend(err))
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
		return nil, fmt.Errorf("lock data directory %s: %w: %s runs there; stop it%s", dir, ErrLocked, who, instead)
	}
	if err := owner.Give(f, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file, err), f.Close())
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid()) // only for the message above
	}
	return &dirLock{f}, nil
}

// mend is what to do where a file of the data directory cannot be opened.
func mend(err error) string {
	if errors.Is(err, unix.EROFS) || errors.Is(err, unix.EIO) {
		return "its disk fails, or is worn out: see `dmesg`, and copy the directory to another one"
	}
	return "run this as the owner of that directory"
}

// Lock takes the lock of a stopped hub's data directory for a command that must not
// run beside the hub. Closing gives it back.
func Lock(dir string) (io.Closer, error) { return takeLock(dir, thisOne) }

const (
	with  = unix.LOCK_SH // a command that has the database of a directory open
	alone = unix.LOCK_EX // who puts another database in its place
)

// use takes a data directory itself, with others or alone, as long as something is open: nobody has a
// database open that is being replaced, and nobody opens one while it is.
func use(ctx context.Context, dir string, how int) (*dirLock, error) {
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
			if how == with {
				return nil, fmt.Errorf("the database of %s is being replaced, by a restore or a move: nothing was changed, run "+
					"this again afterwards", dir)
			}
			return nil, fmt.Errorf("a command has the database of %s open: nothing was changed, end it or wait for it, and "+
				"run this again", dir)
		}
	}
}
