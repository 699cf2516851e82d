package bound

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// hidden reports whether a character is invisible or changes how other characters look: control
// characters except line feed and tab, text directions, zero widths.
func hidden(r rune) bool {
	return r != '\n' && r != '\t' && unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// Hidden reports whether a text has hidden characters or invalid UTF-8.
func Hidden(s string) bool { return strings.ContainsFunc(s, hidden) || !utf8.ValidString(s) }

// Text returns a text of at most `most` bytes, with hidden characters written as numbers.
func Text(s string, most int) string {
	if !Hidden(s) && len(s) <= most {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		part := string(r)
		if hidden(r) {
			part = fmt.Sprintf("\\u%04x", r)
		}
		if b.Len()+len(part) > most-len("…") {
			b.WriteString("…")
			break
		}
		b.WriteString(part)
	}
	return b.String()
}

// Clean applies Text to every string that o points to, in place.
func Clean(o any, most int) { clean(reflect.ValueOf(o), most, 0) }

func clean(v reflect.Value, most, depth int) {
	if depth > 2*Depth {
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			clean(v.Elem(), most, depth+1)
		}
	case reflect.String:
		if s := v.String(); v.CanSet() && (len(s) > most || Hidden(s)) {
			v.SetString(Text(s, most))
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			for i := range v.Len() {
				clean(v.Index(i), most, depth+1)
			}
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			key, keyChanged := cleaned(k, most)
			value, valueChanged := cleaned(v.MapIndex(k), most)
			if keyChanged || valueChanged {
				v.SetMapIndex(k, reflect.Value{})
				v.SetMapIndex(key, value)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				clean(v.Field(i), most, depth+1)
			}
		}
	}
}

// cleaned returns a map's key or value after Clean, and whether it changed.
func cleaned(v reflect.Value, most int) (reflect.Value, bool) {
	if v.Kind() != reflect.String || len(v.String()) <= most && !Hidden(v.String()) {
		return v, false
	}
	return reflect.ValueOf(Text(v.String(), most)).Convert(v.Type()), true
}
