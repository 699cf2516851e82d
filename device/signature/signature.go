// Package signature verifies that one of the device owner's keys has signed an image, as cosign
// does with a key pair: the signature is in the image's repository under the tag
// sha256-<digest>.sig and names the image's digest. cosign 3's default bundles are not supported.
//
// It contacts only the image's registry, no transparency log or certificate authority. It returns
// the verified digest, since a tag may change. It pulls and stores nothing. Package image calls it;
// it alone imports the registry client.
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

// ErrUntrusted means that the registry has no signature of the image by a trusted key. A retry
// helps only after somebody has signed the image.
var ErrUntrusted = errors.New("signature validation failed")

const (
	payloadType = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotation  = "dev.cosignproject.cosign/signature"
	imageType   = "cosign container image signature"

	maxSignatures = 64      // checked signatures of one image
	maxPayload    = 1 << 16 // bytes; cosign's payloads have about 250
	timeout       = time.Minute
)

// Credentials are the login for the image's registry; the zero value is anonymous.
type Credentials struct{ Username, Password string }

// A Verified is an image that a trusted key has signed.
type Verified struct {
	Image  string // full name with the digest, to pull and run
	Digest string // sha256:…
	Key    string // the signing key's ID
}

// Verify finds an image's current digest, and checks that one of the keys has signed it. image is a
// full name (policy.Canonical).
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
	var unread error // error of the first unreadable signature
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
			if namesDigest(payload, digest) {
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
		return "", fmt.Errorf("%w: its signature tag does not contain a cosign signature", ErrUntrusted)
	}
	return "", fmt.Errorf("%w: it is signed, but not by one of the %d keys in this device's policy for it",
		ErrUntrusted, len(keys))
}

// namesDigest reports whether a payload names the image's digest.
func namesDigest(payload []byte, digest string) bool {
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

// cause returns an error as one line.
func cause(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}
