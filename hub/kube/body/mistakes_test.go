package body

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/kube/resource"
)

// Errors about mistakes in objects are plain, and name the field and, in YAML, the line.
func TestMistakesAreNamedByFieldAndLine(t *testing.T) {
	head := "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: x\n"
	pod := head + "spec:\n  template:\n    spec:\n      containers:\n"
	for _, c := range []struct{ name, text, want string }{
		{"a word for a number", head + "spec:\n  replicas: three\n", `spec.replicas: expected a number, got "three" (line 6)`},
		{"a number in quotes", head + "spec:\n  replicas: \"3\"\n", `spec.replicas: expected a number, got "3" (line 6)`},
		{"a fraction for a number of pods", head + "spec:\n  replicas: 3.5\n", `spec.replicas: expected a whole number that fits into 32 bits, got 3.5 (line 6)`},
		{"too many", head + "spec:\n  replicas: 99999999999\n", `spec.replicas: expected a whole number that fits into 32 bits, got 99999999999 (line 6)`},
		{"a word for true", head + "spec:\n  paused: \"yes\"\n", `spec.paused: expected true or false, got "yes" (line 6)`},
		{"text for a list", head + "spec:\n  template:\n    spec:\n      containers: web\n", `spec.template.spec.containers: expected a list, got "web" (line 8)`},
		{"a mapping for a list", pod + "        name: web\n", `spec.template.spec.containers: expected a list, got fields (line 8)`},
		{"a list for a mapping", head + "spec:\n  selector: []\n", `spec.selector: expected fields, got a list (line 6)`},
		{"a number for a name", pod + "      - name: 5\n", `spec.template.spec.containers[0].name: expected text (put it in quotes), got 5 (line 9)`},
		{"in the second item of a list", pod + "      - name: a\n      - name: b\n        ports:\n        - containerPort: http\n", `spec.template.spec.containers[1].ports[0].containerPort: expected a number, got "http" (line 12)`},
		{"a list for an image", pod + "      - image: [a]\n", `spec.template.spec.containers[0].image: expected text, got a list (line 9)`},
		{"a word for an amount", pod + "      - resources: {limits: {cpu: lots}}\n", `spec.template.spec.containers[0].resources.limits.cpu: expected an amount such as 100m, 64Mi or 2, got "lots" (line 9)`},
		{"a number for a label", head + "  labels:\n    app.kubernetes.io/version: 5\n", `metadata.labels.app.kubernetes.io/version: expected text (put it in quotes), got 5 (line 6)`},
		{"a word for a time", head + "  creationTimestamp: yesterday\n", `metadata.creationTimestamp: expected a time such as 2026-01-02T15:04:05Z, got "yesterday" (line 5)`},
		{"a list for a port", pod + "      - livenessProbe: {httpGet: {port: [1]}}\n", `spec.template.spec.containers[0].livenessProbe.httpGet.port: expected a number, or text such as a name or 25%, got a list (line 9)`},
		{"several mistakes", head + "spec:\n  replicas: a\n  paused: 1\n", `spec.paused: expected true or false, got 1 (line 7); spec.replicas: expected a number, got "a" (line 6)`},
		{"an unknown field with another mistake", head + "spec:\n  replica: 3\n  paused: 1\n", `spec.paused: expected true or false, got 1 (line 7)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
			b := inYAML(t, c.text)
			_, _, err := b.Decode(kind)
			if err == nil {
				t.Fatal("the decoder must refuse the text")
			}
			var no *apierrors.StatusError
			if !errors.As(DecodeError(b, kind, err), &no) || no.ErrStatus.Code != 400 {
				t.Fatalf("the error %v is not a Status", err)
			}
			if want := `Deployment in version "v1" cannot be handled as a Deployment: ` + c.want; no.ErrStatus.Message != want {
				t.Errorf("got\n%s\nwants\n%s", no.ErrStatus.Message, want)
			}
			b.Text = b.Data
			if _, _, err = b.Decode(kind); err == nil {
				t.Fatal("the decoder must refuse the text as JSON")
			}
			text, causes := Describe(b, kind, err)
			if strings.Contains(text, "line") || strings.Contains(text, "Go struct") || len(causes) == 0 ||
				!strings.Contains(text, causes[0].Message) {
				t.Errorf("as JSON: %s (%v)", text, causes)
			}
		})
	}
}

// Errors about unknown fields keep the decoder's text, because clients recognize it. Their causes
// suggest a known field.
func TestErrorsOfUnknownFieldsKeepTheirText(t *testing.T) {
	kind := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	b := inYAML(t, "apiVersion: apps/v1\nkind: Deployment\nspec:\n  replica: 3\n")
	_, _, err := b.Decode(kind)
	message, causes := Describe(b, kind, err)
	if !strings.Contains(message, `unknown field "spec.replica"`) || len(causes) != 1 || causes[0].Field != "spec.replica" ||
		causes[0].Message != "unknown field; did you mean replicas? (line 4)" {
		t.Errorf("the message is %s, the causes are %v; want one with a known field", message, causes)
	}
}

// inYAML returns a YAML body.
func inYAML(t *testing.T, text string) Body {
	t.Helper()
	data, twice, err := fromYAML([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return Body{Text: []byte(text), Media: resource.MediaJSON, Data: data, Duplicates: twice}
}
