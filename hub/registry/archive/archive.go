// Package archive reads images from a file or directory, and pushes them to a registry.
//
// It knows what `docker save` and `podman save` write, and the OCI image layout, as a tar archive
// or a directory. It speaks the OCI distribution API through the http.Client that its caller gives
// it, streams layers and holds only manifests in memory. Package cli calls it.
package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"flotilla.dev/hub/registry"
)

// maxFiles limits the entries of an archive that are remembered.
const maxFiles = 100_000

// An Archive is a file or directory with images.
type Archive struct {
	Images []Image
	files  files
	file   *os.File // nil: a directory
}

// An Image of an archive has a root manifest, or for the older format of Docker the names of its
// parts.
type Image struct {
	Name   string // as the archive has it, such as docker.io/library/till:1.2; "": it has none
	root   registry.Descriptor
	config string
	layers []string
}

// files opens the named parts of an archive. A part that is missing is fs.ErrNotExist.
type files interface {
	open(name string) (io.ReadCloser, int64, error)
}

// Open reads the list of images of a tar archive, perhaps compressed by gzip, or of a directory.
// For "-" it reads standard input.
func Open(name string, stdin io.Reader) (a *Archive, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read the image archive %s: %w", name, err)
			if a != nil {
				a.Close()
			}
		}
	}()
	info, err := os.Stat(name)
	switch {
	case name == "-":
		a, err = openTar(nil, stdin)
	case err != nil:
		return nil, err
	case info.IsDir():
		root, err := os.OpenRoot(name)
		if err != nil {
			return nil, err
		}
		a = &Archive{files: directory{root}}
	default:
		var f *os.File
		if f, err = os.Open(name); err == nil {
			a, err = openTar(f, f)
		}
	}
	if err != nil {
		return a, err
	}
	return a, a.list()
}

// Close closes the archive.
func (a *Archive) Close() {
	if d, ok := a.files.(directory); ok {
		_ = d.root.Close()
	}
	if a.file != nil {
		_ = a.file.Close()
	}
}

// openTar indexes a tar archive. One that cannot be read at any place, which is compressed or a
// pipe, is first copied to a temporary file.
func openTar(f *os.File, r io.Reader) (*Archive, error) {
	a := &Archive{file: f}
	b := bufio.NewReader(r)
	magic, _ := b.Peek(2)
	compressed := bytes.Equal(magic, []byte("\x1f\x8b"))
	if f != nil && !compressed {
		_, err := f.Seek(0, io.SeekStart)
		return a, errors.Join(err, a.index())
	}
	r = b
	if compressed {
		z, err := gzip.NewReader(b)
		if err != nil {
			return a, err
		}
		r = z
	}
	spool, err := os.CreateTemp("", "flotilla-image-")
	if err != nil {
		return a, err
	}
	if f != nil {
		defer f.Close()
	}
	a.file = spool
	_ = os.Remove(spool.Name())
	if _, err := io.Copy(spool, r); err != nil {
		return a, fmt.Errorf("copy it to %s: %w; TMPDIR names another directory", os.TempDir(), err)
	}
	_, err = spool.Seek(0, io.SeekStart)
	return a, errors.Join(err, a.index())
}

// index notes where the parts of the tar archive are.
func (a *Archive) index() error {
	x := archived{file: a.file, at: map[string]section{}, links: map[string]string{}}
	a.files = x
	t := tar.NewReader(a.file)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("it is not a whole tar archive: %w", err)
		}
		if len(x.at)+len(x.links) > maxFiles {
			return fmt.Errorf("it has more than %d files: it is not an image archive", maxFiles)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			start, err := a.file.Seek(0, io.SeekCurrent) // tar reads no further than it must
			if err != nil {
				return err
			}
			x.at[name] = section{start, h.Size}
		case tar.TypeSymlink:
			x.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			x.links[name] = path.Clean(h.Linkname)
		}
	}
}

// archived are the parts of a tar archive.
type archived struct {
	file  *os.File
	at    map[string]section
	links map[string]string
}

type section struct{ start, size int64 }

