package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MaxDepth is how deep directories are nested that can be measured: whoever is measured
// makes them, and each is open meanwhile.
const MaxDepth = 256

// ErrDeep says that what is deeper was not measured.
var ErrDeep = fmt.Errorf("its directories are nested deeper than %d", MaxDepth)

// SizeOf is what a directory, or a file, takes on the disk. Who writes there may change it
// meanwhile, and wish that the measurement never ends or is never complete: nothing is
// followed out of it, what goes away counts for nothing, what has several names counts in
// equal shares, and no directory is held in memory as a whole.
func SizeOf(ctx context.Context, name string) (int64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return 0, gone(err)
	}
	sum := share(&st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return sum, nil
	}
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return sum, gone(err)
	}
	inside, err := sizeIn(ctx, os.NewFile(uintptr(fd), name), MaxDepth)
	return sum + inside, err
}

func sizeIn(ctx context.Context, dir *os.File, room int) (sum int64, err error) {
	defer dir.Close()
	for {
		names, end := dir.Readdirnames(256)
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			sum += share(&st)
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				continue
			}
			if room == 0 {
				return sum, ErrDeep
			}
			fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
			if err != nil {
				continue
			}
			n, err := sizeIn(ctx, os.NewFile(uintptr(fd), name), room-1)
			if sum += n; err != nil {
				return sum, err
			}
		}
		switch {
		case ctx.Err() != nil:
			return sum, ctx.Err()
		case errors.Is(end, io.EOF):
			return sum, nil
		case end != nil:
			return sum, end
		}
	}
}

// share is what one of the names of a file counts.
func share(st *unix.Stat_t) int64 {
	n := st.Blocks * 512
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		n /= int64(st.Nlink)
	}
	return n
}

func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
