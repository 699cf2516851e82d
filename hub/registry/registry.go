// Package registry is the hub's image registry: it keeps container images on disk and serves them by
// the OCI distribution API, which docker, podman, crane and skopeo speak.
//
// It knows no users and no pods: package serve checks the rights of each request, and says which
// images are in use. Blobs are streamed between network and disk, never held in memory.
package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"flotilla.dev/shared/fsync"
)

// Limits of the registry.
const (
	MaxManifest  = 4 << 20          // bytes; what other registries accept
	maxUploads   = 64               // at once
	uploadIdle   = 10 * time.Minute // after which an upload is given up
	blobGrace    = time.Hour        // a blob without a manifest is kept so long: its manifest may be on the way
	untaggedKept = 24 * time.Hour   // a manifest without a tag: a device may still want to go back to it
	diskReserve  = 256 << 20        // bytes of disk left to the hub's database
)

// Socket is the path, in the hub's data directory, of the socket at which commands on its machine
// reach the registry.
const Socket = "images/registry.sock"

// ParseName splits the name of an image on the hub, such as hub/shop/till:1.2, into repository and
// tag, which is latest if it is missing.
func ParseName(image string) (repository, tag string, err error) {
	repository, tag, has := strings.Cut(strings.TrimPrefix(image, "hub/"), ":")
	if !has {
		tag = "latest"
	}
	if len(repository) > 255 || !namePattern.MatchString(repository) || !tagPattern.MatchString(tag) {
		return "", "", fmt.Errorf("%.200q is not a name for an image on the hub: write for example hub/shop/till:1.2", image)
	}
	return repository, tag, nil
}

var (
	namePattern   = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	tagPattern    = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	digestPattern = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)
)

// A Registry keeps images below one directory:
//
//	blobs/ab/abcd…                     a blob or manifest, named by its SHA-256
//	repositories/NAME/_manifests/abcd… its content is the manifest's media type
//	repositories/NAME/_tags/TAG        its content is the digest
//	uploads/ID                         an upload that is under way
type Registry struct {
	dir   string
	quota int64
	// Now is the clock; tests replace it.
	Now func() time.Time

	mu      sync.Mutex
	used    int64 // bytes of blobs and of uploads under way
	uploads map[string]*upload

	collecting sync.RWMutex // held for reading while links are made, for writing while garbage is collected
}

// Open returns the registry in dir, which holds at most quota bytes.
func Open(dir string, quota int64) (*Registry, error) {
	r := &Registry{dir: dir, quota: quota, Now: time.Now, uploads: map[string]*upload{}}
	if err := os.RemoveAll(r.path("uploads")); err != nil { // their clients start again
		return nil, fmt.Errorf("open the image registry: %w", err)
	}
	for _, sub := range []string{"blobs", "repositories", "uploads"} {
		if err := os.MkdirAll(r.path(sub), 0o700); err != nil {
			return nil, fmt.Errorf("open the image registry: %w", err)
		}
	}
	err := r.eachBlob(func(_ string, info fs.FileInfo) error {
		r.used += info.Size()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open the image registry: %w", err)
	}
	return r, nil
}

// Usage returns the bytes that the images have, and the bytes that they may have.
func (r *Registry) Usage() (used, quota int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.used, r.quota
}

func (r *Registry) path(parts ...string) string {
	return filepath.Join(append([]string{r.dir}, parts...)...)
}

func (r *Registry) blobPath(digest string) string {
	hex := strings.TrimPrefix(digest, "sha256:")
	return r.path("blobs", hex[:2], hex)
}

func (r *Registry) manifestPath(name, digest string) string {
	return r.path("repositories", name, "_manifests", strings.TrimPrefix(digest, "sha256:"))
}

func (r *Registry) tagPath(name, tag string) string {
	return r.path("repositories", name, "_tags", tag)
}

func (r *Registry) eachBlob(do func(digest string, info fs.FileInfo) error) error {
	return filepath.WalkDir(r.path("blobs"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return do("sha256:"+d.Name(), info)
	})
}

// reserve counts bytes that are about to be written.
func (r *Registry) reserve(n int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(r.dir, &disk); err == nil && int64(disk.Bavail)*int64(disk.Bsize)-n < diskReserve {
		return full("the hub's disk has less than %d MiB left", diskReserve>>20)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used+n > r.quota {
		return full("%s of %s are used", size(r.used), size(r.quota))
	}
	r.used += n
	return nil
}

func (r *Registry) release(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= n
}

func full(format string, args ...any) error {
	return refusal{507, "DENIED", "the image registry is full: " + fmt.Sprintf(format, args...) +
		"; free space with `flotilla-hub image rm` and `flotilla-hub image gc`, or raise --image-quota"}
}

func size(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// writeFile puts a small file in place, whole or not at all.
func (r *Registry) writeFile(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(r.path("uploads"), "link-")
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	return fsync.Dir(filepath.Dir(path))
}
