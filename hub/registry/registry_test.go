package registry

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// serve starts a registry of so many bytes in dir; at is its address.
func serve(t *testing.T, dir string, quota int64) (r *Registry, at string) {
	t.Helper()
	r, err := Open(dir, quota)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(r)
	t.Cleanup(s.Close)
	return r, strings.TrimPrefix(s.URL, "http://")
}

func reference(t *testing.T, text string) name.Reference {
	t.Helper()
	r, err := name.ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func push(t *testing.T, to string) v1.Image {
	t.Helper()
	im, err := random.Image(4096, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(reference(t, to), im); err != nil {
		t.Fatal(err)
	}
	return im
}

func digest(t *testing.T, of interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	h, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

// do sends a request, and returns its status, headers and body.
func do(t *testing.T, method, url, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	q, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		q.Header.Set(headers[i], headers[i+1])
	}
	w, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Body.Close()
	text, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return w.StatusCode, w.Header, string(text)
}

func TestAPushedImageIsPulledAfterARestart(t *testing.T) {
	dir := t.TempDir()
	_, at := serve(t, dir, 1<<30)
	im := push(t, at+"/shop/till:1.2")
	index, err := random.Index(1024, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(reference(t, at+"/shop/till:multi"), index); err != nil {
		t.Fatal(err)
	}

	r, at := serve(t, dir, 1<<30)
	got, err := remote.Image(reference(t, at+"/shop/till:1.2"))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(got); err != nil {
		t.Error(err)
	}
	if digest(t, got) != digest(t, im) {
		t.Errorf("pulled %s, pushed %s", digest(t, got), digest(t, im))
	}
	if _, err := remote.Image(reference(t, at+"/shop/till@"+digest(t, im))); err != nil {
		t.Error(err)
	}
	tags, err := remote.List(reference(t, at+"/shop/till:1.2").Context())
	if err != nil || fmt.Sprint(tags) != "[1.2 multi]" {
		t.Errorf("tags %v, %v", tags, err)
	}
	all, err := r.Images()
	if err != nil || len(all) != 2 || all[0].Name != "shop/till" || all[0].Tag != "1.2" || all[0].Size < 3*4096 {
		t.Errorf("images %+v, %v", all, err)
	}
	used, _ := r.Usage()
	var disk int64
	_ = r.eachBlob(func(_ string, info os.FileInfo) error { disk += info.Size(); return nil })
	if used != disk {
		t.Errorf("%d bytes are counted, %d are on the disk", used, disk)
	}
}

func TestAnUploadThatBreaksOffLeavesNothing(t *testing.T) {
	r, at := serve(t, t.TempDir(), 1<<30)
	_, h, _ := do(t, "POST", "http://"+at+"/v2/app/blobs/uploads/", "")
	pr, pw := io.Pipe()
	q, err := http.NewRequest("PATCH", "http://"+at+h.Get("Location"), pr)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _, _ = http.DefaultClient.Do(q); close(ended) }()
	if _, err := pw.Write(bytes.Repeat([]byte("x"), 200_000)); err != nil {
		t.Fatal(err)
	}
	pw.CloseWithError(io.ErrUnexpectedEOF) // the client ends the connection
	<-ended
	var code int
	var used int64
	var files []os.DirEntry
	for range 1000 { // the server sees the end a moment later
		code, _, _ = do(t, "GET", "http://"+at+h.Get("Location"), "")
		used, _ = r.Usage()
		if files, err = os.ReadDir(r.path("uploads")); err != nil {
			t.Fatal(err)
		}
		if code == http.StatusNotFound && used == 0 && len(files) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the upload is answered with %d, %d bytes are counted, %d files stay", code, used, len(files))
}

func TestBadRequestsAreRefusedAndChangeNothing(t *testing.T) {
	r, at := serve(t, t.TempDir(), 1<<20)
	blob := "hello"
	right := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(blob)))
	wrong := "sha256:" + strings.Repeat("0", 64)
	if code, _, text := do(t, "POST", "http://"+at+"/v2/app/blobs/uploads/?digest="+right, blob); code != 201 {
		t.Fatal(text)
	}
	for _, c := range []struct {
		rule, method, path, body string
		status                   int
		says                     string
	}{
		{"a blob with another digest", "POST", "/v2/app/blobs/uploads/?digest=" + wrong, blob, 400, "not " + wrong},
		{"a digest of another kind", "POST", "/v2/app/blobs/uploads/?digest=md5:00", blob, 400, "only sha256"},
		{"a name with capital letters", "POST", "/v2/App/blobs/uploads/", "", 400, "not a valid image name"},
		{"a name that leaves the directory", "PUT", "/v2/a/%2e%2e/b/manifests/x", "{}", 400, "not a valid image name"},
		{"a tag that is a path", "GET", "/v2/app/manifests/..%2fx", "", 404, ""},
		{"a manifest that is not JSON", "PUT", "/v2/app/manifests/1", "{", 400, "manifest"},
		{"a manifest without parts", "PUT", "/v2/app/manifests/1", "{}", 400, "neither config nor manifests"},
		{"a manifest whose blobs are missing", "PUT", "/v2/app/manifests/1",
			`{"config":{"digest":"` + wrong + `","size":5}}`, 400, "does not have the blob"},
		{"an image whose blob has another size", "PUT", "/v2/app/manifests/1",
			`{"config":{"digest":"` + right + `","size":6}}`, 400, "has 5 bytes, not 6"},
		{"a manifest under another digest", "PUT", "/v2/app/manifests/" + wrong,
			`{"config":{"digest":"` + right + `","size":5}}`, 400, "not " + wrong},
		{"an index whose manifests are missing", "PUT", "/v2/app/manifests/1",
			`{"manifests":[{"digest":"` + wrong + `","size":5}]}`, 400, "push it first"},
		{"a manifest of 5 MB", "PUT", "/v2/app/manifests/1", strings.Repeat(" ", 5<<20), 413, "more than 4 MiB"},
		{"an unknown image", "GET", "/v2/app/manifests/1", "", 404, "does not have the image app:1"},
		{"an unknown blob", "GET", "/v2/app/blobs/" + wrong, "", 404, "does not have the blob"},
		{"an unknown upload", "PATCH", "/v2/app/blobs/uploads/x", blob, 404, "push again"},
		{"a blob that is deleted", "DELETE", "/v2/app/blobs/" + right, "", 405, "does not support"},
		{"another path", "GET", "/v2/app", "", 404, "not part of the registry API"},
		{"more than the quota", "POST", "/v2/app/blobs/uploads/?digest=" + wrong, strings.Repeat("x", 2<<20), 507, "image rm"},
	} {
		code, _, text := do(t, c.method, "http://"+at+c.path, c.body)
		if code != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s, want %d and %q", c.rule, code, text, c.status, c.says)
		}
	}
	names, err := r.repositories()
	if err != nil || len(names) != 0 {
		t.Errorf("repositories %v, %v", names, err)
	}
}

