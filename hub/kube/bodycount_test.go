package kube

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/kube/resource"
)

// An empty element of two bytes takes hundreds of bytes once decoded. A body with too many elements
// is refused before decoding, with every verb and encoding.
func TestBodiesOfTooManyElements(t *testing.T) {
	const many = 900_000
	empties := "[" + strings.Repeat("{},", many) + "{}]"
	podOf := func(field string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i"}],` +
			field + `}}`
	}
	owners := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","ownerReferences":` + empties + `}}`
	proto, err := kruntime.Encode(resource.ProtoCodec, &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: corev1.PodSpec{Containers: make([]corev1.Container, 100_000)}})
	if err != nil {
		t.Fatal(err)
	}
	revision, err := kruntime.Encode(resource.ProtoCodec, &appsv1.ControllerRevision{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ControllerRevision"},
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Data:       kruntime.RawExtension{Raw: []byte(`{"spec":{"template":{"spec":{"containers":` + empties + `}}}}`)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, method, path, media, body string }{
		{"containers", "POST", ns + "/pods", "", podOf(`"initContainers":` + empties)},
		{"containers in a dry run", "POST", ns + "/pods?dryRun=All", "", podOf(`"initContainers":` + empties)},
		{"owners", "POST", ns + "/configmaps", "", owners},
		{"owners in YAML flow style", "POST", ns + "/configmaps", resource.MediaYAML, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, ownerReferences: " + empties + "}\n"},
		{"owners in YAML block style", "POST", ns + "/configmaps", resource.MediaYAML, "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: b\n  ownerReferences:\n" + strings.Repeat("  - {}\n", 300_000)},
		{"names without values", "POST", ns + "/configmaps", resource.MediaYAML, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\ndata:\n" + strings.Repeat("  a:\n", 500_000)},
		{"containers in protobuf", "POST", ns + "/pods", resource.MediaProto, string(proto)},
		{"JSON in protobuf", "POST", apps + "/controllerrevisions", resource.MediaProto, string(revision)},
		{"a merge patch", "PATCH", "/api/v1/nodes/pi-1", mp, `{"metadata":{"ownerReferences":` + empties + `}}`},
		{"a strategic merge patch", "PATCH", "/api/v1/nodes/pi-1", smp, `{"metadata":{"ownerReferences":` + empties + `}}`},
		{"a JSON patch", "PATCH", "/api/v1/nodes/pi-1", jp, `[{"op":"add","path":"/metadata/ownerReferences","value":` + empties + `}]`},
		{"an apply", "PATCH", ns + "/configmaps/b?fieldManager=t", ssa, owners},
		{"a deletion", "DELETE", ns + "/pods/web-1", "", `{"x":` + empties + `}`},
		{"a review", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", resource.MediaYAML, `{x: ` + empties + `}`},
		{"a scale", "PUT", apps + "/deployments/web/scale", "", `{"x":` + empties + `}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(seeded())
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w := request{method: c.method, path: c.path, contentType: c.media, body: c.body}.do(s)
			runtime.ReadMemStats(&after)
			if w.Code != http.StatusBadRequest && w.Code != http.StatusRequestEntityTooLarge {
				t.Errorf("%d %.300s; want 400 or 413", w.Code, w.Body)
			}
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 32 {
				t.Errorf("a body of %[2]d bytes must not allocate %[1]d MiB", took, len(c.body))
			}
		})
	}
}

// Only package body reads request bodies: other readers would not count their elements.
func TestOnlyPackageBodyReadsBodies(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	below, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, below...) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(name) != "body" && !strings.HasSuffix(name, "_test.go") && bytes.Contains(text, []byte("r.Body")) {
			t.Errorf("%s reads a request body: use package body", name)
		}
	}
}

// However short it is, a patch reserves memory by the size of its object.
func TestPatchesAreReadWithTheSizeOfTheirObject(t *testing.T) {
	s := newServer(seeded())
	body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"large"},"data":{"a":"` +
		strings.Repeat("x", 900_000) + `"}}`
	if w := (request{method: "POST", path: ns + "/configmaps", body: body}).do(s); w.Code != http.StatusCreated {
		t.Fatalf("%d %.300s; want 201", w.Code, w.Body)
	}
	c := &call{Server: s, verb: "patch", target: target{namespace: "default", name: "large"},
		res: s.find(target{version: "v1", resource: "configmaps"})}
	if got := c.liveSize(); got < 900_000 {
		t.Errorf("the object has %d bytes, want at least 900,000", got)
	}
	if c.verb = "update"; c.liveSize() != 0 {
		t.Errorf("a replacement must not reserve memory for the old object: %d bytes", c.liveSize())
	}
}

// An error about a patch is short even if the patch's paths are long.
func TestErrorsDoNotQuoteLongPaths(t *testing.T) {
	body := `[{"op":"add","path":"` + strings.Repeat("/a", 1_000_000) + `","value":1}]`
	w := request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: jp, body: body}.do(newServer(seeded()))
	if w.Code != http.StatusUnprocessableEntity || w.Body.Len() > 8<<10 {
		t.Errorf("%d, %d bytes: %.300s; want 422 in at most 8 KiB", w.Code, w.Body.Len(), w.Body)
	}
}
