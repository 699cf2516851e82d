package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
)

const (
	volumesDir  = "flotilla-simulate-" // directory in TMPDIR; a random part follows
	volumesLock = "lock"               // file that is locked while the process runs
)

// makeVolumes creates the directory for the volumes of simulated pods, and removes directories left
// by killed processes.
func makeVolumes(log *slog.Logger) (dir string, end func(), err error) {
	left, err := filepath.Glob(filepath.Join(os.TempDir(), volumesDir+"*"))
	if err != nil {
		return "", nil, err
	}
	for _, old := range left {
		removeLeft(old, log)
	}
	for range 10 { // another process may remove the directory before it is locked
		if dir, err = os.MkdirTemp("", volumesDir); err != nil {
			break
		}
		var lock *os.File
		if lock, err = os.OpenFile(filepath.Join(dir, volumesLock), os.O_CREATE|os.O_RDWR, 0o600); errors.Is(err,
			fs.ErrNotExist) {
			continue
		} else if err != nil {
			break
		}
		if locked(lock) && isStill(dir, lock) {
			return dir, func() {
				if err := os.RemoveAll(dir); err != nil {
					log.Warn("remove the volumes of simulated pods", "err", err)
				}
				_ = lock.Close()
			}, nil
		}
		_ = lock.Close()
		err = errors.New("other processes remove directories there")
	}
	return "", nil, fmt.Errorf("make a directory for the volumes of simulated pods: %w", err)
}

// removeLeft removes a directory whose process has ended. A directory without a lock file stays,
// because its process may still run.
func removeLeft(dir string, log *slog.Logger) {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() {
		return
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != os.Geteuid() {
		return
	}
	lock, err := os.OpenFile(filepath.Join(dir, volumesLock), os.O_RDWR|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer func() { _ = lock.Close() }()
	if !locked(lock) || !isStill(dir, lock) {
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		log.Warn("remove the volumes of an earlier simulation", "dir", dir, "err", err)
	}
}

func locked(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// isStill reports whether the locked file is still the file in the directory.
func isStill(dir string, lock *os.File) bool {
	there, err := os.Lstat(filepath.Join(dir, volumesLock))
	if err != nil {
		return false
	}
	mine, err := lock.Stat()
	return err == nil && os.SameFile(there, mine)
}
