package engine_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
)

// registry serves one image, name:1, on loopback. With a password it requires user "device". It
// holds back the layer until stall is closed.
type registry struct {
	host     string
	password string
	stall    chan struct{}
	blobs    map[string][]byte
	manifest []byte
}

func newRegistry(t *testing.T, password string, labels ...string) *registry {
	layer := tarball("only", "content of "+t.Name())
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Cmd": []string{"/only"}, "Labels": map[string]string{"of.test": strings.Join(labels, "")}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{sum(layer)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &registry{password: password, blobs: map[string][]byte{sum(layer): layer, sum(config): config}}
	r.manifest = fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",
"config":{"mediaType":"application/vnd.docker.container.image.v1+json","size":%d,"digest":%q},
"layers":[{"mediaType":"application/vnd.docker.image.rootfs.diff.tar","size":%d,"digest":%q}]}`, len(config), sum(config), len(layer), sum(layer))
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

func sum(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

func tarball(name, content string) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	_ = w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o755})
	_, _ = w.Write([]byte(content))
	_ = w.Close()
	return buf.Bytes()
}

func (r *registry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if user, password, _ := q.BasicAuth(); r.password != "" && (user != "device" || password != r.password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`, http.StatusUnauthorized)
		return
	}
	path := q.URL.Path
	send := func(kind string, data []byte) {
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Docker-Content-Digest", sum(data))
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data)
	}
	switch {
	case path == "/v2/":
		send("application/json", []byte("{}"))
	case path == "/v2/name/manifests/1" || path == "/v2/name/manifests/"+sum(r.manifest):
		send("application/vnd.docker.distribution.manifest.v2+json", r.manifest)
	case r.blobs[strings.TrimPrefix(path, "/v2/name/blobs/")] != nil:
		if r.stall != nil {
			select {
			case <-r.stall:
			case <-q.Context().Done():
				return
			}
		}
		send("application/octet-stream", r.blobs[strings.TrimPrefix(path, "/v2/name/blobs/")])
	case strings.HasPrefix(path, "/v2/name/"):
		http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`, http.StatusNotFound)
	default:
		http.Error(w, `{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known to registry"}]}`,
			http.StatusNotFound)
	}
}
