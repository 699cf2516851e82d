package registry

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"flotilla.dev/shared/bound"
)

// A Descriptor names a blob or a manifest, as the OCI image format has it.
type Descriptor struct {
	MediaType    string            `json:"mediaType,omitempty"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	URLs         []string          `json:"urls,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	Platform     *struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Variant      string `json:"variant,omitempty"`
	} `json:"platform,omitempty"`
}

// PlatformName returns the platform as people write it, such as linux/arm/v7.
func (d Descriptor) PlatformName() string {
	if d.Platform == nil {
		return ""
	}
	return strings.TrimSuffix(d.Platform.OS+"/"+d.Platform.Architecture+"/"+d.Platform.Variant, "/")
}

// IsAttestation reports whether a manifest of an index is about an image, such as its provenance.
func (d Descriptor) IsAttestation() bool { return d.Platform != nil && d.Platform.OS == "unknown" }

// A Manifest is an image's, or an index of several for different processors.
type Manifest struct {
	SchemaVersion int               `json:"schemaVersion,omitempty"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType,omitempty"`
	Config        *Descriptor       `json:"config,omitempty"`
	Layers        []Descriptor      `json:"layers,omitempty"`
	Manifests     []Descriptor      `json:"manifests,omitempty"`
	Subject       *Descriptor       `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

const (
	ociManifest = "application/vnd.oci.image.manifest.v1+json"
	ociIndex    = "application/vnd.oci.image.index.v1+json"
)

func invalid(format string, args ...any) error {
	return refusal{http.StatusBadRequest, "MANIFEST_INVALID", fmt.Sprintf(format, args...)}
}

// ParseManifest reads a manifest whose Content-Type or media type is known; "": take it from the text.
func ParseManifest(text []byte, contentType string) (m Manifest, err error) {
	err = bound.JSON(text, &m)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		return m, invalid("the manifest is not valid: %v", err)
	}
	if m.Config == nil && m.Manifests == nil {
		return m, invalid("the manifest has neither config nor manifests: it is not an image or an index " +
			"(schema 1 of Docker is not supported)")
	}
	if contentType == "" {
		contentType = m.MediaType
	}
	if m.MediaType != "" && m.MediaType != contentType {
		return m, invalid("the manifest's mediaType is %q and its Content-Type %q", m.MediaType, contentType)
	}
	m.MediaType = contentType
	if m.MediaType == "" {
		m.MediaType = ociManifest
		if m.Manifests != nil {
			m.MediaType = ociIndex
		}
	}
	for _, d := range m.all() {
		if !digestPattern.MatchString(d.Digest) || d.Size < 0 {
			return m, invalid("%q is not a sha256 digest", d.Digest)
		}
	}
	return m, nil
}

// Blobs are the parts of an image.
func (m *Manifest) Blobs() (all []Descriptor) {
	if m.Config != nil {
		all = append(all, *m.Config)
	}
	for _, l := range m.Layers {
		if len(l.URLs) == 0 { // else it is not distributed with the image
			all = append(all, l)
		}
	}
	return all
}

func (m *Manifest) all() []Descriptor { return slices.Concat(m.Blobs(), m.Manifests) }

// putManifest stores a manifest under a tag or its digest, and returns its digest.
func (r *Registry) putManifest(name, reference string, text []byte,
	contentType string) (digest string, m Manifest, err error) {
	if m, err = ParseManifest(text, contentType); err != nil {
		return "", m, err
	}
	digest = fmt.Sprintf("sha256:%x", sha256.Sum256(text))
	if strings.Contains(reference, ":") && reference != digest {
		return "", m, refusal{http.StatusBadRequest, "DIGEST_INVALID",
			fmt.Sprintf("the manifest has the digest %s, not %s", digest, reference)}
	}
	u, err := r.begin(name)
	if err != nil {
		return "", m, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := r.receive(u, strings.NewReader(string(text))); err != nil {
		return "", m, err
	}
	if err := r.finish(u, digest); err != nil {
		return "", m, err
	}
	r.collecting.RLock()
	defer r.collecting.RUnlock()
	for _, d := range m.Blobs() {
		if !r.refresh(d.Digest) {
			return "", m, refusal{http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN", "the hub does not have the blob " + d.Digest}
		}
		// devices compare the sizes with their free space
		if info, err := os.Stat(r.blobPath(d.Digest)); err == nil && info.Size() != d.Size {
			return "", m, refusal{http.StatusBadRequest, "SIZE_INVALID", fmt.Sprintf("the blob %s has %d bytes, not %d",
				d.Digest, info.Size(), d.Size)}
		}
	}
	for _, d := range m.Manifests {
		if _, err := os.Stat(r.manifestPath(name, d.Digest)); err != nil {
			return "", m, refusal{http.StatusBadRequest, "MANIFEST_BLOB_UNKNOWN",
				fmt.Sprintf("%s does not have the manifest %s: push it first", name, d.Digest)}
		}
	}
	if err := r.writeFile(r.manifestPath(name, digest), m.MediaType); err != nil {
		return "", m, diskError(err)
	}
	if !strings.Contains(reference, ":") {
		err = r.writeFile(r.tagPath(name, reference), digest)
	}
	return digest, m, diskError(err)
}

// resolve returns the digest and media type of a tag or digest.
func (r *Registry) resolve(name, reference string) (digest, mediaType string, err error) {
	unknown := refusal{http.StatusNotFound, "MANIFEST_UNKNOWN", fmt.Sprintf("the hub does not have the image %s",
		join(name, reference))}
	digest = reference
	if !strings.Contains(reference, ":") {
		if !tagPattern.MatchString(reference) {
			return "", "", unknown
		}
		text, err := os.ReadFile(r.tagPath(name, reference))
		if errors.Is(err, fs.ErrNotExist) {
			return "", "", unknown
		} else if err != nil {
			return "", "", err
		}
		digest = string(text)
	}
	if !digestPattern.MatchString(digest) {
		return "", "", unknown
	}
	text, err := os.ReadFile(r.manifestPath(name, digest))
	if errors.Is(err, fs.ErrNotExist) {
		return "", "", unknown
	}
	return digest, string(text), err
}

// join writes a name with a tag or digest as people do.
func join(name, reference string) string {
	if strings.Contains(reference, ":") {
		return name + "@" + reference
	}
	return name + ":" + reference
}

func (r *Registry) readManifest(name, digest string) (m Manifest, size int64, err error) {
	text, err := os.ReadFile(r.blobPath(digest))
	if err != nil {
		return m, 0, err
	}
	mediaType, err := os.ReadFile(r.manifestPath(name, digest))
	if err != nil {
		return m, 0, err
	}
	m, err = ParseManifest(text, string(mediaType))
	return m, int64(len(text)), err
}

// repositories returns the names of all repositories, sorted.
func (r *Registry) repositories() (names []string, err error) {
	root := r.path("repositories")
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		switch d.Name() {
		case "_manifests":
			names = append(names, strings.TrimPrefix(filepath.Dir(path), root+"/"))
			return fs.SkipDir
		case "_tags":
			return fs.SkipDir
		}
		return nil
	})
	slices.Sort(names)
	return names, err
}

// tags returns the tags of a repository, sorted.
func (r *Registry) tags(name string) ([]string, error) {
	return names(r.path("repositories", name, "_tags"))
}

func (r *Registry) digests(name string) ([]string, error) {
	all, err := names(r.path("repositories", name, "_manifests"))
	for i := range all {
		all[i] = "sha256:" + all[i]
	}
	return all, err
}

func names(dir string) (all []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all, err
}

// referrers returns the manifests of a repository that are about another one, such as signatures.
func (r *Registry) referrers(name, digest, artifactType string) ([]Descriptor, error) {
	all, err := r.digests(name)
	if err != nil {
		return nil, err
	}
	found := []Descriptor{}
	for _, d := range all {
		m, size, err := r.readManifest(name, d)
		if err != nil || m.Subject == nil || m.Subject.Digest != digest {
			continue
		}
		of := Descriptor{MediaType: m.MediaType, Digest: d, Size: size, Annotations: m.Annotations,
			ArtifactType: m.ArtifactType}
		if of.ArtifactType == "" && m.Config != nil {
			of.ArtifactType = m.Config.MediaType
		}
		if artifactType == "" || artifactType == of.ArtifactType {
			found = append(found, of)
		}
	}
	return found, nil
}