func TestChunksFollowEachOther(t *testing.T) {
	_, at := serve(t, t.TempDir(), 1<<20)
	_, h, _ := do(t, "POST", "http://"+at+"/v2/app/blobs/uploads", "")
	url := "http://" + at + h.Get("Location")
	if code, h, _ := do(t, "PATCH", url, "hel", "Content-Range", "0-2"); code != 202 || h.Get("Range") != "0-2" {
		t.Errorf("first chunk: %d %s", code, h.Get("Range"))
	}
	if code, _, text := do(t, "PATCH", url, "lo", "Content-Range", "2-3"); code != 416 || !strings.Contains(text, "byte 3") {
		t.Errorf("a chunk twice: %d %s", code, text)
	}
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte("hello")))
	if code, _, text := do(t, "PUT", url+"?digest="+sum, "lo", "Content-Range", "3-4"); code != 201 {
		t.Errorf("the last chunk: %d %s", code, text)
	}
	code, h, text := do(t, "GET", "http://"+at+"/v2/app/blobs/"+sum, "", "Range", "bytes=3-")
	if code != 206 || text != "lo" || h.Get("Content-Range") != "bytes 3-4/5" {
		t.Errorf("the rest of a blob: %d %q %s", code, text, h.Get("Content-Range"))
	}
	if code, _, _ := do(t, "POST", "http://"+at+"/v2/other/blobs/uploads/?mount="+sum+"&from=app", ""); code != 201 {
		t.Errorf("mount: %d", code)
	}
}

