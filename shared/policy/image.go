package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// JudgesImages reports whether the document restricts images. If it does, request an image by its
// Canonical name: engines also accept ids and short names, which no rule has checked.
func (d Document) JudgesImages() bool {
	return len(d.Registries) > 0 || d.RequireDigest || len(d.Signatures) > 0
}

// Canonical returns the full name of an image, with registry and tag or digest.
func Canonical(image string) (string, error) {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return "", fmt.Errorf("image %q is not a valid reference: %w", image, err)
	}
	return ref.String(), nil
}

func (v *verdict) image(image string, p *field.Path) {
	if !v.JudgesImages() || image == "" {
		return
	}
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		v.no(p, "", "image %q is not a valid reference (%v), so no rule can allow it", image, err)
		return
	}
	name := placeOf(ref)
	if len(v.Registries) > 0 && !within(name, v.Registries) {
		v.no(p, fmt.Sprintf("registries: [%s]", name), "image %q comes from %s, and images may come from %s", image, name,
			strings.Join(v.Registries, ", "))
	}
	if _, ok := ref.(reference.Digested); v.RequireDigest && !ok {
		v.no(p, "requireDigest: false", "image %q has no digest: write name@sha256:…", image)
	}
	if _, ok := v.Signers(image); !ok {
		v.no(p, fmt.Sprintf("signatures: [{images: [%s], keys: …}]", name), "no signature rule covers image %q",
			image)
	}
}

// Signers returns the keys of which one must have signed an image, or nil if the image needs no
// signature. It returns false if no rule covers the image, so that the image may not run.
func (d Document) Signers(image string) ([]Key, bool) {
	if len(d.Signatures) == 0 {
		return nil, true
	}
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return nil, false
	}
	name := placeOf(ref)
	for _, s := range d.Signatures {
		if len(s.Images) == 0 || within(name, s.Images) {
			keys, err := s.keys()
			return keys, err == nil && (s.Unsigned || len(keys) > 0)
		}
	}
	return nil, false
}

// placeOf returns the registry and repository of an image in canonical form.
func placeOf(ref reference.Named) string {
	host := strings.TrimSuffix(strings.ToLower(reference.Domain(ref)), ":443")
	if host == "registry-1.docker.io" || host == "index.docker.io" {
		host = "docker.io"
	}
	return host + "/" + reference.Path(ref)
}

// HubName returns the name by which a hub has an image of another registry: the full name, as a
// repository, such as docker.io/library/nginx:1.27. ok is false for an image of the hub itself.
func HubName(image string) (name string, ok bool) {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return "", false
	}
	place := placeOf(ref)
	tail := strings.TrimPrefix(ref.String(), ref.Name())
	return strings.Replace(place, ":", "_", 1) + tail, !within(place, []string{HubPlace})
}

// HubPlace is where images of the hub are, as rules name it.
const HubPlace = "docker.io/hub"

// AllowsMirror reports whether the hub may replace the registry of an image: a rule of a mirror
// names its registry or repository, and the document allows images of the hub.
func (d Document) AllowsMirror(image string, mirrors []string) bool {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return false
	}
	place := placeOf(ref)
	return within(place, mirrors) && (len(d.Registries) == 0 || within(HubPlace+"/"+place, d.Registries))
}

// ValidMirror checks a registry or repository whose images the hub has.
func ValidMirror(place string) error {
	if err := validPlace(place); err != nil {
		return err
	}
	if place == "hub" || within(place, []string{HubPlace}) {
		return fmt.Errorf("%s is the hub itself: its images need no rule", place)
	}
	return nil
}

// within reports whether an image is in one of the registries or repositories, compared by whole
// path elements.
func within(name string, places []string) bool {
	return slices.ContainsFunc(places, func(p string) bool { return name == p || strings.HasPrefix(name, p+"/") })
}

// validPlace checks a registry, or a repository in a registry.
func validPlace(place string) error {
	ref, err := reference.ParseNormalizedNamed(place + "/x")
	host, _, _ := strings.Cut(place, "/")
	if err != nil || placeOf(ref) != place+"/x" && (place != "docker.io" || host != place) {
		return fmt.Errorf("%q must be a registry such as docker.io or registry.example.org:5000, or a repository in one "+
			"such as registry.example.org/team, in lower case and without tag", place)
	}
	return nil
}
