package bound

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"k8s.io/apimachinery/pkg/api/resource"
)

// A FieldError names the field of an object that exceeds a limit; an empty name is the object
// itself.
type FieldError struct {
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

// Object checks every quantity, number, string, list and map of a decoded value. The error is a
// *FieldError. A value that passes is cheap to compare, add up and encode.
func Object(o any) error {
	if err := Field(o); err != nil {
		return err
	}
	return nil
}

// Field is like Object, but returns a *FieldError.
func Field(o any) *FieldError {
	v := reflect.ValueOf(o)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	return check(v, 0)
}

// counts are the limits of lists by the type of their entries.
var counts = map[reflect.Type]int{
	reflect.TypeFor[corev1.NodeCondition]():  MaxConditions,
	reflect.TypeFor[corev1.PodCondition]():   MaxConditions,
	reflect.TypeFor[metav1.Condition]():      MaxConditions,
	reflect.TypeFor[corev1.ContainerImage](): MaxImages,
	reflect.TypeFor[corev1.NodeAddress]():    MaxAddresses,
	reflect.TypeFor[corev1.PodIP]():          MaxAddresses,
	reflect.TypeFor[corev1.HostIP]():         MaxAddresses,
	reflect.TypeFor[corev1.Taint]():          MaxTaints,
}

var (
	rawExtension = reflect.TypeFor[runtime.RawExtension]()
	fieldsV1     = reflect.TypeFor[metav1.FieldsV1]()
)

// template is the part of a ControllerRevision's data that the hub reads.
type template struct {
	Spec struct {
		Template corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

func check(v reflect.Value, depth int) *FieldError {
	if depth > 2*Depth {
		return wrong("it is nested deeper than %d", Depth)
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return nil
		}
		return check(v.Elem(), depth+1)
	case reflect.String:
		return text(v.String())
	case reflect.Float32, reflect.Float64:
		if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return wrong("%v is not a number that can be stored", f)
		}
	case reflect.Slice, reflect.Array:
		return checkList(v, depth)
	case reflect.Map:
		return checkMap(v, depth, MaxMap)
	case reflect.Struct:
		return checkStruct(v, depth)
	}
	return nil
}

func checkList(v reflect.Value, depth int) *FieldError {
	e := v.Type().Elem()
	if e.Kind() == reflect.Uint8 {
		return nil // bytes may have any value; their number is limited elsewhere
	}
	limit := MaxList
	if n, ok := counts[e]; ok {
		limit = n
	}
	if v.Len() > limit {
		return wrong("it has %d entries, at most %d are kept", v.Len(), limit)
	}
	for i := range v.Len() {
		if err := check(v.Index(i), depth+1); err != nil {
			return under(fmt.Sprintf("[%d]", i), err)
		}
	}
	return nil
}

func checkMap(v reflect.Value, depth, limit int) *FieldError {
	if v.Len() > limit {
		return wrong("it has %d entries, at most %d are kept", v.Len(), limit)
	}
	for it := v.MapRange(); it.Next(); {
		err := check(it.Key(), depth+1)
		if err == nil {
			err = check(it.Value(), depth+1)
		}
		if err != nil {
			return under(fmt.Sprintf("[%.64s]", fmt.Sprint(it.Key())), err)
		}
	}
	return nil
}

func checkStruct(v reflect.Value, depth int) *FieldError {
	t := v.Type()
	switch t {
	case quantityType:
		if err := Quantity(v.Interface().(resource.Quantity)); err != nil {
			return &FieldError{Err: err}
		}
		return nil
	case rawExtension:
		if raw := v.Interface().(runtime.RawExtension); len(raw.Raw) > 0 {
			if err := JSON(raw.Raw, new(template)); err != nil {
				return &FieldError{Err: err}
			}
			var holds template
			if json.Unmarshal(raw.Raw, &holds) == nil {
				return check(reflect.ValueOf(holds), depth+1)
			}
		}
		return nil
	case fieldsV1:
		f := v.Interface().(metav1.FieldsV1)
		if err := nesting(f.GetRawBytes()); err != nil {
			return &FieldError{Err: err}
		}
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		var err *FieldError
		if f.Name == "Labels" && f.Type.Kind() == reflect.Map {
			err = checkMap(v.Field(i), depth+1, MaxLabels)
		} else {
			err = check(v.Field(i), depth+1)
		}
		if err != nil {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name != "":
				return under(name, err)
			case f.Anonymous:
				return err
			}
			return under(f.Name, err)
		}
	}
	return nil
}

func wrong(format string, args ...any) *FieldError {
	return &FieldError{Err: fmt.Errorf(format, args...)}
}

// under adds a name before the field of an error.
func under(name string, err *FieldError) *FieldError {
	sep := "."
	if err.Field == "" || err.Field[0] == '[' {
		sep = ""
	}
	return &FieldError{name + sep + err.Field, err.Err}
}

func text(s string) *FieldError {
	switch {
	case len(s) > MaxString:
		return wrong("it has %d bytes, at most %d are kept", len(s), MaxString)
	case strings.IndexByte(s, 0) >= 0:
		return wrong("%.40q has a NUL character: remove it", s)
	case !utf8.ValidString(s):
		return wrong("%.40q is not valid UTF-8", s)
	}
	return nil
}
