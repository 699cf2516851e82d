package admission

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var update = flag.Bool("update", false, "write the README's table of pod fields")

// A podField is a field of a pod's types, with the way to one of it: what leads there
// is honoured.
type podField struct {
	owner, name string
	support     Support
	why         string
	at          []reflect.StructField // from PodSpec; the last one is the field
}

// podFields walks through every field of PodSpec and of what is honoured in it.
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
			if support == Honoured && inner.Kind() == reflect.Struct && strings.HasPrefix(inner.PkgPath(), k8sAPI) && !seen[inner.Name()] {
				seen[inner.Name()] = true
				walk(inner, inner.Name(), here)
			}
		}
	}
	walk(reflect.TypeFor[corev1.PodSpec](), "PodSpec", nil)
	return all
}

// asked is a pod spec that asks for something in the field f, and the field's path.
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

// ask writes something that is not what happens without it.
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

// Nothing that is accepted is without effect and without a word: every field is honoured,
// or warned of with its sentence, or refused with its.
func TestEveryFieldOfAPodIsHonouredWarnedOfOrRefused(t *testing.T) {
	n := map[Support]int{}
	for _, f := range podFields() {
		n[f.support]++
		spec, at := asked(f)
		if f.name == "hostUsers" { // true is what happens without it
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
			if slices.ContainsFunc(errs, func(e *field.Error) bool { return e.Field == at }) || slices.Contains(warned, warning) {
				t.Errorf("%s of %s: %v %v", f.name, f.owner, errs, warned)
			}
		case Ignored:
			if f.why == "" || !slices.Contains(warned, warning) {
				t.Errorf("%s of %s: warned of as %q, want %q", f.name, f.owner, warned, warning)
			}
		case Refused:
			if f.why == "" || !slices.Contains(messages(errs), sentence) {
				t.Errorf("%s of %s: refused as %q, want %q", f.name, f.owner, messages(errs), sentence)
			}
		}
	}
	if n[Honoured] < 150 || n[Ignored] < 5 || n[Refused] < 40 {
		t.Errorf("the walk came to %v", n)
	}
}

// The README's table is what the walk finds: go test ./hub/admission -run README -update
// writes it.
func TestTheREADMEsTableOfPodFields(t *testing.T) {
	type row struct{ done, warned, refused []string }
	rows, order := map[string]*row{}, []string{}
	for _, f := range podFields() {
		r := rows[f.owner]
		if r == nil {
			r = &row{}
			rows[f.owner], order = r, append(order, f.owner)
		}
		switch code := "`" + f.name + "`"; f.support {
		case Honoured:
			r.done = append(r.done, code)
		case Ignored:
			r.warned = append(r.warned, code+": "+f.why)
		case Refused:
			if f.why == "devices do not implement it" || f.why == whyVolume {
				r.refused = append(r.refused, code)
			} else {
				r.refused = append(r.refused, code+": "+f.why)
			}
		}
	}
	var b strings.Builder
	var whole []string
	b.WriteString("\n| Type | Honoured | Accepted with a warning: no effect | Refused |\n|---|---|---|---|\n")
	for _, owner := range order {
		r := rows[owner]
		if len(r.warned)+len(r.refused) == 0 {
			whole = append(whole, owner)
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", owner, strings.Join(r.done, " "), strings.Join(r.warned, "; "), strings.Join(r.refused, "; "))
	}
	slices.Sort(whole)
	fmt.Fprintf(&b, "\nHonoured whole: %s.\n", strings.Join(whole, ", "))

	const begin, end = "<!-- pod fields: begin -->\n", "<!-- pod fields: end -->\n"
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	table, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("README.md has no lines %q and %q", begin, end)
	}
	if want := b.String() + "\n"; table != want {
		if !*update {
			t.Fatalf("README.md tells of other fields: run go test ./hub/admission -run README -update\ngot:\n%s\nwant:\n%s", table, want)
		}
		if err := os.WriteFile("../../README.md", []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
