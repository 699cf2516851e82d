package openapi

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/managedfields"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"flotilla.dev/device/hardware"
	"flotilla.dev/shared/fleet"
)

func get(t testing.TB, url string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, url, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

func body(t testing.TB, w *httptest.ResponseRecorder) []byte {
	t.Helper()
	b := w.Body.Bytes()
	if w.Header().Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if b, err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

type document3 struct {
	Paths      map[string]map[string]json.RawMessage
	Components struct{ Schemas map[string]map[string]any }
}

// urls returns the index of version 3.
func urls(t testing.TB) map[string]string {
	t.Helper()
	var index struct {
		Paths map[string]struct {
			URL string `json:"serverRelativeURL"`
		}
	}
	w := get(t, "/openapi/v3")
	if err := json.Unmarshal(w.Body.Bytes(), &index); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for gv, p := range index.Paths {
		out[gv] = p.URL
	}
	return out
}

func TestEveryDocumentOfTheIndexIsServedUnderItsHash(t *testing.T) {
	all := urls(t)
	if len(all) != 17 {
		t.Errorf("the index has %d documents: %v", len(all), all)
	}
	for gv, url := range all {
		w := get(t, url, "Accept-Encoding", "gzip", "Accept", "application/json")
		b := body(t, w)
		sum := sha512.Sum512(b)
		hash := strings.ToUpper(hex.EncodeToString(sum[:]))
		if w.Code != http.StatusOK || url != "/openapi/v3/"+gv+"?hash="+hash {
			t.Errorf("%s: status %d, content has the hash %.8s", url, w.Code, hash)
		}
		for key, want := range map[string]string{
			"ETag": `"` + hash + `"`, "Cache-Control": "public, immutable", "Vary": "Accept-Encoding, Accept",
			"Content-Type": "application/json", "Content-Encoding": "gzip",
		} {
			if got := w.Header().Get(key); got != want {
				t.Errorf("%s: %s is %q, want %q", gv, key, got, want)
			}
		}
		plain := get(t, "/openapi/v3/"+gv)
		if !bytes.Equal(plain.Body.Bytes(), b) || plain.Header().Get("Content-Encoding") != "" ||
			plain.Header().Get("Cache-Control") != "" {
			t.Errorf("%s: without gzip and hash, the document must be equal and not cached", gv)
		}
		if w := get(t, url, "If-None-Match", `"`+hash+`"`); w.Code != http.StatusNotModified || w.Body.Len() > 0 {
			t.Errorf("%s: a client that has the document gets code %d and %d bytes", gv, w.Code, w.Body.Len())
		}
		if w := get(t, "/openapi/v3/"+gv+"?hash=OLD"); w.Code != http.StatusMovedPermanently ||
			w.Header().Get("Location") != url {
			t.Errorf("%s: an old hash is answered %d %s", gv, w.Code, w.Header().Get("Location"))
		}
	}
}

func TestVersion2HasJSONAndProtobuf(t *testing.T) {
	w := get(t, "/openapi/v2", "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf, application/json",
		"Accept-Encoding", "gzip")
	if got := w.Header().Get("Content-Type"); got != "application/com.github.proto-openapi.spec.v2.v1.0+protobuf" {
		t.Errorf("the content type is %q", got)
	}
	var doc openapi_v2.Document
	if err := proto.Unmarshal(body(t, w), &doc); err != nil {
		t.Fatal(err)
	}
	var swagger struct {
		Swagger     string
		Paths       map[string]any
		Definitions map[string]any
	}
	w = get(t, "/openapi/v2", "Accept", "application/json;q=0.9, */*")
	if err := json.Unmarshal(body(t, w), &swagger); err != nil {
		t.Fatal(err)
	}
	if swagger.Swagger != "2.0" || len(swagger.Paths) == 0 || len(swagger.Paths) != len(doc.Paths.Path) ||
		len(swagger.Definitions) != len(doc.Definitions.AdditionalProperties) {
		t.Errorf("JSON has %d paths and %d definitions, protobuf %d and %d", len(swagger.Paths), len(swagger.Definitions),
			len(doc.Paths.Path), len(doc.Definitions.AdditionalProperties))
	}
	if w := get(t, "/openapi/v2", "Accept", "text/html"); w.Code != http.StatusNotAcceptable {
		t.Errorf("a client that accepts only HTML gets %d; want 406", w.Code)
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	for _, url := range []string{"/openapi", "/openapi/v4", "/openapi/v3/apis/rbac.authorization.k8s.io/v1",
		"/openapi/v3/../index.json", "/openapi/v2.pb", "/openapi/v3/api/v1/x"} {
		if w := get(t, url); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d; want 404", url, w.Code)
		}
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/openapi/v2", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d; want 405", w.Code)
	}
}

func TestDocumentsMatchTheHub(t *testing.T) {
	var doc document3
	if err := json.Unmarshal(body(t, get(t, "/openapi/v3/api/v1")), &doc); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/api/v1/namespaces/{namespace}/pods/{name}": "delete get parameters patch put",
		"/api/v1/pods": "get parameters",
		"/api/v1/namespaces/{namespace}/services":             "delete get parameters",
		"/api/v1/namespaces":                                  "get parameters post",
		"/api/v1/namespaces/{namespace}/pods/{name}/eviction": "parameters post",
		"/api/v1/namespaces/{namespace}/pods/{name}/exec":     "get parameters post",
		"/api/v1/namespaces/{namespace}/pods/{name}/proxy":    "delete get parameters patch post put",
		"/api/v1/componentstatuses":                           "",
		"/api/v1/persistentvolumes":                           "delete get parameters",
		"/api/v1/endpoints":                                   "get parameters",
	} {
		var have []string
		for key := range doc.Paths[path] {
			have = append(have, key)
		}
		sort.Strings(have)
		if got := strings.Join(have, " "); got != want {
			t.Errorf("%s has the methods %q, want %q", path, got, want)
		}
	}
	text := string(body(t, get(t, "/openapi/v3/api/v1")))
	for _, unserved := range []string{"cbor", "NFSVolumeSource", "ServicePort\"}}}}}}", "/watch/"} {
		if strings.Contains(text, unserved) {
			t.Errorf("the document must not mention %s", unserved)
		}
	}
	pod := doc.Components.Schemas["io.k8s.api.core.v1.PodSpec"]["properties"].(map[string]any)
	for field, want := range map[string]string{
		"hostIPC":            "Not supported here: containers on devices never share the device's IPC.",
		"serviceAccountName": "Has no effect here: there is no service account but default, and no token is mounted. ",
		"nodeSelector":       "NodeSelector is a selector",
	} {
		if got := pod[field].(map[string]any)["description"].(string); !strings.HasPrefix(got, want) {
			t.Errorf("spec.%s: %q, want %q", field, got, want)
		}
	}
}

