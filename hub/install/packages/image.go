package main

import (
	"archive/tar"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const (
	agentsDir = "usr/lib/flotilla/agents"
	dataDir   = "var/lib/flotilla/hub"
	// user is the user of the hub in its container; the data directory belongs to it.
	user = 65532
)

//go:embed compose.yaml
var composeFile string

// writeImage writes an image of the hub with the agents for all architectures, in the form that
// docker load, podman load, crane and skopeo read. It has nothing else: no shell, no libraries.
func writeImage(w io.Writer, arch, version, program string, agents map[string]string, when time.Time) error {
	files := map[string]string{}
	for arch, file := range agents {
		files[agentsDir+"/flotilla-device-"+arch] = file
	}
	layers := make([]v1.Layer, 0, 2)
	for _, files := range []map[string]string{files, {"usr/bin/flotilla-hub": program}} {
		l, err := layer(files, when)
		if err != nil {
			return err
		}
		layers = append(layers, l)
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return err
	}
	platform := v1.ConfigFile{Architecture: arch, OS: "linux"}
	if arch == "armhf" {
		platform.Architecture, platform.Variant = "arm", "v6"
	}
	have, err := img.ConfigFile()
	if err != nil {
		return err
	}
	platform.RootFS, platform.History, platform.Created = have.RootFS, have.History, v1.Time{Time: when}
	platform.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/flotilla-hub"}, Cmd: []string{"serve"}, User: fmt.Sprint(user),
		Env:          []string{"FLOTILLA_AGENTS_DIR=/" + agentsDir},
		Volumes:      map[string]struct{}{"/" + dataDir: {}},
		ExposedPorts: map[string]struct{}{"8443/tcp": {}, "8883/tcp": {}},
		Labels: map[string]string{"org.opencontainers.image.title": "flotilla-hub",
			"org.opencontainers.image.version": version},
	}
	if img, err = mutate.ConfigFile(img, &platform); err != nil {
		return err
	}
	tag, err := name.NewTag("flotilla-hub:"+strings.TrimPrefix(version, "v"), name.WithDefaultRegistry(""))
	if err != nil {
		return err
	}
	return tarball.Write(tag, img, w)
}

// layer has files of the host by their paths in the image, and the data directory. Its bytes depend
// only on their contents and the time.
func layer(files map[string]string, when time.Time) (v1.Layer, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	add := func(h tar.Header, data []byte) error {
		h.ModTime, h.Size, h.Format = when, int64(len(data)), tar.FormatUSTAR
		if err := t.WriteHeader(&h); err != nil {
			return err
		}
		_, err := t.Write(data)
		return err
	}
	made := map[string]bool{".": true}
	var parents func(dir string) error
	parents = func(dir string) error {
		if made[dir] {
			return nil
		}
		made[dir] = true
		if err := parents(path.Dir(dir)); err != nil {
			return err
		}
		h := tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}
		if dir == dataDir {
			h.Mode, h.Uid, h.Gid = 0o700, user, user
		}
		return add(h, nil)
	}
	if err := parents(dataDir); err != nil {
		return nil, err
	}
	for _, to := range slices.Sorted(maps.Keys(files)) {
		data, err := os.ReadFile(files[to])
		if err != nil {
			return nil, err
		}
		if err := parents(path.Dir(to)); err != nil {
			return nil, err
		}
		if err := add(tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: 0o755}, data); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
}
