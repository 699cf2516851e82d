package admission

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A list collects all errors of an object.
type list struct{ errs field.ErrorList }

// all adds the errors of a library. The library iterates over maps, so the errors of one field are
// sorted.
func (l *list) all(errs field.ErrorList) {
	for from := 0; from < len(errs); {
		to := from + 1
		for to < len(errs) && errs[to].Field == errs[from].Field {
			to++
		}
		slices.SortStableFunc(errs[from:to], func(a, b *field.Error) int { return strings.Compare(a.Error(), b.Error()) })
		from = to
	}
	l.errs = append(l.errs, errs...)
}
func (l *list) invalid(p *field.Path, v any, msg string) {
	l.errs = append(l.errs, field.Invalid(p, v, msg))
}
func (l *list) required(p *field.Path, msg string)  { l.errs = append(l.errs, field.Required(p, msg)) }
func (l *list) forbidden(p *field.Path, msg string) { l.errs = append(l.errs, field.Forbidden(p, msg)) }
func (l *list) duplicate(p *field.Path, v any)      { l.errs = append(l.errs, field.Duplicate(p, v)) }
func (l *list) each(p *field.Path, v any, messages []string) {
	for _, msg := range messages {
		l.invalid(p, v, msg)
	}
}

// Limits of an error response, because an invalid value may be as large as a request.
const (
	maxMistakes = 32
	maxRepeated = 256 // characters of a value
)

// shorten shortens errors to a length that people can read.
func shorten(errs field.ErrorList) field.ErrorList {
	more := len(errs) - maxMistakes
	errs = slices.Clone(errs[:min(len(errs), maxMistakes)])
	for i, err := range errs {
		v := reflect.ValueOf(err.BadValue)
		if v.Kind() != reflect.String || v.Len() <= maxRepeated {
			continue
		}
		cut := *err
		cut.BadValue = strings.ToValidUTF8(v.String()[:maxRepeated], "") + "…"
		errs[i] = &cut
	}
	if more > 0 {
		errs = append(errs, field.Invalid(field.NewPath(errs[maxMistakes-1].Field), field.OmitValueType{},
			fmt.Sprintf("and %d more mistakes", more)))
	}
	return errs
}

// oneOf checks that a value is one of the known values. An empty value is reported as required,
// unless it is known.
func oneOf[T ~string](l *list, p *field.Path, v T, known ...T) {
	switch {
	case slices.Contains(known, v):
	case v == "":
		l.required(p, "")
	default:
		l.errs = append(l.errs, field.NotSupported(p, v, known))
	}
}

func (l *list) atLeast(p *field.Path, v, least int64) {
	if v >= least {
		return
	}
	switch least {
	case 0:
		l.invalid(p, v, "must be greater than or equal to 0")
	case 1:
		l.invalid(p, v, "must be greater than zero")
	default:
		l.invalid(p, v, fmt.Sprintf("must be greater than or equal to %d", least))
	}
}

func (l *list) quantity(p *field.Path, q resource.Quantity, whole bool) {
	if q.Sign() < 0 {
		l.invalid(p, q.String(), "must be greater than or equal to 0")
	}
	if whole && q.MilliValue()%1000 != 0 {
		l.invalid(p, q.String(), "must be an integer")
	}
}

// intOrPercent checks a number such as 2 or 25%; atMost100 limits a percentage to 100%.
func (l *list) intOrPercent(p *field.Path, v *intstr.IntOrString, atMost100 bool) {
	switch {
	case v == nil:
	case v.Type == intstr.Int:
		l.atLeast(p, int64(v.IntVal), 0)
	default:
		l.each(p, v.StrVal, validation.IsValidPercent(v.StrVal))
		if atMost100 && percent(v) > 100 {
			l.invalid(p, v.StrVal, "must not be greater than 100%")
		}
	}
}

// percent parses "25%"; it returns 0 for anything else.
func percent(v *intstr.IntOrString) int64 {
	number, ok := strings.CutSuffix(v.StrVal, "%")
	if !ok || len(validation.IsValidPercent(v.StrVal)) > 0 {
		return 0
	}
	if len(number) > 9 {
		return 1 << 32
	}
	var n int64
	for _, digit := range number {
		n = n*10 + int64(digit-'0')
	}
	return n
}

func isZero(v *intstr.IntOrString) bool {
	return v == nil || v.Type == intstr.Int && v.IntVal == 0 || v.Type == intstr.String && percent(v) == 0
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func label(l *list, p *field.Path, v string)     { l.each(p, v, validation.IsDNS1123Label(v)) }
func subdomain(l *list, p *field.Path, v string) { l.each(p, v, validation.IsDNS1123Subdomain(v)) }

// relative refuses an absolute path and "..".
func relative(l *list, p *field.Path, v string) {
	if strings.HasPrefix(v, "/") {
		l.invalid(p, v, "must be a relative path")
	}
	noDotDot(l, p, v)
}

// noDotDot refuses ".." in a path.
func noDotDot(l *list, p *field.Path, v string) {
	if slices.Contains(strings.Split(v, "/"), "..") {
		l.invalid(p, v, "must not contain '..'")
	}
}

// fileName checks a relative path that must not begin with "..".
func fileName(l *list, p *field.Path, v string) {
	relative(l, p, v)
	if strings.HasPrefix(v, "..") && !strings.HasPrefix(v, "../") {
		l.invalid(p, v, "must not start with '..'")
	}
}

func (l *list) mode(p *field.Path, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		l.invalid(p, *mode, "must be a number between 0 and 0777 (octal), both inclusive")
	}
}