func TestWhatIsInUseIsNotCollected(t *testing.T) {
	r, at := serve(t, t.TempDir(), 1<<30)
	old := push(t, at+"/app:1")  // will lose its tag
	used := push(t, at+"/app:2") // will lose its tag, and a pod runs it
	configuration, err := used.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	signed := push(t, at+"/app:3")
	signature := mutate.Subject(mutate.MediaType(mustRandom(t), ociManifest), v1.Descriptor{
		MediaType: ociManifest, Digest: hashOf(t, signed), Size: 1,
	}).(v1.Image)
	if err := remote.Write(reference(t, at+"/app@"+digest(t, signature)), signature); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"1", "2"} {
		if err := r.Remove("app", tag); err != nil {
			t.Fatal(err)
		}
	}
	there := func(im v1.Image) bool {
		_, err := remote.Image(reference(t, at+"/app@"+digest(t, im)))
		return err == nil
	}
	collect := func() Collection {
		c, err := r.Collect([]string{configuration.String()})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := collect(); c.Manifests+c.Blobs != 0 || !there(old) {
		t.Errorf("collected within a day: %+v", c)
	}
	r.Now = func() time.Time { return time.Now().Add(25 * time.Hour) }
	before, _ := r.Usage()
	c := collect()
	after, _ := r.Usage()
	if c.Manifests != 1 || c.Blobs != 5 || before-after != c.Bytes {
		t.Errorf("collected %+v, usage from %d to %d; want one image of five blobs", c, before, after)
	}
	if there(old) || !there(used) || !there(signed) || !there(signature) {
		t.Errorf("old %t, used %t, signed %t, signature %t", there(old), there(used), there(signed), there(signature))
	}
	if err := r.Remove("app", "1"); err == nil {
		t.Errorf("remove again: %v", err)
	}
	if err := r.Remove("app", digest(t, signed)); err != nil {
		t.Error(err)
	}
	if _, err := r.Collect(nil); err != nil {
		t.Error(err)
	}
	if used, _ := r.Usage(); used != 0 {
		t.Errorf("%d bytes stay without an image", used)
	}
	if entries, _ := os.ReadDir(r.path("repositories")); len(entries) != 0 {
		t.Errorf("directories stay without an image: %v", entries)
	}
}

func hashOf(t *testing.T, im v1.Image) v1.Hash {
	t.Helper()
	h, err := im.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func mustRandom(t *testing.T) v1.Image {
	t.Helper()
	im, err := random.Image(100, 1)
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// The real client: what Docker pushes, Docker pulls.
func TestDockerPushesAndPulls(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Docker")
	}
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("there is no docker")
	}
	_, at := serve(t, t.TempDir(), 1<<30)
	image := at + "/hello:1"
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\nCOPY hello /\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "hello"), bytes.Repeat([]byte("hello "), 100_000), 0o600)); err != nil {
		t.Fatal(err)
	}
	docker := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "docker", args...).CombinedOutput(); err != nil {
			t.Fatalf("docker %v: %v\n%s", args, err, out)
		}
	}
	docker("build", "-t", image, dir)
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", image).Run() })
	docker("push", image)
	docker("rmi", image)
	docker("pull", image)
}
