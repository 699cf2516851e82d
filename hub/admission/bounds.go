package admission

import (
	"reflect"
	"slices"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

// bounds checks the size limits of an object. It runs first, because comparisons, defaults and sums
// rely on the limits.
func bounds(o state.Object) field.ErrorList {
	err := bound.Field(o)
	if err == nil {
		return nil
	}
	return field.ErrorList{{Type: field.ErrorTypeInvalid, Field: err.Field, BadValue: field.OmitValueType{},
		Detail: err.Err.Error()}}
}

// readable refuses invisible and control characters in names, paths and messages. Arguments,
// environment and data of a pod's programs may contain any character except NUL.
func (l *list) readable(o state.Object) {
	if texts := rules[state.KindOf(o)].texts; texts != nil {
		texts(l, o)
	}
	if s, at := podSpecOf(o); s != nil {
		l.printable(reflect.ValueOf(s), at)
	}
}

func (l *list) eventTexts(e *corev1.Event) {
	l.displayText(field.NewPath("message"), e.Message)
	l.displayText(field.NewPath("reason"), e.Reason)
}

func (l *list) nodeTexts(n *corev1.Node) {
	for i, c := range n.Status.Conditions {
		l.displayText(field.NewPath("status", "conditions").Index(i).Child("message"), c.Message)
	}
}

func (l *list) siteTexts(s *fleet.Site) {
	l.displayText(spec.Child("description"), s.Spec.Description)
	l.displayText(spec.Child("location"), s.Spec.Location)
	if m := s.Spec.Maintenance; m != nil {
		l.displayText(spec.Child("maintenance", "reason"), m.Reason)
	}
}

// displayText checks a text that is shown to users. It may contain line feeds.
func (l *list) displayText(p *field.Path, s string) {
	if bound.Hidden(s) {
		l.invalid(p, bound.Text(s, 100),
			"must not contain invisible characters or characters that change the text direction")
	}
}

// programFields are the fields of a pod spec that a device passes to the pod's programs unchanged.
var programFields = []string{"Command", "Args", "Env", "HTTPHeaders"}

// printable checks every string of a pod spec except those of programFields.
func (l *list) printable(v reflect.Value, p *field.Path) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			l.printable(v.Elem(), p)
		}
	case reflect.String:
		if s := v.String(); bound.Hidden(s) || strings.ContainsFunc(s, unicode.IsControl) {
			l.invalid(p, bound.Text(s, 100), "must not contain control or invisible characters")
		}
	case reflect.Slice:
		for i := range v.Len() {
			l.printable(v.Index(i), p.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			l.printable(k, p.Key(bound.Text(k.String(), 100)))
			l.printable(v.MapIndex(k), p.Key(bound.Text(k.String(), 100)))
		}
	case reflect.Struct:
		t := v.Type()
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() || slices.Contains(programFields, f.Name) {
				continue
			}
			at := p
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				at = p.Child(name)
			}
			l.printable(v.Field(i), at)
		}
	}
}
