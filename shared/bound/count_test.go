package bound_test

import (
	"encoding/json"
	"strings"
	"testing"

	yamlnode "go.yaml.in/yaml/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/shared/bound"
)

// nodes counts the values of a YAML tree, and the values with children.
func nodes(n *yamlnode.Node) (all, holders int) {
	all = 1
	if n.Kind != yamlnode.ScalarNode && n.Kind != yamlnode.AliasNode {
		holders = 1
	}
	for _, c := range n.Content {
		a, h := nodes(c)
		all, holders = all+a, holders+h
	}
	return all, holders
}

// The count of YAML is never too small.
func FuzzCountYAML(f *testing.F) {
	for _, text := range []string{
		"a: 1\nb: [1, 2]\n", "- - - a\n- b\n", "a: |\n  {[,:\n  x\nb: {c: d}\n", "- |\n [\n- {}\n",
		"a: \"b\n  c: |\n    \"\nd: [1,2,3]\n", "{a: \"\n k: |\n  \", b: [{},{},{}]}\n", "a: b\n  \"c\nd: [{},{}]\n",
		"a: |\n          \n    [{},{}]\n", "a: >-\n  b\u2028c: [{},{}]\n", "a: |\n  b\rc: [{},{}]\n", "k:\t\"\n a: |\n  \"\nb: [{},{}]\n",
		"? a\n: b\n", "a: &x [1,2]\nb: *x\n", "--- |\n a: |\n  b\n---\n[{},{}]\n", "a: |2\n   b\n  [\nc: {}\n", "'a\n b: |\n   c': d\ne: [{}]\n",
		"a:\n- b: |\n    x\n  c: d\n", "\ufeffa: |\n  b\n", "a: |#\n  b\n", "a: b #c\n  - |\n    d\ne: {}\n", "- a\n-\n  b\n-b: c\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var doc yamlnode.Node
		if yamlnode.Unmarshal([]byte(text), &doc) != nil || len(doc.Content) == 0 {
			return
		}
		c, err := bound.CountYAML([]byte(text))
		if err != nil {
			return
		}
		all, holders := nodes(doc.Content[0])
		if all > 2*c.Values+1 || holders > c.Values+1 {
			t.Errorf("%d values, %d of them with children, are counted as %+v: %q", all, holders, c, text)
		}
	})
}

// The count of JSON is never too small.
func FuzzCountJSON(f *testing.F) {
	f.Add(`{"a":[{},"[{\"",[]],"b\\":{"c":1}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var v any
		if json.Unmarshal([]byte(text), &v) != nil {
			return
		}
		var objects func(v any) int
		objects = func(v any) (n int) {
			switch v := v.(type) {
			case map[string]any:
				n++
				for _, in := range v {
					n += objects(in)
				}
			case []any:
				n++
				for _, in := range v {
					n += objects(in)
				}
			}
			return n
		}
		if c := bound.CountJSON([]byte(text)); objects(v) > c.Objects {
			t.Errorf("%d objects are counted as %+v: %q", objects(v), c, text)
		}
	})
}

// The content of block texts, such as files in a ConfigMap, does not count.
func TestLongTextsInYAML(t *testing.T) {
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  dashboard.json: |\n" +
		strings.Repeat("    {\"a\": [{\"b\": 1}, {\"c\": 2}],\n\n", 40_000) +
		"  Makefile: |-\n    all:\n    \tmake -j {a,b}\n  more: x\n"
	c, err := bound.CountYAML([]byte(text))
	if err != nil || c.Bounded() != nil || c.Values > 30 {
		t.Errorf("counted %+v, %v; want at most 30 values", c, err)
	}
}

// The same excess is refused in each format.
func TestCountsAreBounded(t *testing.T) {
	for name, text := range map[string]string{
		"in braces":       "a: [" + strings.Repeat("{},", 500_000) + "{}]\n",
		"in lines":        "a:\n" + strings.Repeat("- {}\n", 500_000),
		"in names":        strings.Repeat("a:\n", 500_000),
		"after a text":    "a: |\n  b\nc:\n" + strings.Repeat("- x\n", 500_000),
		"in nested lists": strings.Repeat("- - - - - - a\n", 100_000),
	} {
		if c, err := bound.CountYAML([]byte(text)); err != nil || c.Bounded() == nil {
			t.Errorf("%s: counted %+v, %v; want more than the limit", name, c, err)
		}
	}
	if c := bound.CountJSON([]byte(`{"a":[` + strings.Repeat("{},", 20_000) + "{}]}")); c.Bounded() == nil {
		t.Errorf("JSON: counted %+v, want more than the limit", c)
	}
	if _, err := bound.CountYAML([]byte("\xff\xfea\x00:\x00")); err == nil {
		t.Error("CountYAML accepts UTF-16")
	}
}

// Both kinds of raw JSON in protobuf are decoded later, so their values count.
func TestJSONInProtobufIsCounted(t *testing.T) {
	many := []byte(`{"f:a":[` + strings.Repeat("{},", 20_000) + "{}]}")
	fields := new(metav1.FieldsV1)
	fields.SetRawBytes(many)
	managed := metav1.ManagedFieldsEntry{Manager: "m", FieldsV1: fields}
	for name, o := range map[string]interface {
		Marshal() ([]byte, error)
		runtime.Object
	}{
		"fieldsV1": &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{managed}}},
		"data":     &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: many}},
	} {
		body, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		envelope, err := (&runtime.Unknown{Raw: body}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		c, err := bound.CountProto(append([]byte("k8s\x00"), envelope...), o)
		if err != nil || c.Objects < 20_000 || c.Bounded() == nil {
			t.Errorf("%s: counted %+v, %v; want more than the limit", name, c, err)
		}
	}
}
