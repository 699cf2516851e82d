package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"flotilla.dev/hub/registry"
)

// serve starts a registry of so many bytes.
func serve(t *testing.T, quota int64) (*registry.Registry, Registry) {
	t.Helper()
	r, err := registry.Open(t.TempDir(), quota)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return r, Registry{Client: s.Client(), URL: s.URL}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func pushFile(t *testing.T, to Registry, file string) (Pushed, error) {
	t.Helper()
	a, err := Open(file, nil)
	if err != nil {
		return Pushed{}, err
	}
	defer a.Close()
	return a.Push(t.Context(), to, a.Images[0], "app", "1")
}

func pulled(t *testing.T, from Registry) *remote.Descriptor {
	t.Helper()
	ref := must(name.ParseReference(strings.TrimPrefix(from.URL, "http://") + "/app:1"))(t)
	return must(remote.Get(ref))(t)
}

// tarOf writes a tar archive of a directory's files.
func tarOf(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "image.tar")
	f := must(os.Create(file))(t)
	w := tar.NewWriter(f)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	return file
}

func zipped(t *testing.T, file string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(must(os.ReadFile(file))(t))
	if err := errors.Join(err, z.Close(), os.WriteFile(file+".gz", b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return file + ".gz"
}

func randomImage(t *testing.T) v1.Image {
	t.Helper()
	return must(random.Image(20_000, 3))(t)
}

// layoutOf writes an OCI layout with an image or an index.
func layoutOf(t *testing.T, add func(p layout.Path) error) string {
	t.Helper()
	dir := t.TempDir()
	if err := add(must(layout.Write(dir, empty.Index))(t)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// savedTar writes an image as `docker save` does.
func savedTar(t *testing.T, im v1.Image, tag string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.WriteToFile(file, must(name.NewTag(tag))(t), im); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAnOCILayoutIsPushedAsItIs(t *testing.T) {
	im := randomImage(t)
	dir := layoutOf(t, func(p layout.Path) error { return p.AppendImage(im) })
	file := tarOf(t, dir)
	for _, from := range []string{dir, file, zipped(t, file)} {
		_, to := serve(t, 1<<30)
		p, err := pushFile(t, to, from)
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		got := must(pulled(t, to).Image())(t)
		if err := validate.Image(got); err != nil {
			t.Error(err)
		}
		if want := must(im.Digest())(t).String(); p.Digest != want || must(got.Digest())(t).String() != want || p.Size < 60_000 {
			t.Errorf("%s: pushed %+v, want %s", from, p, want)
		}
	}
}

func TestAnIndexKeepsItsPlatforms(t *testing.T) {
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: randomImage(t), Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm64"}}},
		mutate.IndexAddendum{Add: randomImage(t),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}}})
	dir := layoutOf(t, func(p layout.Path) error { return p.AppendIndex(index) })
	r, to := serve(t, 1<<30)
	p, err := pushFile(t, to, dir)
	if err != nil {
		t.Fatal(err)
	}
	got := must(pulled(t, to).ImageIndex())(t)
	for _, d := range must(got.IndexManifest())(t).Manifests {
		if err := validate.Image(must(got.Image(d.Digest))(t)); err != nil {
			t.Error(err)
		}
	}
	if want := must(index.Digest())(t).String(); p.Digest != want || strings.Join(p.Platforms, " ") != "linux/arm64 linux/arm/v7" {
		t.Errorf("pushed %+v, want %s", p, want)
	}
	all, err := r.Images()
	if err != nil || len(all) != 1 || len(all[0].Platforms) != 2 {
		t.Errorf("images %+v, %v", all, err)
	}
}

// `docker save` of an image for several processors has the parts of one of them.
func TestAnIndexWithThePartsOfOnePlatformIsPushedAsThatImage(t *testing.T) {
	arm := randomImage(t)
	other := randomImage(t)
	index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: arm}, mutate.IndexAddendum{Add: other})
	dir := layoutOf(t, func(p layout.Path) error { return p.AppendIndex(index) })
	if err := os.Remove(filepath.Join(dir, "blobs", "sha256", must(other.Digest())(t).Hex)); err != nil {
		t.Fatal(err)
	}
	_, to := serve(t, 1<<30)
	if p, err := pushFile(t, to, dir); err != nil || p.Digest != must(arm.Digest())(t).String() {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestADockerArchiveIsCompressedAndPushed(t *testing.T) {
	im := mutate.MediaType(empty.Image, types.DockerManifestSchema2)
	for i := range 2 {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		body := bytes.Repeat([]byte{byte(i)}, 200_000)
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint("file", i), Mode: 0o644, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		_, err := w.Write(body)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		im = must(mutate.AppendLayers(im, static.NewLayer(b.Bytes(), types.DockerUncompressedLayer)))(t)
	}
	file := savedTar(t, im, "till:1.2")
	_, to := serve(t, 1<<30)
	p, err := pushFile(t, to, file)
	if err != nil {
		t.Fatal(err)
	}
	got := must(pulled(t, to).Image())(t)
	if err := validate.Image(got); err != nil {
		t.Error(err)
	}
	if p.Size > 20_000 {
		t.Errorf("%d bytes were pushed: the layers are not compressed", p.Size)
	}
	if must(got.ConfigName())(t) != must(im.ConfigName())(t) {
		t.Error("the configuration has changed")
	}
	a := must(Open(file, nil))(t)
	defer a.Close()
	if a.Images[0].Name != "till:1.2" {
		t.Errorf("the archive's image is called %q", a.Images[0].Name)
	}
}

func TestArchivesThatCannotBePushedAreNamedWithTheReason(t *testing.T) {
	im := randomImage(t)
	dir := layoutOf(t, func(p layout.Path) error { return p.AppendImage(im) })
	layer := must(must(im.Layers())(t)[0].Digest())(t).Hex
	write := func(dir, file, text string) string {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	changed := func(file string, change func(path string) error) string {
		d := t.TempDir()
		if err := errors.Join(os.CopyFS(d, os.DirFS(dir)), change(filepath.Join(d, file))); err != nil {
			t.Fatal(err)
		}
		return d
	}
	whole := must(os.ReadFile(tarOf(t, dir)))(t)
	for _, c := range []struct{ rule, file, says string }{
		{"a file that is not there", filepath.Join(t.TempDir(), "none"), "no such file"},
		{"text", filepath.Join(write(t.TempDir(), "x", strings.Repeat("text ", 1000)), "x"), "not a whole tar archive"},
		{"half of an archive", filepath.Join(write(t.TempDir(), "x", string(whole[:len(whole)/2])), "x"), "not a whole tar archive"},
		{"a directory without images", t.TempDir(), "docker save"},
		{"an index without images", write(t.TempDir(), "index.json", `{"manifests":[]}`), "has no image"},
		{"an index that is not JSON", write(t.TempDir(), "index.json", `{`), "index.json"},
		{"an index of a file elsewhere",
			write(t.TempDir(), "index.json", `{"manifests":[{"digest":"../../etc/passwd"}]}`), "not a sha256 digest"},
		{"a layer that is missing", changed("blobs/sha256/"+layer, os.Remove), "no such file"},
		{"a layer that is damaged", changed("blobs/sha256/"+layer, func(path string) error {
			return os.WriteFile(path, []byte("damaged"), 0o600)
		}), "the blob has the digest"},
	} {
		r, to := serve(t, 1<<30)
		_, err := pushFile(t, to, c.file)
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.rule, err, c.says)
		}
		if all, err := r.Images(); err != nil || len(all) != 0 {
			t.Errorf("%s: it left the images %v, %v", c.rule, all, err)
		}
	}
}

func TestAFullHubAndACutPushLeaveNoImage(t *testing.T) {
	dir := layoutOf(t, func(p layout.Path) error { return p.AppendImage(randomImage(t)) })
	r, to := serve(t, 30_000)
	if _, err := pushFile(t, to, dir); err == nil || !strings.Contains(err.Error(), "the image registry is full") {
		t.Errorf("a full hub: %v", err)
	}
	if all, err := r.Images(); err != nil || len(all) != 0 {
		t.Errorf("a full hub has the images %v, %v", all, err)
	}

	r, to = serve(t, 1<<30)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	to.Client = &http.Client{Transport: roundTrip(func(q *http.Request) (*http.Response, error) {
		if strings.Contains(q.URL.Path, "/manifests/") {
			cancel()
		}
		return http.DefaultTransport.RoundTrip(q)
	})}
	a := must(Open(dir, nil))(t)
	defer a.Close()
	if _, err := a.Push(ctx, to, a.Images[0], "app", "1"); !errors.Is(err, context.Canceled) {
		t.Errorf("a cut push: %v", err)
	}
	if all, err := r.Images(); err != nil || len(all) != 0 {
		t.Errorf("a cut push leaves the images %v, %v", all, err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (r roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return r(q) }

func TestStandardInputIsRead(t *testing.T) {
	dir := layoutOf(t, func(p layout.Path) error { return p.AppendImage(randomImage(t)) })
	text := must(os.ReadFile(tarOf(t, dir)))(t)
	a, err := Open("-", io.MultiReader(bytes.NewReader(text)))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	_, to := serve(t, 1<<30)
	if _, err := a.Push(t.Context(), to, a.Images[0], "app", "1"); err != nil {
		t.Error(err)
	}
}
