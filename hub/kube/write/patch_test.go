package write

import (
	"fmt"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/kube/body"
)

// Each limit of a patch has its own error. A patch below all limits is applied.
func TestEachLimitOfAPatchHasItsError(t *testing.T) {
	object := func(n int) []byte {
		return []byte(`{"metadata":{"name":"a","annotations":{"x":"` + strings.Repeat("x", n) + `"}}}`)
	}
	operations := func(n int, op string) []byte {
		return []byte("[" + strings.TrimSuffix(strings.Repeat(op+",", n), ",") + "]")
	}
	test := `{"op":"test","path":"/metadata/name","value":"a"}`
	list := func(n int) []byte {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `{"type":"c%d"},`, i)
		}
		return []byte(`{"status":{"conditions":[` + strings.TrimSuffix(b.String(), ",") + `]}}`)
	}
	for _, tt := range []struct {
		name       string
		was, patch []byte
		kind       types.PatchType
		want       string // part of the error; "" if the patch is applied
	}{
		{"a few operations", object(10), operations(10, test), types.JSONPatchType, ""},
		{"many operations on a small object", object(10), operations(1000, test), types.JSONPatchType, ""},
		{"too many operations", object(10), operations(maxPatchOperations+1, `{"op":"x","path":""}`), types.JSONPatchType, "maximum operations"},
		{"operations on a large object", object(1 << 20), operations(300, test), types.JSONPatchType, "too much work"},
		{"operations of a large patch on a small object", object(10), operations(400, `{"op":"test","path":"/metadata/name","value":"`+strings.Repeat("y", 2000)+`"}`), types.JSONPatchType, "too much work"},
		{"copies of copies", object(60_000), operations(60, `{"op":"copy","from":"/metadata/annotations/x","path":"/metadata/labels"}`), types.JSONPatchType, "copy"},
		{"a list to be merged", []byte(`{"status":{}}`), list(100), types.StrategicMergePatchType, ""},
		{"a list that costs too much to merge", []byte(`{"status":{}}`), list(3000), types.StrategicMergePatchType, "too many entries"},
		{"a list instead of an object", object(1), []byte(`[1]`), types.MergePatchType, "not a JSON object"},
		{"null instead of an object", object(1), []byte(`null`), types.StrategicMergePatchType, "not a JSON object"},
	} {
		_, err := patchJSON(tt.was, tt.patch, tt.kind, &corev1.Node{})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %.200v", tt.name, err)
		}
	}
	if jsonpatch.AccumulatedCopySizeLimit != body.MaxBody {
		t.Errorf("the limit of copies is %d bytes, want %d", jsonpatch.AccumulatedCopySizeLimit, body.MaxBody)
	}
}
