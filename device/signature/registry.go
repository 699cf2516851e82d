package signature

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// A source is one repository of a registry. The client library provides authentication and retries.
// Its image reader is not used, since it imports all decompressors.
type source struct {
	repository name.Repository
	client     *http.Client
}

// A manifest has the used fields of an image manifest.
type manifest struct {
	Layers []struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int64             `json:"size"`
		Annotations map[string]string `json:"annotations"`
	} `json:"layers"`
}

const imageManifests = "application/vnd.docker.distribution.manifest.v2+json,application/vnd.oci.image.manifest.v1+json"

// anyManifest lists the kinds of manifests that a tag may refer to: an image's, or an index of
// several platforms.
const anyManifest = imageManifests +
	",application/vnd.docker.distribution.manifest.list.v2+json,application/vnd.oci.image.index.v1+json"

// busy are the HTTP statuses after which a request is sent again.
var busy = []int{
	http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout, 499, 522,
}

// open connects to the repository and authenticates if the registry requires it.
func open(ctx context.Context, repository name.Repository, c Credentials) (*source, error) {
	auth := authn.Anonymous
	if c != (Credentials{}) {
		auth = &authn.Basic{Username: c.Username, Password: c.Password}
	}
	again := transport.NewRetry(transportTo(repository.RegistryStr(), c),
		// Retry after 1 s and 3 s.
		transport.WithRetryBackoff(transport.Backoff{Duration: time.Second, Factor: 3, Jitter: 0.1, Steps: 3}),
		transport.WithRetryPredicate(isTemporary), transport.WithRetryStatusCodes(busy...))
	t, err := transport.NewWithContext(ctx, repository.Registry, auth, again,
		[]string{repository.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	return &source{repository, &http.Client{Transport: t}}, nil
}

// isTemporary reports whether a retry a moment later may succeed.
func isTemporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary() && !errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed)
}

// get reads an object of the repository; more than most bytes are an error.
func (r *source) get(ctx context.Context, kind, id, accept string, most int64) ([]byte, error) {
	url := fmt.Sprintf("%s://%s/v2/%s/%s/%s", r.repository.Scheme(), r.repository.RegistryStr(),
		r.repository.RepositoryStr(), kind, id)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	answer, err := r.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if err := transport.CheckError(answer, http.StatusOK); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(answer.Body, most))
}

// digestOf returns the present digest of a tag, computed from the content itself.
func (r *source) digestOf(ctx context.Context, tag string) (string, error) {
	body, err := r.get(ctx, "manifests", tag, anyManifest, maxAnswer+1)
	if err != nil {
		return "", err
	}
	return sum(body), nil
}

// manifest reads the manifest of an image.
func (r *source) manifest(ctx context.Context, tag string) (m manifest, err error) {
	body, err := r.get(ctx, "manifests", tag, imageManifests, maxAnswer+1)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("the manifest %s of %s: %w", tag, r.repository, err)
	}
	return m, nil
}

// blob reads a small blob and checks its digest.
func (r *source) blob(ctx context.Context, digest string) ([]byte, error) {
	if _, err := name.NewDigest(r.repository.Name()+"@"+digest, name.StrictValidation); err != nil {
		return nil, err // a valid digest is safe as a part of the URL
	}
	body, err := r.get(ctx, "blobs", digest, "", maxPayload+1)
	if err == nil && sum(body) != digest {
		err = fmt.Errorf("the blob %s of %s has another digest, %s", digest, r.repository, sum(body))
	}
	return body, err
}

func sum(body []byte) string {
	s := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(s[:])
}
