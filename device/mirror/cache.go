package mirror

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A cache keeps blobs as files named by their SHA-256. Each is written once.
type cache struct {
	dir   string
	limit int64 // bytes

	mu sync.Mutex
}

// cacheReserve is the disk space that the cache leaves free.
const cacheReserve = 512 << 20

func (c *cache) file(digest string) string {
	return filepath.Join(c.dir, strings.TrimPrefix(digest, "sha256:"))
}

func (c *cache) part(digest string) string { return c.file(digest) + ".part" }

// open makes the directory, and removes what was on its way.
func (c *cache) open() error {
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	parts, _ := filepath.Glob(filepath.Join(c.dir, "*.part"))
	for _, p := range parts {
		_ = os.Remove(p)
	}
	return nil
}

// clear removes all whole blobs.
func (c *cache) clear() { c.trim(0) }

// trim removes old blobs, and the oldest until they have at most the given bytes.
func (c *cache) trim(most int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entries, _ := os.ReadDir(c.dir)
	var kept []os.FileInfo
	var total int64
	for _, e := range entries {
		if info, err := e.Info(); err == nil && !strings.HasSuffix(e.Name(), ".part") {
			kept = append(kept, info)
			total += info.Size()
		}
	}
	slices.SortFunc(kept, func(a, b os.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	for _, info := range kept {
		if total > most || time.Since(info.ModTime()) > keepTime {
			_ = os.Remove(filepath.Join(c.dir, info.Name()))
			total -= info.Size()
		}
	}
}

// room makes room for a blob, and reports whether there is enough.
func (c *cache) room(size int64) bool {
	if size > c.limit {
		return false
	}
	c.trim(c.limit - size)
	var disk unix.Statfs_t
	err := unix.Statfs(c.dir, &disk)
	return err == nil && int64(disk.Bavail)*int64(disk.Bsize) >= 3*size+cacheReserve // the engine needs some, too
}

// keep makes a fetched blob durable.
func (c *cache) keep(f *fetch) error {
	err := f.file.Sync()
	if err == nil {
		err = os.Rename(c.part(f.digest), c.file(f.digest))
	}
	return err
}

// find returns a blob that is there, as a fetch that has ended; nil: it is not there.
func (c *cache) find(digest string) *fetch {
	f, err := os.Open(c.file(digest))
	if err != nil {
		return nil
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil
	}
	return &fetch{digest: digest, file: f, changed: make(chan struct{}),
		progress: progress{size: info.Size(), have: info.Size(), done: true},
		readers:  1}
}
