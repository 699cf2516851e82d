package lines

import (
	"strings"
	"testing"
)

const two = `# first
apiVersion: v1
kind: Pod
metadata:
  labels:
    app.kubernetes.io/name: x
    "a.b": y
spec:
  containers:
  - name: a
  - name: b
    ports: [{containerPort: 80}]
---
---
kind: ConfigMapList
items:
- metadata:
    name: one
- metadata:
    name: two
`

func TestLineOfAField(t *testing.T) {
	all := Objects([]byte(two))
	if len(all) != 3 {
		t.Fatalf("%d objects", len(all))
	}
	for _, c := range []struct {
		object int
		path   string
		want   int
	}{
		{0, "kind", 3}, {0, "metadata.labels", 5}, {0, "metadata.labels.app.kubernetes.io/name", 6}, {0, "metadata.labels.a.b", 7}, {0, "metadata.labels[a.b]", 7},
		{0, "spec.containers[1].name", 11}, {0, "spec.containers[1].ports[0].containerPort", 12}, {0, "spec.containers[2].name", 9}, {0, "spec.nodeName", 8},
		{0, "status", 0}, {0, "", 0}, {0, "spec.containers[", 9}, {0, "spec.containers[-1]", 9}, {1, "metadata.name", 18}, {2, "metadata.name", 20},
	} {
		if got := all[c.object].Of(c.path); got != c.want {
			t.Errorf("object %d, %q: line %d, want %d", c.object, c.path, got, c.want)
		}
	}
}

func TestInvalidYAMLIsNamedByLine(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{two, ""},
		{"a: 1\n\tb: 2\n", "line 2 is indented with a tab: YAML allows only spaces"},
		{"a: 1\n---\nb:\n  \tc: [\n", "line 4 is indented with a tab: YAML allows only spaces"},
		{"spec:\n  replicas: 3\n template: 5\n", "line 3 does not fit the lines above it: check indentation, quotes and brackets"},
		{strings.Repeat("a:\n  b: 1\n---\n", 100) + "a:\n  b: 1\n c: 2\n", "line 303 does not fit the lines above it: check indentation, quotes and brackets"},
		{"a: [1\n", "line 1 does not fit the lines above it: check indentation, quotes and brackets"},
	} {
		if got := Syntax([]byte(c.text)); got != c.want {
			t.Errorf("%q: %q, wants %q", c.text, got, c.want)
		}
	}
}

// FuzzOf checks that Of does not panic on any text and path.
func FuzzOf(f *testing.F) {
	f.Add(two, "spec.containers[1].name")
	f.Add("a: &a [*a]\n", "a[0][0][0]")
	f.Fuzz(func(_ *testing.T, text, path string) {
		for _, o := range Objects([]byte(text)) {
			o.Of(path)
		}
		Syntax([]byte(text))
	})
}