// kubectl explain and validation find kinds through these extensions.
func TestEveryKindIsFoundThroughItsPathAndItsSchema(t *testing.T) {
	for gv, kinds := range map[string]map[string]string{
		"api/v1":                     {"/api/v1/nodes/{name}": "Node", "/api/v1/namespaces/{namespace}/pods/{name}": "Pod"},
		"apis/apps/v1":               {"/apis/apps/v1/namespaces/{namespace}/deployments/{name}": "Deployment"},
		"apis/flotilla.dev/v1alpha1": {"/apis/flotilla.dev/v1alpha1/sites/{name}": "Site", "/apis/flotilla.dev/v1alpha1/sites/{name}/status": "Site", "/apis/flotilla.dev/v1alpha1/boardprofiles": "BoardProfile", "/apis/flotilla.dev/v1alpha1/devicereports/{name}": "DeviceReport", "/apis/flotilla.dev/v1alpha1/incidents/{name}": "Incident", "/apis/flotilla.dev/v1alpha1/firmwarerollouts/{name}/status": "FirmwareRollout", "/apis/flotilla.dev/v1alpha1/agentrollouts/{name}": "AgentRollout"},
		"apis/metrics.k8s.io/v1beta1": {"/apis/metrics.k8s.io/v1beta1/nodes/{name}": "NodeMetrics",
			"/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods/{name}": "PodMetrics"},
	} {
		var doc document3
		text := body(t, get(t, "/openapi/v3/"+gv))
		if err := json.Unmarshal(text, &doc); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(gv, "v1alpha1") && (bytes.Contains(text, []byte("CoreV1")) ||
			bytes.Contains(text, []byte(`v1.Node"`)) || bytes.Contains(text, []byte("core_v1"))) {
			t.Errorf("%s must not mention nodes", gv)
		}
		ids := map[string]bool{}
		for path, item := range doc.Paths {
			for method, raw := range item {
				var op struct {
					OperationID string                                `json:"operationId"`
					GVK         struct{ Group, Version, Kind string } `json:"x-kubernetes-group-version-kind"`
					Parameters  []struct{ Name string }
				}
				if method == "parameters" {
					continue
				}
				if err := json.Unmarshal(raw, &op); err != nil {
					t.Fatal(err)
				}
				if ids[op.OperationID] {
					t.Errorf("%s: operation %s is repeated", gv, op.OperationID)
				}
				ids[op.OperationID] = true
				want, ok := kinds[path]
				if !ok {
					continue
				}
				if op.GVK.Kind != want || op.GVK.Group != strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(gv, "apis/"),
					"api/"), "/"+op.GVK.Version) && gv != "api/v1" {
					t.Errorf("%s %s has the kind %v, want %s", method, path, op.GVK, want)
				}
				if method == "patch" && !slices.ContainsFunc(op.Parameters,
					func(p struct{ Name string }) bool { return p.Name == "fieldValidation" }) {
					t.Errorf("%s: the parameter fieldValidation is missing", path)
				}
				found := false
				for _, s := range doc.Components.Schemas {
					list, _ := s["x-kubernetes-group-version-kind"].([]any)
					for _, k := range list {
						found = found || k.(map[string]any)["kind"] == want
					}
				}
				if !found {
					t.Errorf("%s: no schema of kind %s", gv, want)
				}
			}
			delete(kinds, path)
		}
		if len(kinds) > 0 {
			t.Errorf("%s lacks %v", gv, kinds)
		}
	}
}

