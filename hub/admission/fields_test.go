package admission

import (
	"flag"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/web/manual/manualtest"
)

var update = flag.Bool("update", false, "write the manual's tables of pod fields")

// A podField is a field of a pod's types, with a path of honoured fields to it.
type podField struct {
	owner, name string
	support     Support
	why         string
	at          []reflect.StructField // the path from PodSpec; its last field is the podField
}

// podFields visits every field of PodSpec and of all honoured types below it.
func podFields() (all []podField) {
	seen := map[string]bool{}
	var walk func(reflect.Type, string, []reflect.StructField)
	walk = func(typ reflect.Type, owner string, at []reflect.StructField) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			here := append(slices.Clone(at), f)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && name == "" {
				walk(f.Type, owner, here)
				continue
			}
			support, why := SupportOf(owner, name)
			all = append(all, podField{owner, name, support, why, here})
			inner := f.Type
			for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
				inner = inner.Elem()
			}
			if support == Honoured && inner.Kind() == reflect.Struct && strings.HasPrefix(inner.PkgPath(), k8sAPI) &&
				!seen[inner.Name()] {
				seen[inner.Name()] = true
				walk(inner, inner.Name(), here)
			}
		}
	}
	walk(reflect.TypeFor[corev1.PodSpec](), "PodSpec", nil)
	return all
}

// asked returns a pod spec that sets the field f, and the field's path.
func asked(f podField) (*corev1.PodSpec, string) {
	spec := &corev1.PodSpec{}
	v, p := reflect.ValueOf(spec).Elem(), field.NewPath("spec")
	for i, step := range f.at {
		v = v.FieldByIndex(step.Index)
		if name, _, _ := strings.Cut(step.Tag.Get("json"), ","); name != "" {
			p = p.Child(name)
		}
		if i == len(f.at)-1 {
			ask(v)
			break
		}
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			if v.Kind() == reflect.Pointer {
				v.Set(reflect.New(v.Type().Elem()))
				v = v.Elem()
			} else {
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
				v, p = v.Index(0), p.Index(0)
			}
		}
	}
	return spec, p.String()
}

// ask sets a value that differs from the default behaviour.
func ask(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		ask(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		ask(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		ask(k)
		v.SetMapIndex(k, e)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				ask(v.Field(i))
				return
			}
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	}
}

// Every field has an effect or a message.
func TestEveryPodFieldIsHonouredWarnedAboutOrRefused(t *testing.T) {
	n := map[Support]int{}
	for _, f := range podFields() {
		n[f.support]++
		spec, at := asked(f)
		if f.name == "hostUsers" { // true is the default
			spec.HostUsers = new(bool)
		}
		errs := field.ErrorList{}
		l := &list{}
		l.unsupported(spec, field.NewPath("spec"))
		errs = append(errs, l.errs...)
		warned := Warnings(&corev1.Pod{Spec: *spec})
		sentence := fmt.Sprintf("%s: Forbidden: is not supported: %s", at, f.why)
		warning := fmt.Sprintf("%s has no effect: %s", at, f.why)
		switch f.support {
		case Honoured:
			if slices.ContainsFunc(errs, func(e *field.Error) bool { return e.Field == at }) || slices.Contains(warned,
				warning) {
				t.Errorf("%s of %s is honoured, but refused as %v or warned about as %v", f.name, f.owner, errs, warned)
			}
		case Ignored:
			if f.why == "" || !slices.Contains(warned, warning) {
				t.Errorf("%s of %s: the warnings are %q, want %q", f.name, f.owner, warned, warning)
			}
		case Refused:
			if f.why == "" || !slices.Contains(messages(errs), sentence) {
				t.Errorf("%s of %s: the errors are %q, want %q", f.name, f.owner, messages(errs), sentence)
			}
		}
	}
	if n[Honoured] < 150 || n[Ignored] < 5 || n[Refused] < 40 {
		t.Errorf("the walk found too few fields: %v", n)
	}
}

// The manual's tables match the code. A type has a row for all fields that are handled alike; types
// whose fields are all honoured share one table. go test ./hub/admission -run Manual -update writes
// the tables.
func TestTheManualsTablesOfPodFields(t *testing.T) {
	type row struct{ owner, here string }
	var owners []string
	heres, fields := map[string][]string{}, map[row][]string{}
	for _, f := range podFields() {
		r := row{f.owner, "yes"}
		switch f.support {
		case Ignored:
			r.here = "**no effect**, with a warning: " + f.why
		case Refused:
			r.here = "**refused**: " + f.why
		}
		if heres[f.owner] == nil {
			owners = append(owners, f.owner)
		}
		if fields[r] == nil {
			heres[f.owner] = append(heres[f.owner], r.here)
		}
		fields[r] = append(fields[r], "`"+f.name+"`")
	}
	var b, whole strings.Builder
	for _, owner := range owners {
		if slices.Equal(heres[owner], []string{"yes"}) {
			fmt.Fprintf(&whole, "| `%s` | %s |\n", owner, strings.Join(fields[row{owner, "yes"}], ", "))
			continue
		}
		fmt.Fprintf(&b, "\n## `%s`\n\n| Fields | Honoured |\n|---|---|\n", owner)
		for _, here := range heres[owner] {
			fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(fields[row{owner, here}], ", "), here)
		}
	}
	text := b.String() + "\n## Types of which every field is honoured\n\n| Type | Fields |\n|---|---|\n" + whole.String()
	manualtest.Block(t, "../../web/manual/pod-fields.md", "pod fields", text+"\n", *update)
}
