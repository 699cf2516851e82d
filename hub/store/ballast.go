package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ballastBytes is the size of the space in reserve. On a full disk SQLite cannot even delete, so
// without the reserve users could not free space through the hub.
const ballastBytes = 8 << 20

// probeEvery is the time between two probes for free space on a server.
const probeEvery = 10 * time.Second

func (s *Store) ballast() string { return filepath.Join(s.dir, "ballast") }

// Full reports whether the disk is full, so that new objects are refused.
func (s *Store) Full() bool {
	return s.full.Load()
}

// Room reports whether new objects can be stored. On a full disk it probes by allocating the
// ballast, since hours may pass without a new object.
func (s *Store) Room(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isOpen() && (!s.full.Load() || s.probeSpace(context.WithoutCancel(ctx)))
}

// probeSpace tests whether a disk that was full has space.
func (s *Store) probeSpace(ctx context.Context) bool {
	if s.pg == nil && !s.makeBallast() || s.pg != nil && !s.makeServerBallast(ctx) {
		return false
	}
	s.full.Store(false)
	s.log.Info("the disk has space again")
	return true
}

// makeServerBallast is makeBallast for a database server. The ballast is an unlogged table of the
// same size, because a full disk has no space for the log. If the table does not fit, the
// transaction leaves nothing.
func (s *Store) makeServerBallast(ctx context.Context) (room bool) {
	const row = 64 << 10
	s.probedAt = time.Now()
	pad := make([]byte, row) // incompressible
	_, _ = rand.Read(pad)
	err := s.txLocked(ctx, func(ctx context.Context, c *conn) error {
		var there bool
		err := c.QueryRowContext(ctx, "SELECT to_regclass('ballast') IS NOT NULL").Scan(&there)
		if err == nil && there { // a server crash empties the table
			rows := 0
			if err = c.QueryRowContext(ctx, "SELECT count(*) FROM ballast").Scan(&rows); rows == ballastBytes/row {
				return err
			}
			_, err = c.ExecContext(ctx, "DROP TABLE ballast")
		}
		if err == nil {
			_, err = c.ExecContext(ctx, "CREATE UNLOGGED TABLE ballast (fill bytea NOT NULL)")
		}
		if err != nil {
			return err
		}
		_, err = c.ExecContext(ctx, "INSERT INTO ballast SELECT ?::bytea FROM generate_series(1, ?::int)", pad,
			ballastBytes/row)
		return err
	})
	if err != nil && !errors.Is(err, ErrFull) {
		s.log.Warn("cannot reserve space on the database's disk for the time when it is full", "err", err)
	}
	return !errors.Is(err, ErrFull)
}

// makeBallast allocates the ballast if as much again stays free, and reports whether there is
// space. A sparse copy of the file does not count. Another file in its place does not mean that the
// disk is full.
func (s *Store) makeBallast() (room bool) {
	var st unix.Stat_t
	if err := unix.Lstat(s.ballast(), &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == ballastBytes &&
		st.Blocks*512 >= ballastBytes {
		return true
	}
	if free, err := freeBytes(s.dir); err != nil || free < 2*ballastBytes {
		return false
	}
	err := s.fillBallast()
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return false
	}
	if err != nil {
		s.log.Warn("cannot reserve space for the time when the disk is full: remove what is in the place of this file, or "+
			"make the data directory writable", "file", s.ballast(), "err", err)
	}
	return true
}

// probeWrite returns why no file can be created in the data directory, because SQLite does not
// distinguish a quota from an I/O error.
func (s *Store) probeWrite() error {
	f, err := os.CreateTemp(s.dir, "room")
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 64<<10))
	return errors.Join(err, f.Close(), os.Remove(f.Name()))
}

func (s *Store) fillBallast() error {
	f, err := os.OpenFile(s.ballast(), os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if err = s.giveToOwner(f); err == nil {
		err = f.Truncate(ballastBytes)
	}
	if err == nil {
		if err = unix.Fallocate(int(f.Fd()), 0, 0, ballastBytes); errors.Is(err, unix.EOPNOTSUPP) {
			_, err = f.Write(make([]byte, ballastBytes))
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(s.ballast())
	}
	return err
}

// giveUpBallast frees the ballast, and reports whether there was a ballast.
func (s *Store) giveUpBallast() bool {
	if s.pg == nil {
		return os.Remove(s.ballast()) == nil
	}
	if s.conn == nil {
		return false
	}
	// Not in a transaction of the store, which would need space.
	_, err := s.conn.ExecContext(context.Background(), "DROP TABLE ballast")
	return err == nil
}

// shrink returns the space of deleted objects to the disk, in steps whose log fits into the rest of
// the ballast.
func (s *Store) shrink(ctx context.Context) {
	const step = 500 // pages of 4 KiB
	before := -1
	for {
		var busy, logged, done, free int
		err := s.conn.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &logged, &done)
		if err == nil {
			err = s.conn.QueryRowContext(ctx, "PRAGMA freelist_count").Scan(&free)
		}
		if err == nil && (free == 0 || free == before) {
			return
		}
		if err == nil {
			before = free
			_, err = s.conn.ExecContext(ctx, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", step))
		}
		if err != nil {
			s.log.Warn("cannot return the space of deleted objects to the disk", "err", err)
			return
		}
	}
}

// Space returns the size of the database with its log, and the free bytes of the data directory's
// disk.
func (s *Store) Space() (taken, free int64, err error) {
	if s.pg != nil {
		if err := s.row(context.Background(), []any{&taken}, "SELECT pg_database_size(current_database())"); err != nil {
			return 0, 0, err
		}
	}
	for _, end := range []string{"", "-wal"} {
		if s.pg != nil {
			break
		}
		if info, err := os.Stat(s.file + end); err == nil {
			taken += info.Size()
		}
	}
	free, err = freeBytes(s.dir)
	return taken, free, err
}

// freeBytes returns the free space of a file system for this user.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil //nolint:unconvert // its type differs between architectures
}
