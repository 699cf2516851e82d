package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MaxDepth limits how deep measured directories may be nested. The container creates them, and the
// measurement keeps each level open.
const MaxDepth = 256

// ErrDeep means that directories beyond MaxDepth were not measured.
var ErrDeep = fmt.Errorf("its directories are nested deeper than %d", MaxDepth)

// An Extent is the disk usage of files.
type Extent struct {
	Bytes  int64
	Inodes float64 // a file with several names counts in equal shares
}

func (e *Extent) add(x Extent) {
	e.Bytes += x.Bytes
	e.Inodes += x.Inodes
}

// SizeOf returns the disk usage of a directory or file. The container may change files during the
// measurement, and must not be able to prolong it for ever: SizeOf does not follow links, ignores
// vanished files, and never reads a whole directory into memory.
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

// share returns the disk usage of a file divided by its number of names.
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
