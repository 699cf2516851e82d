package mirror

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// ErrNotFound means that the hub does not have an image.
var ErrNotFound = errors.New("the hub does not have it")

const (
	maxManifest = 4 << 20         // bytes
	partsWait   = 10 * headerWait // for a manifest and a configuration
)

// manifestTypes are what Parts understands.
const manifestTypes = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, " +
	"application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"

// Parts are what an image on the hub is made of, for one platform.
type Parts struct {
	Layers []Layer
	name   string
	config string // digest
}

// A Layer is a layer of an image, as it is sent.
type Layer struct {
	Digest string
	Size   int64
}

// Size returns the bytes that are sent for all layers.
func (p Parts) Size() (n int64) {
	for _, l := range p.Layers {
		n += l.Size
	}
	return n
}

// A Platform is an engine's.
type Platform struct{ Arch, Variant string }

type manifest struct {
	Config    struct{ Digest string }
	Layers    []Layer
	Manifests []struct {
		Digest   string
		Platform struct{ OS, Architecture, Variant string }
	}
}

// Parts returns the parts of an image of the hub: a repository, and a tag or digest in it.
// ErrNotFound: the hub does not have it, or not for the platform.
func (m *Mirror) Parts(ctx context.Context, name, reference string, of Platform) (Parts, error) {
	ctx, cancel := context.WithTimeout(ctx, partsWait)
	defer cancel()
	for range 3 { // an index of indexes is rare
		var read manifest
		if err := m.readJSON(ctx, "/v2/"+name+"/manifests/"+reference, &read); err != nil {
			return Parts{}, err
		}
		if len(read.Manifests) == 0 {
			return Parts{read.Layers, name, read.Config.Digest}, nil
		}
		reference = ""
		for _, sub := range read.Manifests {
			p := sub.Platform
			if p.Architecture != of.Arch && p.Architecture != "" || p.OS == "unknown" {
				continue
			}
			if reference == "" || p.Variant == of.Variant {
				reference = sub.Digest
			}
		}
		if reference == "" {
			return Parts{}, fmt.Errorf("%w for %s", ErrNotFound, of.Arch)
		}
	}
	return Parts{}, errors.New("the image is an index of indexes")
}

// Unpacked returns the digests of an image's layers when they are unpacked, in the same order.
func (m *Mirror) Unpacked(ctx context.Context, p Parts) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, partsWait)
	defer cancel()
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	err := m.readJSON(ctx, "/v2/"+p.name+"/blobs/"+p.config, &config)
	if err == nil && len(config.RootFS.DiffIDs) != len(p.Layers) {
		err = errors.New("the image's configuration has another number of layers")
	}
	return config.RootFS.DiffIDs, err
}

// readJSON reads a small JSON object of the hub. It checks the digest, if the path ends with one.
func (m *Mirror) readJSON(ctx context.Context, path string, into any) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	q.Header.Set("Accept", manifestTypes)
	answer, err := m.ask(q, 0)
	if err != nil {
		return err
	}
	var text bytes.Buffer
	_, readErr, _ := pass(&limited{&text, maxManifest}, answer.Body)
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return ErrNotFound
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("the hub answers %s", answer.Status)
	case readErr != nil:
		return readErr
	}
	if _, digest, ok := strings.Cut(path, "/sha256:"); ok && digest != fmt.Sprintf("%x", sha256.Sum256(text.Bytes())) {
		return errors.New("the hub sends something else than sha256:" + digest)
	}
	return json.Unmarshal(text.Bytes(), into)
}

// limited refuses more than so many bytes.
type limited struct {
	io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, errors.New("the hub's answer is too long")
	}
	return l.Writer.Write(p)
}
