// Package signature tells whether somebody with one of a device owner's keys has
// signed an image, as cosign does it with a key pair: the signature is an artifact in
// the image's own repository, under the tag sha256-<digest>.sig, over a short JSON
// text that names the image's digest. The bundles that cosign 3 writes unless it is told
// otherwise are not read.
//
// It asks only the registry that the image comes from: no transparency log, no
// certificate authority, so it works wherever the image can be pulled. It answers with
// the digest that it has looked at, because a tag may mean another image a moment
// later. It pulls and runs nothing, and remembers nothing: package agent does. It is
// the only importer of the registry client.
package signature

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"flotilla.dev/shared/policy"
)

// ErrUntrusted: the registry has answered, and nobody whose key counts has signed the
// image. Asking again does not help until somebody signs it.
var ErrUntrusted = errors.New("signature validation failed")

const (
	payloadType = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotation  = "dev.cosignproject.cosign/signature"
	imageType   = "cosign container image signature"

	maxSignatures = 64      // of one image that are looked at
	maxPayload    = 1 << 16 // bytes; cosign's have some 250
	timeout       = time.Minute
)

// Credentials are those for the image's registry; the zero value is nobody.
type Credentials struct{ Username, Password string }

// A Verified image is one that was signed by a key that counts.
type Verified struct {
	Image  string // whole name, by its digest: what to pull and to run
	Digest string // sha256:…
	Key    string // the signer's ID
}

// Verify finds out which digest an image has now, and whether one of the keys has
// signed it. image is a whole name (policy.Canonical).
func Verify(ctx context.Context, image string, keys []policy.Key, c Credentials) (Verified, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ref, err := name.ParseReference(image, name.StrictValidation)
	if err != nil {
		return Verified{}, fmt.Errorf("verify image %s: %w", image, err)
	}
	r, err := open(ctx, ref.Context(), c)
	if err != nil {
		return Verified{}, fmt.Errorf("verify image %s: reach its registry: %s", image, cause(err))
	}
	digest := ref.Identifier()
	if _, pinned := ref.(name.Digest); !pinned {
		if digest, err = r.digestOf(ctx, digest); err != nil {
			return Verified{}, fmt.Errorf("verify image %s: find its digest: %s", image, cause(err))
		}
	}
	whole, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return Verified{}, fmt.Errorf("verify image %s: %w", image, err)
	}
	tag := strings.Replace(digest, ":", "-", 1) + ".sig"
	signed, err := r.manifest(ctx, tag)
	if missing(err) {
		return Verified{}, fmt.Errorf("%w: image %s (%s) is not signed: its repository has no %s, which cosign 3 writes "+
			"with cosign sign --new-bundle-format=false --use-signing-config=false", ErrUntrusted, image, digest, tag)
	}
	if err != nil {
		return Verified{}, fmt.Errorf("verify image %s: read its signatures: %s", image, cause(err))
	}
	key, err := r.signer(ctx, signed, digest, keys)
	if err != nil {
		return Verified{}, fmt.Errorf("image %s (%s): %w", image, digest, err)
	}
	return Verified{Image: reference.TrimNamed(whole).String() + "@" + digest, Digest: digest, Key: key}, nil
}

// signer finds the first signature by one of the keys over the digest.
func (r *source) signer(ctx context.Context, signed manifest, digest string, keys []policy.Key) (string, error) {
	var looked, other int
	var unread error // of the first signature that cannot be read
	for _, layer := range signed.Layers {
		text := layer.Annotations[annotation]
		if layer.MediaType != payloadType || text == "" || layer.Size > maxPayload {
			continue
		}
		if looked++; looked > maxSignatures {
			break
		}
		signature, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			continue
		}
		payload, err := r.blob(ctx, layer.Digest)
		if err != nil {
			unread = cmp.Or(unread, fmt.Errorf("read its signatures: %s", cause(err)))
			continue
		}
		for _, k := range keys {
			if !k.Signed(payload, signature) {
				continue
			}
			if names(payload, digest) {
				return k.ID, nil
			}
			other++
		}
	}
	switch {
	case unread != nil:
		return "", unread
	case other > 0:
		return "", fmt.Errorf("%w: it carries a signature for another image", ErrUntrusted)
	case looked == 0:
		return "", fmt.Errorf("%w: what is there in the place of its signature is none of cosign's", ErrUntrusted)
	}
	return "", fmt.Errorf("%w: it is signed, but by none of the %d keys that this device's policy names for it",
		ErrUntrusted, len(keys))
}

// names tells whether a payload speaks of the image.
func names(payload []byte, digest string) bool {
	var p struct {
		Critical struct {
			Type  string
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			}
		}
	}
	return json.Unmarshal(payload, &p) == nil && p.Critical.Type == imageType && p.Critical.Image.Digest == digest
}

func missing(err error) bool {
	var answer *transport.Error
	return errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound
}

// cause is what went wrong, in one line.
func cause(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
