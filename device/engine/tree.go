package engine

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/moby/moby/client"
)

// trailer is the number of zero bytes at the end of a tar archive. An archive that is cut off
// between two entries lacks them and otherwise looks complete.
const trailer = 1024

func (a *api) ImageTree(ctx context.Context, ref string, s Spec,
	take func(size int64) (func(*tar.Header, io.Reader) error, error)) (err error) {
	image, ok, err := a.findImage(ctx, ref)
	if err == nil && !ok {
		err = fmt.Errorf("read image %s: %w", ref, ErrNoImage)
	}
	if err != nil {
		return err
	}
	put, err := take(image.size)
	if err != nil {
		return err
	}
	s.Image, s.Entrypoint, s.Args = ref, []string{"-"}, []string{}
	id, err := a.Create(ctx, s)
	if err != nil {
		return err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, a.Remove(clean, id))
	}()
	made, err := a.look(ctx, id)
	if err != nil {
		return explain(err, "look at container", id)
	}
	tree, err := a.client().ContainerExport(ctx, id, client.ContainerExportOptions{})
	if err != nil {
		return explain(err, "read image", ref)
	}
	defer tree.Close()
	if !a.podman() {
		put = withoutStubs(moment(made.Container.Created), put)
	}
	if err := entries(tree, put); err != nil {
		return fmt.Errorf("read image %s: %w", ref, err)
	}
	return nil
}

// entries reads an archive to its end.
func entries(from io.Reader, put func(*tar.Header, io.Reader) error) error {
	counted := &counter{from: from}
	archive := tar.NewReader(counted)
	for {
		before := counted.n
		h, err := archive.Next()
		if errors.Is(err, io.EOF) && counted.n-before < trailer {
			err = io.ErrUnexpectedEOF
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := put(h, archive); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, archive); err != nil {
			return err
		}
	}
}

type counter struct {
	from io.Reader
	n    int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.from.Read(b)
	c.n += int64(n)
	return n, err
}

// stubs are the files and mount points that Docker creates in each container if the image lacks
// them.
var stubs = map[string]byte{
	".dockerenv": tar.TypeReg, "dev": tar.TypeDir, "dev/console": tar.TypeReg, "dev/pts": tar.TypeDir,
	"dev/shm": tar.TypeDir,
	"etc":     tar.TypeDir, "etc/hostname": tar.TypeReg, "etc/hosts": tar.TypeReg, "etc/mtab": tar.TypeSymlink,
	"etc/resolv.conf": tar.TypeReg,
	"proc":            tar.TypeDir, "sys": tar.TypeDir,
}

// withoutStubs leaves out the files that Docker added when it created the container: they have a
// name in stubs, are empty, and are as new as the container. A directory is empty if no later entry
// is inside it.
func withoutStubs(made time.Time, put func(*tar.Header, io.Reader) error) func(*tar.Header, io.Reader) error {
	var held []*tar.Header // directories that may be empty; each is inside the one before it
	return func(h *tar.Header, data io.Reader) error {
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		kind, stub := stubs[name]
		if stub && kind == h.Typeflag && h.Size == 0 && !h.ModTime.Before(made.Truncate(time.Second)) {
			if kind == tar.TypeDir {
				held = append(held, h)
			}
			return nil
		}
		for _, dir := range held {
			if strings.HasPrefix(name, strings.TrimPrefix(path.Clean("/"+dir.Name), "/")+"/") {
				if err := put(dir, strings.NewReader("")); err != nil {
					return err
				}
			}
		}
		held = nil
		return put(h, data)
	}
}
