package archive

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strings"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/registry"
)

// Media types of Docker's images, for those in its older format.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerLayer    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

// A Registry is where images are pushed to.
type Registry struct {
	Client *http.Client
	URL    string // such as https://gateway:8443
}

// A Pushed is an image that a registry has.
type Pushed struct {
	Digest    string
	Size      int64 // bytes of all its parts
	Platforms []string
}

// Push pushes an image as name:tag. The tag is set last, when all is there.
func (a *Archive) Push(ctx context.Context, to Registry, im Image, name, tag string) (p Pushed, err error) {
	u := &push{ctx: ctx, Archive: a, to: to, name: name}
	if im.root.Digest == "" {
		p.Digest, err = u.saved(im, tag)
	} else {
		p.Digest, err = u.layout(im.root, tag)
	}
	p.Size, p.Platforms = u.size, u.platforms
	return p, err
}

// A push is one image under way.
type push struct {
	*Archive
	ctx       context.Context
	to        Registry
	name      string
	size      int64
	platforms []string
}

// layout pushes an image of an OCI layout, or all images of an index.
func (u *push) layout(root registry.Descriptor, tag string) (string, error) {
	d, m, text, err := u.whole(root)
	if err != nil {
		return "", err
	}
	if sum := digestOf(text); sum != d.Digest {
		return "", fmt.Errorf("the manifest %s has the digest %s: the archive is damaged", d.Digest, sum)
	}
	for _, sub := range m.Manifests {
		if sub.Platform != nil && !sub.IsAttestation() {
			u.platforms = append(u.platforms, sub.PlatformName())
		}
		if _, err := u.layout(sub, sub.Digest); err != nil {
			return "", err
		}
	}
	single := tag != d.Digest // else an index names its digest
	changed := false
	for i, l := range m.Layers {
		if plain := strings.HasSuffix(l.MediaType, ".tar"); !plain || !single || len(l.URLs) > 0 {
			continue
		}
		if m.Layers[i].Digest, m.Layers[i].Size, err = u.compress(blobFile(l.Digest), l.Digest); err != nil {
			return "", err
		}
		m.Layers[i].MediaType += "+gzip"
		changed = true
	}
	for _, b := range m.Blobs() {
		if !u.has(b.Digest) && changed { // compressed above
			continue
		}
		if err := u.blob(b); err != nil {
			return "", err
		}
	}
	if changed {
		if text, err = json.Marshal(m); err != nil {
			return "", err
		}
	}
	return digestOf(text), u.manifest(tag, m.MediaType, text)
}

// saved pushes an image of Docker's older format, whose layers are not compressed.
func (u *push) saved(im Image, tag string) (string, error) {
	text, err := u.read(im.config)
	if err != nil {
		return "", err
	}
	var config struct {
		OS, Architecture, Variant string
		RootFS                    struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return "", fmt.Errorf("%s: %w", im.config, err)
	}
	if len(config.RootFS.DiffIDs) != len(im.layers) {
		return "", fmt.Errorf("the archive is damaged: it has %d layers, and the image's configuration names %d",
			len(im.layers), len(config.RootFS.DiffIDs))
	}
	m := registry.Manifest{SchemaVersion: 2, MediaType: dockerManifest, Config: &registry.Descriptor{
		MediaType: dockerConfig, Digest: digestOf(text), Size: int64(len(text)),
	}}
	u.platforms = []string{strings.TrimSuffix(config.OS+"/"+config.Architecture+"/"+config.Variant, "/")}
	for i, layer := range im.layers {
		d := registry.Descriptor{MediaType: dockerLayer}
		if d.Digest, d.Size, err = u.compress(layer, config.RootFS.DiffIDs[i]); err != nil {
			return "", err
		}
		m.Layers = append(m.Layers, d)
	}
	if err := u.send(*m.Config, bytes.NewReader(text)); err != nil {
		return "", err
	}
	if text, err = json.Marshal(m); err != nil {
		return "", err
	}
	return digestOf(text), u.manifest(tag, m.MediaType, text)
}

func digestOf(text []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(text)) }

// blob pushes a blob of an OCI layout, unless the registry has it.
func (u *push) blob(d registry.Descriptor) error {
	r, size, err := u.files.open(blobFile(d.Digest))
	if err != nil {
		return err
	}
	defer r.Close()
	d.Size = size
	return u.send(d, r)
}

