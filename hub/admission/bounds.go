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

// bounds says in what an object goes beyond what anything may be. Nothing is compared,
// defaulted or added up before that is known.
func bounds(o state.Object) field.ErrorList {
	err := bound.Field(o)
	if err == nil {
		return nil
	}
	return field.ErrorList{{Type: field.ErrorTypeInvalid, Field: err.Field, BadValue: field.OmitValueType{},
		Detail: err.Err.Error()}}
}

// readable refuses characters that nobody sees where people read, and control characters
// where programs would trip over them: in names, paths and messages. What a pod's own
// programs are given (arguments, environment, data) may hold any character but NUL.
func (l *list) readable(o state.Object) {
	if texts := rules[state.KindOf(o)].texts; texts != nil {
		texts(l, o)
	}
	if s, at := podSpecOf(o); s != nil {
		l.words(reflect.ValueOf(s), at)
	}
}

func (l *list) eventTexts(e *corev1.Event) {
	l.shown(field.NewPath("message"), e.Message)
	l.shown(field.NewPath("reason"), e.Reason)
}

func (l *list) nodeTexts(n *corev1.Node) {
	for i, c := range n.Status.Conditions {
		l.shown(field.NewPath("status", "conditions").Index(i).Child("message"), c.Message)
	}
}

func (l *list) siteTexts(s *fleet.Site) {
	l.shown(spec.Child("description"), s.Spec.Description)
	l.shown(spec.Child("location"), s.Spec.Location)
	if m := s.Spec.Maintenance; m != nil {
		l.shown(spec.Child("maintenance", "reason"), m.Reason)
	}
}

// shown checks a text that people read. Line feeds are theirs.
func (l *list) shown(p *field.Path, s string) {
	if bound.Hidden(s) {
		l.invalid(p, bound.Text(s, 100),
			"must not contain characters that do not show, or that change the direction of the text")
	}
}

// free are the fields of a pod spec that go to its own programs as they are.
var free = []string{"Command", "Args", "Env", "HTTPHeaders"}

// words checks every string of a pod spec that is not its programs' own.
func (l *list) words(v reflect.Value, p *field.Path) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			l.words(v.Elem(), p)
		}
	case reflect.String:
		if s := v.String(); bound.Hidden(s) || strings.ContainsFunc(s, unicode.IsControl) {
			l.invalid(p, bound.Text(s, 100), "must not contain control characters, or characters that do not show")
		}
	case reflect.Slice:
		for i := range v.Len() {
			l.words(v.Index(i), p.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			l.words(k, p.Key(bound.Text(k.String(), 100)))
			l.words(v.MapIndex(k), p.Key(bound.Text(k.String(), 100)))
		}
	case reflect.Struct:
		t := v.Type()
		for i := range t.NumField() {
			f := t.Field(i)
			if !f.IsExported() || slices.Contains(free, f.Name) {
				continue
			}
			at := p
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
				at = p.Child(name)
			}
			l.words(v.Field(i), at)
		}
	}
}
