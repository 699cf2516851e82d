package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"sigs.k8s.io/yaml"
)

// The compose file starts the image that is written beside it, and equal input makes equal bytes.
func TestTheHubsImage(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "hub")
	if err := os.WriteFile(program, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	write := func() []byte {
		var b bytes.Buffer
		if err := writeImage(&b, "armhf", "v1.2.3", program, map[string]string{"armv6": program},
			time.Unix(1_700_000_000, 0)); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	first := write()
	if !bytes.Equal(first, write()) {
		t.Error("two images of the same input differ")
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(first)), nil }
	img, err := tarball.Image(open, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(img); err != nil {
		t.Error(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if p := config.Platform(); p.String() != "linux/arm/v6" {
		t.Errorf("the platform is %s, want linux/arm/v6", p)
	}
	files := filesOf(t, img)
	for name, mode := range map[string]string{
		"usr/bin/flotilla-hub": "-rwxr-xr-x 0", "usr/lib/flotilla/agents/flotilla-device-armv6": "-rwxr-xr-x 0",
		"var/lib/flotilla/hub/": "drwx------ 65532"} {
		if files[name] != mode {
			t.Errorf("%s is %q, want %q", name, files[name], mode)
		}
	}
	manifest, err := tarball.LoadManifest(open)
	if err != nil {
		t.Fatal(err)
	}
	var compose struct {
		Services map[string]struct{ Image string }
	}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(composeFile, "@VERSION@", "1.2.3")), &compose); err != nil {
		t.Fatal(err)
	}
	if got := compose.Services["hub"].Image; len(manifest[0].RepoTags) != 1 || got != manifest[0].RepoTags[0] {
		t.Errorf("the compose file starts %s; the image's names are %q", got, manifest[0].RepoTags)
	}
}

// filesOf lists mode and owner of each file in an image's layers.
func filesOf(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	files := map[string]string{}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		r, err := l.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		for a := tar.NewReader(r); ; {
			h, err := a.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			files[h.Name] = fmt.Sprint(h.FileInfo().Mode(), " ", h.Uid)
		}
	}
	return files
}