// send uploads a blob whose digest is known, unless the registry has it.
func (u *push) send(d registry.Descriptor, body io.Reader) error {
	u.size += d.Size
	answer, err := u.ask(http.MethodHead, "/blobs/"+d.Digest, nil, "")
	if err == nil && answer.StatusCode == http.StatusOK {
		return nil
	}
	_, err = u.must(http.MethodPost, "/blobs/uploads/?digest="+d.Digest, sized{body, d.Size}, "")
	return err
}

// sized is a body whose length is known.
type sized struct {
	io.Reader
	size int64
}

// compress uploads a layer, compressed on the way, and returns its digest and size then. The layer
// must have the digest plain; one that is compressed already is sent as it is.
func (u *push) compress(layer, plain string) (digest string, size int64, err error) {
	r, _, err := u.files.open(layer)
	if err != nil {
		return "", 0, err
	}
	defer r.Close()
	answer, err := u.must(http.MethodPost, "/blobs/uploads/", nil, "")
	if err != nil {
		return "", 0, err
	}
	at := answer.Header.Get("Location")
	pr, pw := io.Pipe()
	sent := &counted{Writer: pw, sum: sha256.New()}
	go func() {
		defer panics.CatchThen("compress a layer", func(err error) { pw.CloseWithError(err) })
		pw.CloseWithError(pack(sent, r, layer, plain))
	}()
	answer, err = u.must(http.MethodPatch, at, pr, "")
	_ = pr.Close()
	if err != nil {
		return "", 0, err
	}
	digest = fmt.Sprintf("sha256:%x", sent.sum.Sum(nil))
	u.size += sent.n
	_, err = u.must(http.MethodPut, answer.Header.Get("Location")+"?digest="+digest, nil, "")
	return digest, sent.n, err
}

// pack compresses a layer, and checks its digest.
func pack(to io.Writer, r io.Reader, layer, plain string) error {
	b := bufio.NewReader(r)
	if magic, _ := b.Peek(2); bytes.Equal(magic, []byte("\x1f\x8b")) {
		_, err := io.Copy(to, b)
		return err
	}
	sum := sha256.New()
	z := gzip.NewWriter(to)
	if _, err := io.Copy(z, io.TeeReader(b, sum)); err != nil {
		return err
	}
	if got := fmt.Sprintf("sha256:%x", sum.Sum(nil)); got != plain {
		return fmt.Errorf("the layer %s has the digest %s, not %s: the archive is damaged", layer, got, plain)
	}
	return z.Close()
}

// counted counts and hashes what is written.
type counted struct {
	io.Writer
	sum hash.Hash
	n   int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	c.sum.Write(p[:n])
	return n, err
}

func (u *push) manifest(tag, mediaType string, text []byte) error {
	u.size += int64(len(text))
	_, err := u.must(http.MethodPut, "/manifests/"+tag, sized{bytes.NewReader(text), int64(len(text))}, mediaType)
	return err
}

// must sends a request that has to succeed; path follows the image's name, or begins with /v2/.
func (u *push) must(method, path string, body io.Reader, mediaType string) (*http.Response, error) {
	answer, err := u.ask(method, path, body, mediaType)
	if err == nil && answer.StatusCode >= http.StatusBadRequest {
		err = refusal(answer)
	}
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (u *push) ask(method, path string, body io.Reader, mediaType string) (*http.Response, error) {
	if !strings.HasPrefix(path, "/v2/") {
		path = "/v2/" + u.name + path
	}
	q, err := http.NewRequestWithContext(u.ctx, method, u.to.URL+path, body)
	if err != nil {
		return nil, err
	}
	if s, ok := body.(sized); ok {
		if q.ContentLength = s.size; s.size == 0 {
			q.Body = http.NoBody
		}
	}
	if mediaType != "" {
		q.Header.Set("Content-Type", mediaType)
	}
	answer, err := u.to.Client.Do(q)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	_ = answer.Body.Close()
	answer.Body = io.NopCloser(bytes.NewReader(text))
	return answer, err
}

// refusal is the error of a registry's answer.
func refusal(answer *http.Response) error {
	text, _ := io.ReadAll(answer.Body)
	var told struct{ Errors []struct{ Message string } }
	if json.Unmarshal(text, &told) == nil && len(told.Errors) > 0 && told.Errors[0].Message != "" {
		return errors.New(told.Errors[0].Message)
	}
	return errors.New("the registry answered " + answer.Status)
}
