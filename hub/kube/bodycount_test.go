package kube

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
)

// TestBodiesOfTooManyElements: a decoder makes hundreds of bytes of an empty element of two. What has too
// many is refused before anything is decoded, by every verb and in every encoding.
func TestBodiesOfTooManyElements(t *testing.T) {
	const many = 900_000
	empties := "[" + strings.Repeat("{},", many) + "{}]"
	podOf := func(field string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i"}],` + field + `}}`
	}
	owners := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","ownerReferences":` + empties + `}}`
	proto, err := kruntime.Encode(protoCodec, &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: corev1.PodSpec{Containers: make([]corev1.Container, 100_000)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, method, path, media, body string }{
		{"containers", "POST", ns + "/pods", "", podOf(`"initContainers":` + empties)},
		{"containers, tried only", "POST", ns + "/pods?dryRun=All", "", podOf(`"initContainers":` + empties)},
		{"owners", "POST", ns + "/configmaps", "", owners},
		{"owners in YAML", "POST", ns + "/configmaps", mediaYAML, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, ownerReferences: " + empties + "}\n"},
		{"owners in lines", "POST", ns + "/configmaps", mediaYAML, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b\n  ownerReferences:\n" + strings.Repeat("  - {}\n", 300_000)},
		{"names without values", "POST", ns + "/configmaps", mediaYAML, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata:\n" + strings.Repeat("  a:\n", 500_000)},
		{"containers in protobuf", "POST", ns + "/pods", mediaProto, string(proto)},
		{"a merge patch", "PATCH", "/api/v1/nodes/pi-1", mp, `{"metadata":{"ownerReferences":` + empties + `}}`},
		{"a merge by lists", "PATCH", "/api/v1/nodes/pi-1", smp, `{"metadata":{"ownerReferences":` + empties + `}}`},
		{"a JSON patch", "PATCH", "/api/v1/nodes/pi-1", jp, `[{"op":"add","path":"/metadata/ownerReferences","value":` + empties + `}]`},
		{"an apply", "PATCH", ns + "/configmaps/b?fieldManager=t", ssa, owners},
		{"a deletion", "DELETE", ns + "/pods/web-1", "", `{"x":` + empties + `}`},
		{"a review", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", mediaYAML, `{x: ` + empties + `}`},
		{"a scale", "PUT", apps + "/deployments/web/scale", "", `{"x":` + empties + `}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(seeded())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w := request{method: c.method, path: c.path, contentType: c.media, body: c.body}.do(s)
			runtime.ReadMemStats(&after)
			if w.Code != http.StatusBadRequest && w.Code != http.StatusRequestEntityTooLarge {
				t.Errorf("%d %.300s", w.Code, w.Body)
			}
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 32 {
				t.Errorf("%d MiB are allocated for a body of %d bytes", took, len(c.body))
			}
		})
	}
}

// TestOneReaderOfBodies: what else read a request's body would not count what is in it.
func TestOneReaderOfBodies(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if name != "body.go" && !strings.HasSuffix(name, "_test.go") && bytes.Contains(text, []byte("r.Body")) {
			t.Errorf("%s reads a body by itself: use call.body", name)
		}
	}
}

// TestRequestsWaitForMemory: a request that gets none in time is refused and changes nothing; one
// user cannot take the memory of all.
func TestRequestsWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := seeded()
		s := newServer(f)
		create := request{method: "POST", path: ns + "/configmaps", body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"}}`}
		c := &call{Server: s, r: httptest.NewRequest("GET", "/", nil)}
		c.who.Name = "another"
		if err := c.reserve(&s.load.decoding, maxDecoding); err != nil { // one user gets no more than their own
			t.Fatal(err)
		}
		if w := create.do(s); w.Code != http.StatusCreated {
			t.Fatalf("beside one user: %d %s", w.Code, w.Body)
		}
		c.who.Name = "a third"
		if err := c.reserve(&s.load.decoding, maxDecoding-userDecoding); err != nil {
			t.Fatal(err)
		}
		create.body = strings.Replace(create.body, `"c"`, `"d"`, 1)
		began := time.Now()
		if w := create.do(s); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" || time.Since(began) != decodePatience {
			t.Errorf("without room: %d %s after %v", w.Code, w.Body, time.Since(began))
		}
		c.release()
		if w := create.do(s); w.Code != http.StatusCreated {
			t.Errorf("with room again: %d %s", w.Code, w.Body)
		}
	})
}
