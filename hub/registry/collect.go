package registry

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// An Image is a tag of a repository.
type Image struct {
	Name, Tag, Digest string
	Size              int64    // bytes of all its blobs, for all processors
	Platforms         []string // such as linux/arm64; none: an image for one kind of processor
	Pushed            time.Time
}

// Images returns every tag, by name and tag.
func (r *Registry) Images() (all []Image, err error) {
	names, err := r.repositories()
	for _, name := range names {
		tags, err := r.tags(name)
		if err != nil {
			return nil, err
		}
		for _, tag := range tags {
			digest, _, err := r.resolve(name, tag)
			if err != nil {
				return nil, err
			}
			im := Image{Name: name, Tag: tag, Digest: digest}
			if info, err := os.Stat(r.tagPath(name, tag)); err == nil {
				im.Pushed = info.ModTime()
			}
			seen := map[string]bool{}
			r.reach(name, digest, seen, func(d Descriptor, depth int) {
				im.Size += d.Size
				if d.Platform != nil && !d.IsAttestation() && depth == 1 {
					im.Platforms = append(im.Platforms, d.PlatformName())
				}
			})
			all = append(all, im)
		}
	}
	return all, err
}

// reach visits all that a manifest is made of, each part once. What is damaged or missing is left
// out.
func (r *Registry) reach(name, digest string, seen map[string]bool, visit func(d Descriptor, depth int)) {
	r.reachAt(name, digest, seen, visit, 0)
}

func (r *Registry) reachAt(name, digest string, seen map[string]bool, visit func(d Descriptor, depth int), depth int) {
	if seen[digest] || depth > 4 { // an index of indexes is rare; deeper is not an image
		return
	}
	seen[digest] = true
	m, size, err := r.readManifest(name, digest)
	if err != nil {
		return
	}
	if depth == 0 {
		visit(Descriptor{Digest: digest, Size: size}, 0)
	}
	for _, d := range m.Blobs() {
		if !seen[d.Digest] {
			seen[d.Digest] = true
			visit(d, depth+1)
		}
	}
	for _, d := range m.Manifests {
		if !seen[d.Digest] {
			visit(d, depth+1)
			r.reachAt(name, d.Digest, seen, visit, depth+1)
		}
	}
}

// Remove removes a tag; or, by its digest, a manifest with its tags. Blobs go with the next
// Collect.
func (r *Registry) Remove(name, reference string) error {
	digest, _, err := r.resolve(name, reference)
	if err != nil {
		return err
	}
	if !strings.Contains(reference, ":") {
		return os.Remove(r.tagPath(name, reference))
	}
	tags, err := r.tags(name)
	if err != nil {
		return err
	}
	for _, tag := range tags {
		if of, _, err := r.resolve(name, tag); err == nil && of == digest {
			if err := os.Remove(r.tagPath(name, tag)); err != nil {
				return err
			}
		}
	}
	return os.Remove(r.manifestPath(name, digest))
}

// A Collection is what Collect has removed.
type Collection struct {
	Manifests, Blobs int
	Bytes            int64
}

// Collect removes what nothing names any more: manifests without a tag that are older than a day
// and not among used (digests of manifests or of configurations), then blobs of no manifest that
// are older than an hour.
func (r *Registry) Collect(used []string) (c Collection, err error) {
	r.DropIdle()
	r.collecting.Lock()
	defer r.collecting.Unlock()
	names, err := r.repositories()
	if err != nil {
		return c, err
	}
	live := map[string]bool{}
	for _, name := range names {
		n, err := r.collectManifests(name, used, live)
		c.Manifests += n
		if err != nil {
			return c, err
		}
	}
	now := r.Now()
	err = r.eachBlob(func(digest string, info fs.FileInfo) error {
		if live[digest] || now.Sub(info.ModTime()) < blobGrace {
			return nil
		}
		c.Blobs++
		c.Bytes += info.Size()
		r.release(info.Size())
		return os.Remove(r.blobPath(digest))
	})
	return c, err
}

// collectManifests removes unused manifests of a repository, and adds to live what the others
// reach.
func (r *Registry) collectManifests(name string, used []string, live map[string]bool) (removed int, err error) {
	digests, err := r.digests(name)
	if err != nil {
		return 0, err
	}
	tags, err := r.tags(name)
	if err != nil {
		return 0, err
	}
	reached := map[string]bool{}
	keep := func(digest string) { r.reach(name, digest, reached, func(Descriptor, int) {}) }
	for _, tag := range tags {
		if d, _, err := r.resolve(name, tag); err == nil {
			keep(d)
		}
	}
	for _, d := range digests {
		info, err := os.Stat(r.manifestPath(name, d))
		if slices.Contains(used, d) || err == nil && r.Now().Sub(info.ModTime()) < untaggedKept {
			keep(d)
		}
	}
	for _, d := range digests { // what runs is known by its configuration
		if m, _, err := r.readManifest(name, d); err == nil && m.Config != nil && slices.Contains(used, m.Config.Digest) {
			keep(d)
		}
	}
	for _, d := range digests { // signatures stay with what they sign
		if m, _, err := r.readManifest(name, d); err == nil && m.Subject != nil && reached[m.Subject.Digest] {
			keep(d)
		}
	}
	for _, d := range digests {
		if reached[d] {
			continue
		}
		if err := os.Remove(r.manifestPath(name, d)); err != nil {
			return removed, err
		}
		removed++
	}
	for d := range reached {
		live[d] = true
	}
	if len(reached) == 0 {
		r.removeEmpty(name)
	}
	return removed, nil
}

// removeEmpty removes the directories of a repository without images.
func (r *Registry) removeEmpty(name string) {
	root := r.path("repositories")
	for _, sub := range []string{"_manifests", "_tags"} {
		_ = os.Remove(filepath.Join(root, name, sub))
	}
	for dir := filepath.Join(root, name); dir != root; dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil {
			return
		}
	}
}

// Run collects garbage every hour; used returns the digests that pods and workloads name.
func (r *Registry) Run(ctx context.Context, used func() []string) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Hour):
		}
		c, err := r.Collect(used())
		if err != nil {
			slog.Error("collect unused images", "err", err)
		} else if c.Blobs > 0 {
			slog.Info("removed unused images", "manifests", c.Manifests, "blobs", c.Blobs, "bytes", c.Bytes)
		}
	}
}
