package body

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/kube/lines"
	"flotilla.dev/hub/kube/resource"
)

// maxMistakes limits the fields in an error.
const maxMistakes = 20

// DecodeError refuses a body that cannot be decoded. It names all wrong fields in plain words; the
// decoder names only the first, with a Go type.
func DecodeError(b Body, kind schema.GroupVersionKind, err error) error {
	text, causes := Describe(b, kind, err)
	st := metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusBadRequest, Reason: metav1.StatusReasonBadRequest,
		Message: fmt.Sprintf("%s in version %q cannot be handled as a %s: %s", kind.Kind, kind.Version, kind.Kind, text),
	}
	if len(causes) > 0 {
		st.Details = &metav1.StatusDetails{Group: kind.Group, Kind: kind.Kind, Causes: causes}
	}
	return &apierrors.StatusError{ErrStatus: st}
}

// Describe explains a decoder's error in plain words. If only unknown fields are wrong, it returns
// the decoder's text, because clients recognize it.
func Describe(b Body, kind schema.GroupVersionKind, err error) (string, []metav1.StatusCause) {
	causes := mistakes(b, kind)
	var parts []string
	for _, c := range causes {
		if c.Type != unknownField {
			parts = append(parts, strings.TrimPrefix(c.Field+": ", ": ")+c.Message)
		}
	}
	if len(parts) == 0 {
		return err.Error(), causes
	}
	return strings.Join(parts, "; "), causes
}

const unknownField metav1.CauseType = "FieldUnknown"

// mistakes returns the unknown fields of a body, and the fields whose values have a wrong type.
func mistakes(b Body, kind schema.GroupVersionKind) (all []metav1.StatusCause) {
	into, err := resource.Scheme.New(kind)
	if err != nil || b.Media == resource.MediaProto {
		return nil
	}
	var at lines.Object
	if !json.Valid(b.Text) { // the text is YAML
		if objects := lines.Objects(b.Text); len(objects) > 0 {
			at = objects[0]
		}
	}
	d := json.NewDecoder(bytes.NewReader(b.Data))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil
	}
	w := mismatches{}
	w.value("", v, reflect.TypeOf(into).Elem())
	for _, c := range w.found {
		if line := at.Of(c.Field); line > 0 {
			c.Message += fmt.Sprintf(" (line %d)", line)
		}
		all = append(all, c)
	}
	return all
}

// mismatches collects the parts of a value that have a wrong type.
type mismatches struct{ found []metav1.StatusCause }

func (w *mismatches) add(kind metav1.CauseType, path, text string) {
	if len(w.found) < maxMistakes {
		w.found = append(w.found, metav1.StatusCause{Type: kind, Field: path, Message: text})
	}
}

func (w *mismatches) expected(path, what string, v any) {
	w.add(metav1.CauseTypeFieldValueInvalid, path, fmt.Sprintf("expected %s, got %s", what, describeValue(v)))
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func (w *mismatches) value(path string, v any, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case v == nil || t.Kind() == reflect.Interface:
		return
	case reflect.PointerTo(t).Implements(unmarshaler):
		raw, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(raw, reflect.New(t).Interface())
		}
		if err != nil {
			w.expected(path, customFormat(t), v)
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		fields, ok := v.(map[string]any)
		if !ok {
			w.expected(path, "fields", v)
			return
		}
		known := map[string]reflect.Type{}
		jsonFields(t, known)
		for _, name := range sorted(fields) {
			if ft, is := known[name]; is {
				w.value(join(path, name), fields[name], ft)
			} else {
				w.add(unknownField, join(path, name), "unknown field"+closest(name, known))
			}
		}
	case reflect.Map:
		fields, ok := v.(map[string]any)
		if !ok {
			w.expected(path, "names with values", v)
			return
		}
		for _, name := range sorted(fields) {
			w.value(join(path, name), fields[name], t.Elem())
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			if _, ok := v.(string); !ok {
				w.expected(path, "text in base64", v)
			}
			return
		}
		list, ok := v.([]any)
		if !ok {
			w.expected(path, "a list", v)
			return
		}
		for i, item := range list {
			w.value(fmt.Sprintf("%s[%d]", path, i), item, t.Elem())
		}
	case reflect.String:
		if _, ok := v.(string); !ok {
			what := "text"
			switch v.(type) {
			case json.Number, bool:
				what = "text (put it in quotes)"
			}
			w.expected(path, what, v)
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			w.expected(path, "true or false", v)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := v.(json.Number)
		switch _, err := strconv.ParseInt(string(n), 10, t.Bits()); {
		case !ok:
			w.expected(path, "a number", v)
		case err != nil:
			w.expected(path, fmt.Sprintf("a whole number that fits into %d bits", t.Bits()), v)
		}
	case reflect.Float32, reflect.Float64:
		if _, ok := v.(json.Number); !ok {
			w.expected(path, "a number", v)
		}
	}
}

// customFormat describes the input of a type that has its own decoder.
func customFormat(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[quantity.Quantity]():
		return "an amount such as 100m, 64Mi or 2"
	case reflect.TypeFor[intstr.IntOrString]():
		return "a number, or text such as a name or 25%"
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime]():
		return "a time such as 2026-01-02T15:04:05Z"
	case reflect.TypeFor[metav1.Duration]():
		return "a span of time such as 30s or 2m"
	}
	return "another form"
}

// describeValue describes a value in plain words.
func describeValue(v any) string {
	switch v := v.(type) {
	case string:
		if r := []rune(v); len(r) > 40 {
			v = string(r[:40]) + "…"
		}
		return strconv.Quote(v)
	case map[string]any:
		return "fields"
	case []any:
		return "a list"
	case json.Number:
		return string(v[:min(len(v), 40)])
	}
	return fmt.Sprint(v)
}

// jsonFields collects the fields of a struct by their JSON names.
func jsonFields(t reflect.Type, into map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case name != "":
			into[name] = f.Type
		case f.Anonymous:
			inner := f.Type
			for inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				jsonFields(inner, into)
			}
		}
	}
}

// closest suggests the known field whose name is close to an unknown one.
func closest(name string, known map[string]reflect.Type) string {
	for _, have := range sorted(known) {
		if strings.EqualFold(have, name) || have == name+"s" || have+"s" == name {
			return fmt.Sprintf("; did you mean %s?", have)
		}
	}
	return ""
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
