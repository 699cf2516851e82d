package main

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// asTar implements the two calls of kubectl cp: "tar cf - PATH" and "tar -xmf - -C DIRECTORY".
func asTar(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "cf" && args[1] == "-":
		return pack(os.Stdout, args[2])
	case len(args) == 2 && args[0] == "-xmf":
		return unpack(os.Stdin, ".")
	case len(args) == 4 && args[0] == "-xmf" && args[2] == "-C":
		return unpack(os.Stdin, args[3])
	}
	return fmt.Errorf("tar %s is not a call of kubectl cp", strings.Join(args, " "))
}

func pack(to io.Writer, root string) error {
	w := tar.NewWriter(to)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		h, err := tar.FileInfoHeader(info, "")
		if err != nil {
			return err
		}
		h.Name = strings.TrimPrefix(path, "/")
		if err := w.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}

func unpack(from io.Reader, dir string) error {
	r := tar.NewReader(from)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		if _, err = io.Copy(f, r); err == nil {
			err = f.Close()
		}
		if err != nil {
			return err
		}
	}
}
