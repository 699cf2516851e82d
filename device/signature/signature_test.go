package signature

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"flotilla.dev/shared/policy"
)

// A testSigner signs like cosign.
type testSigner struct {
	private crypto.Signer
	keys    []policy.Key
}

func newSigner(t *testing.T, private crypto.Signer) testSigner {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := policy.ParseKeys(string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	if err != nil {
		t.Fatal(err)
	}
	return testSigner{private, keys}
}

func ecdsaSigner(t *testing.T) testSigner {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return newSigner(t, k)
}

func (s testSigner) sign(t *testing.T, payload []byte) string {
	t.Helper()
	var signature []byte
	var err error
	if _, is := s.private.(ed25519.PrivateKey); is {
		signature, err = s.private.Sign(rand.Reader, payload, crypto.Hash(0))
	} else {
		sum := sha256.Sum256(payload)
		signature, err = s.private.Sign(rand.Reader, sum[:], crypto.SHA256)
	}
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(signature)
}

// payload returns the text that cosign signs for a digest.
func payload(digest string) []byte {
	return fmt.Appendf(nil,
		`{"critical":{"identity":{"docker-reference":"registry.test/web"},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, digest)
}

type layer struct {
	payload   []byte
	signature string
}

// attach replaces the signatures of a digest.
func attach(t *testing.T, repository name.Repository, digest v1.Hash, layers ...layer) {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, l := range layers {
		var err error
		if img, err = mutate.Append(img, mutate.Addendum{Layer: static.NewLayer(l.payload, payloadType),
			Annotations: map[string]string{annotation: l.signature}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := remote.Write(repository.Tag("sha256-"+digest.Hex+".sig"), img); err != nil {
		t.Fatal(err)
	}
}

func push(t *testing.T, tag name.Tag) v1.Hash {
	t.Helper()
	img, err := random.Image(64, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

// aRegistry returns the address of an in-memory registry on loopback; wrap, if not nil, wraps its
// handler.
func aRegistry(t *testing.T, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

func TestVerify(t *testing.T) {
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	trusted, second, stranger := ecdsaSigner(t), newSigner(t, edwards), ecdsaSigner(t)
	host := aRegistry(t, nil)
	keys := append(append([]policy.Key{}, trusted.keys...), second.keys...)
	for i, c := range []struct {
		name string
		sign func(t *testing.T, r name.Repository, d, other v1.Hash)
		key  string // id of the signing key; empty: not trusted
		why  string
	}{
		{"signed with ECDSA", func(t *testing.T, r name.Repository, d, _ v1.Hash) {
			attach(t, r, d, layer{payload(d.String()), trusted.sign(t, payload(d.String()))})
		}, trusted.keys[0].ID, ""},
		{"signed with Ed25519", func(t *testing.T, r name.Repository, d, _ v1.Hash) {
			attach(t, r, d, layer{payload(d.String()), second.sign(t, payload(d.String()))})
		}, second.keys[0].ID, ""},
		{"signed by an unknown key first, then by a trusted key", func(t *testing.T, r name.Repository, d, _ v1.Hash) {
			p := payload(d.String())
			attach(t, r, d, layer{p, stranger.sign(t, p)}, layer{append(p, '\n'), trusted.sign(t, append(p, '\n'))})
		}, trusted.keys[0].ID, ""},
		{"not signed", func(*testing.T, name.Repository, v1.Hash, v1.Hash) {}, "", "is not signed: its repository has no sha256-"},
		{"signed by cosign 3 with its defaults", func(t *testing.T, r name.Repository, d, _ v1.Hash) {
			img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
			// Without the referrers API cosign 3 marks its bundles with this tag.
			if err := remote.Write(r.Tag("sha256-"+d.Hex), img); err != nil {
				t.Fatal(err)
			}
		}, "", "cosign sign --new-bundle-format=false --use-signing-config=false"},
		{"signed by an unknown key only", func(t *testing.T, r name.Repository, d, _ v1.Hash) {
			attach(t, r, d, layer{payload(d.String()), stranger.sign(t, payload(d.String()))})
		}, "", "signed, but not by one of the 2 keys"},
		{"a trusted signature for another image", func(t *testing.T, r name.Repository, d, other v1.Hash) {
			attach(t, r, d, layer{payload(other.String()), trusted.sign(t, payload(other.String()))})
		}, "", "a signature for another image"},
		{"a trusted signature for another image under a payload that names this image", func(t *testing.T, r name.Repository, d, other v1.Hash) {
			attach(t, r, d, layer{payload(d.String()), trusted.sign(t, payload(other.String()))})
		}, "", "not by one of the 2 keys"},
		{"a trusted signature over a payload of another type", func(t *testing.T, r name.Repository, d, _ v1.Hash) {
			p := []byte(strings.Replace(string(payload(d.String())), imageType, "attestation", 1))
			attach(t, r, d, layer{p, trusted.sign(t, p)})
		}, "", "a signature for another image"},
		{"an empty signature", func(t *testing.T, r name.Repository, d, _ v1.Hash) {
			attach(t, r, d, layer{payload(d.String()), ""})
		}, "", "does not contain a cosign signature"},
		{"a signature that is not base64", func(t *testing.T, r name.Repository, d, _ v1.Hash) {
			attach(t, r, d, layer{payload(d.String()), "%%"})
		}, "", "not by one of"},
		{"a payload that is too large", func(t *testing.T, r name.Repository, d, _ v1.Hash) {
			p := append(payload(d.String()), strings.Repeat(" ", maxPayload)...)
			attach(t, r, d, layer{p, trusted.sign(t, p)})
		}, "", "does not contain a cosign signature"},
	} {
		t.Run(c.name, func(t *testing.T) {
			image := fmt.Sprintf("%s/team/web%d:1", host, i)
			tag, err := name.NewTag(image)
			if err != nil {
				t.Fatal(err)
			}
			other, digest := push(t, tag), push(t, tag)
			c.sign(t, tag.Context(), digest, other)
			for _, ref := range []string{image, strings.TrimSuffix(image, ":1") + "@" + digest.String()} {
				v, err := Verify(t.Context(), ref, keys, Credentials{})
				switch {
				case c.key == "" && (!errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), c.why)):
					t.Errorf("%s: %+v, %v, want %q", ref, v, err, c.why)
				case c.key != "" && (err != nil || v != Verified{strings.TrimSuffix(image, ":1") + "@" + digest.String(),
					digest.String(), c.key}):
					t.Errorf("%s: %+v, %v; want %s verified by key %s", ref, v, err, digest, c.key)
				}
			}
			if c.key != "" { // the previous image has another digest and is unsigned
				if _, err := Verify(t.Context(), strings.TrimSuffix(image, ":1")+"@"+other.String(), keys,
					Credentials{}); !errors.Is(err, ErrUntrusted) {
					t.Errorf("the previous, unsigned image: %v, want ErrUntrusted", err)
				}
				if _, err := Verify(t.Context(), image, stranger.keys,
					Credentials{}); c.name != "signed by an unknown key first, then by a trusted key" &&
					!errors.Is(err, ErrUntrusted) {
					t.Errorf("with only an unknown key: %v, want ErrUntrusted", err)
				}
			}
		})
	}
}

// An unreachable or failing registry is a temporary error, not ErrUntrusted.
func TestAnUnreachableRegistryIsATemporaryError(t *testing.T) {
	trusted := ecdsaSigner(t)
	down := httptest.NewServer(http.NotFoundHandler())
	gone := strings.TrimPrefix(down.URL, "http://")
	down.Close()
	broken := aRegistry(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ".sig") {
				http.Error(w, "no", http.StatusForbidden)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	tag, err := name.NewTag(broken + "/web:1")
	if err != nil {
		t.Fatal(err)
	}
	push(t, tag)
	for _, image := range []string{gone + "/web:1", broken + "/web:1", broken + "/nothing:1", "NOT A NAME"} {
		if v, err := Verify(t.Context(), image, trusted.keys, Credentials{}); err == nil || errors.Is(err, ErrUntrusted) {
			t.Errorf("%s: %+v, %v; want a temporary error", image, v, err)
		}
	}
}

// A registry's response must not fill the agent's memory.
func TestAnEndlessResponseIsLimited(t *testing.T) {
	for _, endless := range []string{"/manifests/1", ".sig"} {
		var sent atomic.Int64
		host := aRegistry(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, endless) {
					h.ServeHTTP(w, r)
					return
				}
				w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
				for sent.Load() < 90<<20 {
					n, err := w.Write(make([]byte, 1<<20))
					if sent.Add(int64(n)); err != nil {
						return
					}
				}
			})
		})
		tag, err := name.NewTag(host + "/web:1")
		if err != nil {
			t.Fatal(err)
		}
		push(t, tag)
		_, err = Verify(t.Context(), tag.String(), ecdsaSigner(t).keys, Credentials{})
		if err == nil || errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "more than 4194304 bytes") {
			t.Errorf("endless response for %s: %v after %d MiB", endless, err, sent.Load()>>20)
		}
	}
}

func TestVerifyUsesTheRegistrysCredentials(t *testing.T) {
	trusted := ecdsaSigner(t)
	locked := false
	host := aRegistry(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); locked && (user != "device" || password != "secret") {
				w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
				http.Error(w, "who", http.StatusUnauthorized)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	tag, err := name.NewTag(host + "/web:1")
	if err != nil {
		t.Fatal(err)
	}
	digest := push(t, tag)
	attach(t, tag.Context(), digest, layer{payload(digest.String()), trusted.sign(t, payload(digest.String()))})
	locked = true
	if _, err := Verify(t.Context(), tag.String(), trusted.keys, Credentials{}); err == nil {
		t.Error("verified without credentials")
	}
	if _, err := Verify(t.Context(), tag.String(), trusted.keys, Credentials{"device", "secret"}); err != nil {
		t.Error(err)
	}
}
