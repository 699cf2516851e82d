package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/hub/owner"
)

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
				return nil, fmt.Errorf("the database of %s is being replaced, by a restore or a move: nothing was changed, run this again afterwards", dir)
			}
			return nil, fmt.Errorf("a command has the database of %s open: nothing was changed, end it or wait for it, and run this again", dir)
		}
	}
}