// The schemas in own.yaml, which are written by hand, match the Go types.
func TestTheSchemasMatchTheGoTypes(t *testing.T) {
	schemas, err := Schemas()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[reflect.Type]bool{}
	var check func(typ reflect.Type, name string)
	check = func(typ reflect.Type, name string) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		s := schemas[name]
		if s == nil {
			t.Errorf("schema %s is missing", name)
			return
		}
		var have, want []string
		for p := range s.Properties {
			have = append(have, p)
		}
		prefix := name[:strings.LastIndex(name, ".")+1]
		for _, f := range reflect.VisibleFields(typ) {
			field, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			strategy := reflect.TypeOf(fleet.RolloutStrategy{}) // the only embedded type besides Kubernetes' own
			if !f.IsExported() || field == "-" || f.Type == strategy || len(f.Index) > 1 && typ.Field(f.Index[0]).Type != strategy {
				continue
			}
			if f.Anonymous && field == "" {
				want = append(want, "kind", "apiVersion")
				continue
			}
			want = append(want, field)
			p := s.Properties[field]
			inner := f.Type
			for inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			kind := map[reflect.Kind]string{reflect.String: "string", reflect.Int: "integer", reflect.Int32: "integer",
				reflect.Int64: "integer", reflect.Float64: "number",
				reflect.Bool: "boolean", reflect.Slice: "array", reflect.Map: "object"}[inner.Kind()]
			if kind != "" && !p.Type.Contains(kind) {
				t.Errorf("%s.%s is %v, the Go field is %s", name, field, p.Type, kind)
			}
			element := inner
			if inner.Kind() == reflect.Slice {
				element = inner.Elem()
			}
			if element.Kind() == reflect.Struct && (strings.HasPrefix(element.PkgPath(), "flotilla.dev/") ||
				strings.HasSuffix(element.PkgPath(), "/metrics/v1beta1")) {
				check(element, prefix+element.Name())
			}
			if required := !strings.Contains(options, "omitempty") &&
				!strings.Contains(options, "omitzero"); required != slices.Contains(s.Required, field) {
				t.Errorf("%s.%s: required is %v, but %v by the Go field", name, field, !required, required)
			}
		}
		sort.Strings(have)
		sort.Strings(want)
		if !slices.Equal(have, want) {
			t.Errorf("%s has the properties %v, the Go type %v", name, have, want)
		}
	}
	const own, metrics = "dev.flotilla.v1alpha1.", "io.k8s.metrics.pkg.apis.metrics.v1beta1."
	check(reflect.TypeOf(fleet.SiteList{}), own+"SiteList")
	check(reflect.TypeOf(fleet.BoardProfileList{}), own+"BoardProfileList")
	check(reflect.TypeOf(fleet.DeviceReportList{}), own+"DeviceReportList")
	check(reflect.TypeOf(fleet.IncidentList{}), own+"IncidentList")
	check(reflect.TypeOf(fleet.FirmwareRolloutList{}), own+"FirmwareRolloutList")
	check(reflect.TypeOf(fleet.AgentRolloutList{}), own+"AgentRolloutList")
	check(reflect.TypeOf(hardware.Report{}), own+"Report") // the hub serves the device's report unchanged
	check(reflect.TypeOf(metricsv1beta1.NodeMetricsList{}), metrics+"NodeMetricsList")
	check(reflect.TypeOf(metricsv1beta1.PodMetricsList{}), metrics+"PodMetricsList")
}

