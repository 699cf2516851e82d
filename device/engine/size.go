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

// An Extent is what something takes on a disk.
type Extent struct {
	Bytes  int64
	Inodes float64 // what has several names counts at each of them for its share
}

func (e *Extent) add(x Extent) {
	e.Bytes += x.Bytes
	e.Inodes += x.Inodes
}

// SizeOf is what a directory, or a file, takes on the disk. Who writes there may change it
// meanwhile, and wish that the measurement never ends or is never complete: nothing is
// followed out of it, what goes away counts for nothing, what has several names counts in
// equal shares, and no directory is held in memory as a whole.
func SizeOf(ctx context.Context, name string) (Extent, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return Extent{}, gone(err)
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
	sum.add(inside)
	return sum, err
}

func sizeIn(ctx context.Context, dir *os.File, room int) (sum Extent, err error) {
	defer dir.Close()
	for {
		names, end := dir.Readdirnames(256)
		for _, name := range names {
			var st unix.Stat_t
			if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue
			}
			sum.add(share(&st))
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
			if sum.add(n); err != nil {
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
func share(st *unix.Stat_t) Extent {
	e := Extent{st.Blocks * 512, 1}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		e.Bytes /= int64(st.Nlink)
		e.Inodes /= float64(st.Nlink)
	}
	return e
}

func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