func (x archived) open(name string) (io.ReadCloser, int64, error) {
	name = path.Clean(name)
	if to, ok := x.links[name]; ok {
		name = to
	}
	s, ok := x.at[name]
	if !ok {
		return nil, 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return io.NopCloser(io.NewSectionReader(x.file, s.start, s.size)), s.size, nil
}

// directory are the parts of a directory; none is outside it.
type directory struct{ root *os.Root }

func (d directory) open(name string) (io.ReadCloser, int64, error) {
	f, err := d.root.Open(name)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// list reads which images the archive has.
func (a *Archive) list() error {
	text, err := a.read("index.json")
	if err == nil {
		index, err := registry.ParseManifest(text, "")
		if err != nil {
			return fmt.Errorf("index.json: %w", err)
		}
		for _, d := range index.Manifests {
			a.Images = append(a.Images, Image{Name: nameOf(d.Annotations), root: d})
		}
		return a.some()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var saved []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	text, err = a.read("manifest.json")
	if errors.Is(err, fs.ErrNotExist) {
		return errors.New("it has neither index.json nor manifest.json; make it with `docker save IMAGE -o FILE`, or in " +
			"the OCI layout")
	}
	if err == nil {
		err = json.Unmarshal(text, &saved)
	}
	if err != nil {
		return fmt.Errorf("manifest.json: %w", err)
	}
	for _, s := range saved {
		if len(s.RepoTags) == 0 {
			s.RepoTags = []string{""}
		}
		for _, tag := range s.RepoTags {
			a.Images = append(a.Images, Image{Name: tag, config: s.Config, layers: s.Layers})
		}
	}
	return a.some()
}

func (a *Archive) some() error {
	if len(a.Images) == 0 {
		return errors.New("it has no image")
	}
	return nil
}

// nameOf returns the name that a tool has given an image of an OCI layout. A tag alone is not one.
// Docker calls an image that was built as till:1.2 docker.io/library/till:1.2 there.
func nameOf(annotations map[string]string) string {
	name := strings.TrimPrefix(annotations["io.containerd.image.name"], "docker.io/library/")
	if name == "" {
		name = annotations["org.opencontainers.image.ref.name"]
	}
	if !strings.ContainsAny(name, ":/") {
		return ""
	}
	return name
}

// read returns a small part.
func (a *Archive) read(name string) ([]byte, error) {
	r, size, err := a.files.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > registry.MaxManifest {
		return nil, fmt.Errorf("%s has %d bytes: more than %d MiB is not a manifest", name, size, registry.MaxManifest>>20)
	}
	return io.ReadAll(io.LimitReader(r, registry.MaxManifest))
}

// blobFile returns the name of a blob in an OCI layout.
func blobFile(digest string) string { return "blobs/" + strings.Replace(digest, ":", "/", 1) }

func (a *Archive) has(digest string) bool {
	r, _, err := a.files.open(blobFile(digest))
	if err == nil {
		_ = r.Close()
	}
	return err == nil
}

// whole returns the manifest to push for an image of an OCI layout. `docker save` writes an index
// of all processors with the parts of one: then it is that one's manifest.
func (a *Archive) whole(root registry.Descriptor) (registry.Descriptor, registry.Manifest, []byte, error) {
	text, err := a.read(blobFile(root.Digest))
	if err != nil {
		return root, registry.Manifest{}, nil, err
	}
	m, err := registry.ParseManifest(text, root.MediaType)
	if err != nil || len(m.Manifests) == 0 {
		return root, m, text, err
	}
	there := slices.DeleteFunc(slices.Clone(m.Manifests), func(d registry.Descriptor) bool { return !a.has(d.Digest) })
	if len(there) == len(m.Manifests) {
		return root, m, text, nil
	}
	there = slices.DeleteFunc(there, func(d registry.Descriptor) bool { return d.IsAttestation() })
	if len(there) != 1 {
		return root, m, nil, fmt.Errorf("it has the parts of %d of the %d manifests of an index: save the image for one "+
			"platform (docker save --platform), or whole", len(there), len(m.Manifests))
	}
	return a.whole(there[0])
}