func TestSchemasForServerSideApply(t *testing.T) {
	schemas, err := Schemas()
	if err != nil {
		t.Fatal(err)
	}
	converter, err := managedfields.NewTypeConverter(schemas, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"b"}},"spec":{"containers":[{"name":"a","ports":[{"containerPort":1,"protocol":"TCP"}],"resources":{"limits":{"cpu":"1","memory":1}}}],"volumes":[{"name":"v","nfs":{"server":"s","path":"/"}}]}}`,
		`{"apiVersion":"apps/v1","kind":"Deployment","spec":{"strategy":{"rollingUpdate":{"maxSurge":"25%","maxUnavailable":1}}}}`,
		`{"apiVersion":"v1","kind":"Node","spec":{"taints":[{"key":"a","effect":"NoSchedule"}]}}`,
		`{"apiVersion":"autoscaling/v1","kind":"Scale","spec":{"replicas":2}}`,
		`{"apiVersion":"flotilla.dev/v1alpha1","kind":"Site","spec":{"nodeEvictionRate":0.5,"maintenance":{"until":"2026-11-03T18:00:00Z"}}}`,
		`{"apiVersion":"flotilla.dev/v1alpha1","kind":"BoardProfile","spec":{"match":{"memoryMiB":{"min":900}},"labels":{"a":"b"},"taints":[{"key":"a","effect":"NoSchedule"}]}}`,
		`{"apiVersion":"flotilla.dev/v1alpha1","kind":"FirmwareRollout","spec":{"selector":{"matchLabels":{"a":"b"}},"profile":"a","window":{"from":"22:00","to":"04:00"}}}`,
		`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"renewTime":"2026-11-03T18:00:00.000000Z"}}`,
		`{"apiVersion":"v1","kind":"Secret","data":{"a":"AA=="}}`,
	} {
		var o unstructured.Unstructured
		if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		v, err := converter.ObjectToTyped(&o)
		if err != nil {
			t.Errorf("%s: %v", o.GetKind(), err)
			continue
		}
		if o.GetKind() == "Pod" {
			set, err := v.ToFieldSet()
			if err != nil || !strings.Contains(set.String(),
				`.spec.containers[name="a"].ports[containerPort=1,protocol="TCP"]`) {
				t.Errorf("containers must be merged by name: %v %v", set, err)
			}
		}
	}
	wrong := unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod",
		"spec": map[string]any{"foo": "bar"}}}
	if _, err := converter.ObjectToTyped(&wrong); err == nil {
		t.Error("an unknown field must be refused")
	}
}

func BenchmarkSchemas(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		s, err := Schemas()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := managedfields.NewTypeConverter(s, false); err != nil {
			b.Fatal(err)
		}
	}
}
