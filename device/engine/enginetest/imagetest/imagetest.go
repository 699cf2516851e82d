// Package imagetest writes images for tests as docker-archives for "docker load" and "podman load".
// It needs neither a registry nor an engine. Equal entries give equal bytes, so that the image id
// stays the same.
package imagetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// An Entry is a file, directory or symbolic link of a layer.
type Entry struct {
	Name string // path; a directory's path ends with a slash
	Data []byte
	Mode int64  // permissions, including the set-user-ID bit, 0o4000
	Link string // target of a symbolic link
}

// An Image describes an image for Write.
type Image struct {
	Arch   string // GOARCH
	Config any    // defaults of containers: Entrypoint, Cmd, Env, User …
	Layers [][]Entry
	Tags   []string
}

// Write writes an image as a docker-archive.
func Write(to io.Writer, img Image) error {
	var files []Entry
	var names, sums []string
	var history []any
	for i, entries := range img.Layers {
		layer, err := archive(entries)
		if err != nil {
			return err
		}
		name := "layer.tar"
		if i > 0 {
			name = fmt.Sprintf("layer%d.tar", i)
		}
		files = append(files, Entry{Name: name, Data: layer, Mode: 0o644})
		names = append(names, name)
		sums = append(sums, fmt.Sprintf("sha256:%x", sha256.Sum256(layer)))
		history = append(history, map[string]any{"created": "2026-01-01T00:00:00Z", "created_by": "tool"})
	}
	config, err := json.Marshal(map[string]any{
		"architecture": img.Arch,
		"os":           "linux",
		"created":      "2026-01-01T00:00:00Z",
		"config":       img.Config,
		"rootfs":       map[string]any{"type": "layers", "diff_ids": sums},
		"history":      history,
	})
	if err != nil {
		return err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]any{map[string]any{"Config": configName, "RepoTags": img.Tags, "Layers": names}})
	if err != nil {
		return err
	}
	whole, err := archive(append(append([]Entry{{Name: configName, Data: config, Mode: 0o644}}, files...),
		Entry{Name: "manifest.json", Data: manifest, Mode: 0o644}))
	if err != nil {
		return err
	}
	_, err = to.Write(whole)
	return err
}

// archive returns a tar file that depends only on its entries.
func archive(entries []Entry) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		kind := byte(tar.TypeReg)
		if strings.HasSuffix(e.Name, "/") {
			kind = tar.TypeDir
		}
		if e.Link != "" {
			kind = tar.TypeSymlink
		}
		h := &tar.Header{Typeflag: kind, Name: e.Name, Linkname: e.Link, Size: int64(len(e.Data)), Mode: e.Mode,
			ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.Data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}
