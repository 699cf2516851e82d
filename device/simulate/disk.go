package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"flotilla.dev/device/engine"
)

// maxFiles limits the bytes copied into one simulated container.
const maxFiles = 32 << 20

// A disk holds the files of one simulated container.
type disk struct {
	mu    sync.Mutex
	files map[string][]byte // content by absolute name; a directory's name ends with a slash
	size  int               // total bytes
}

func (d *disk) get(name string) ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, ok := d.files[absolute(name)]
	return data, ok
}

func absolute(name string) string { return path.Clean("/" + name) }

func directory(name string) string { return strings.TrimSuffix(absolute(name), "/") + "/" }

// is implements test -e, -f and -d.
func (d *disk) is(what, name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, file := d.files[absolute(name)]
	_, dir := d.files[directory(name)]
	switch what {
	case "-f":
		return file && absolute(name) != "/"
	case "-d":
		return dir
	}
	return what == "-e" && (file || dir)
}

func (d *disk) list(args []string, to io.Writer) error {
	dir := "/"
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			dir = directory(a)
		}
	}
	d.mu.Lock()
	names := slices.Sorted(maps.Keys(d.files))
	_, ok := d.files[dir]
	d.mu.Unlock()
	if !ok {
		return fmt.Errorf("%s: no such directory", dir)
	}
	for _, n := range names {
		if rest, below := strings.CutPrefix(n, dir); below && rest != "" &&
			!strings.Contains(strings.TrimSuffix(rest, "/"), "/") {
			_, _ = fmt.Fprintln(to, strings.TrimSuffix(rest, "/"))
		}
	}
	return nil
}

func (d *disk) remove(args []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range args {
		if strings.HasPrefix(a, "-") {
			continue
		}
		for n, data := range d.files {
			if n == absolute(a) || strings.HasPrefix(n, directory(a)) && n != "/" {
				d.size -= len(data)
				delete(d.files, n)
			}
		}
	}
}

// put writes a file and creates its parent directories.
func (d *disk) put(name string, data []byte, dir bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.size+len(data) > maxFiles {
		return fmt.Errorf("no space left: a simulated container holds %d MiB", maxFiles>>20)
	}
	for parent := path.Dir(absolute(name)); parent != "/"; parent = path.Dir(parent) {
		d.files[parent+"/"] = nil
	}
	if dir {
		d.files[directory(name)] = nil
		return nil
	}
	d.size += len(data) - len(d.files[absolute(name)])
	d.files[absolute(name)] = data
	return nil
}

// tar implements the calls of kubectl cp: tar cf - NAME and tar -xmf - -C DIRECTORY.
func (d *disk) tar(args []string, s engine.Streams) error {
	dir, name, flags := "/", "", ""
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-C" && i+1 < len(args):
			i++
			dir = args[i]
		case i == 0 || strings.HasPrefix(a, "-") && a != "-":
			flags += strings.TrimLeft(a, "-")
		case a != "-":
			name = a
		}
	}
	switch {
	case strings.Contains(flags, "x"):
		return d.unpack(dir, s.Stdin)
	case strings.Contains(flags, "c") && name != "":
		return d.pack(path.Join(dir, name), name, s.Stdout)
	}
	return errors.New("this simulated tar supports cf - NAME and xf - -C DIRECTORY")
}

func (d *disk) unpack(dir string, from io.Reader) error {
	r := tar.NewReader(from)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			_, _ = io.Copy(io.Discard, from)
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir {
			continue
		}
		if h.Size > maxFiles {
			return fmt.Errorf("%s: a simulated container holds %d MiB", h.Name, maxFiles>>20)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := d.put(path.Join(dir, h.Name), data, h.Typeflag == tar.TypeDir); err != nil {
			return err
		}
	}
}

func (d *disk) pack(from, as string, to io.Writer) error {
	d.mu.Lock()
	names := slices.Sorted(maps.Keys(d.files))
	files := maps.Clone(d.files)
	d.mu.Unlock()
	w := tar.NewWriter(to)
	found := false
	for _, n := range names {
		rest, below := strings.CutPrefix(n, directory(from))
		switch {
		case n == absolute(from):
			rest = ""
		case !below:
			continue
		}
		found = true
		h := &tar.Header{Name: strings.TrimPrefix(path.Join(as, rest), "/"), Mode: 0o644, Size: int64(len(files[n])),
			Typeflag: tar.TypeReg, ModTime: time.Now()}
		if strings.HasSuffix(n, "/") {
			h.Name, h.Mode, h.Typeflag = h.Name+"/", 0o755, tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, bytes.NewReader(files[n])); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s: no such file or directory", as)
	}
	return w.Close()
}
