package bound

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// JSON tells whether decoding JSON into a value of that type has a bounded cost:
// nesting, numbers, and the quantities where the type has them. into may be nil: then
// the text is not for a type with quantities. Text that is no JSON is for the decoder
// to refuse.
func JSON(data []byte, into any) error {
	if err := nesting(data); err != nil {
		return err
	}
	if !suspicious(data, inWord) {
		return nil
	}
	w := walk{json: json.NewDecoder(bytes.NewReader(data))}
	w.json.UseNumber()
	if err := w.value(typeOf(into)); err != nil && err != errNoJSON {
		return err
	}
	return nil
}

// nesting refuses what is nested too deep, before anything recurses into it.
func nesting(data []byte) error {
	depth, inString := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > Depth {
				return errDeep
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// suspicious tells whether a text has a number in it, or what becomes one when it is
// unescaped, that is worth a look at where it stands. What has an exponent that part is true of
// is none; nil: everything may be one. A hub that starts looks at each byte that it remembers so.
func suspicious(data []byte, part func(data []byte, letter int) bool) bool {
	run := 0
	for i, c := range data {
		switch class[c] {
		case plain:
			run = 0
		case digit:
			if run++; run > MaxNumber/2 {
				return true
			}
		case exponent:
			if run > 0 && exponential(data, i) && (part == nil || !part(data, i)) {
				return true
			}
			run = 0
		case escape:
			if i+1 < len(data) && data[i+1] == 'u' {
				return true
			}
			run = 0
		}
	}
	return false
}

// exponential tells whether what follows the letter of an exponent has two digits or more.
func exponential(data []byte, letter int) bool {
	at := letter + 1
	for at < len(data) && (data[at] == '+' || data[at] == '-') {
		at++
	}
	return at+1 < len(data) && class[data[at]] == digit && class[data[at+1]] == digit
}

// What a byte may be of a number.
const (
	plain = iota
	digit
	exponent // its letter
	escape
)

// class is what each byte is.
var class = func() (of [256]uint8) {
	for _, c := range "0123456789._" {
		of[c] = digit
	}
	of['e'], of['E'], of['\\'] = exponent, exponent, escape
	return of
}()

// inWord tells of an exponent in JSON that a letter stands before its number, or a letter or dash
// behind it, which no decoder reads as one then: uids and digests are full of such. The letter of
// an escape before it is not one.
func inWord(data []byte, exponent int) bool {
	end := exponent + 1
	for end < len(data) && (data[end] == '+' || data[end] == '-') {
		end++
	}
	for end < len(data) && data[end] >= '0' && data[end] <= '9' {
		end++
	}
	if end < len(data) && (letter(data[end]) || data[end] == '-') {
		return true
	}
	i := exponent - 1
	for i >= 0 && (data[i] >= '0' && data[i] <= '9' || data[i] == '.' || data[i] == '_' || data[i] == '+' ||
		data[i] == '-') {
		i--
	}
	return i > 0 && letter(data[i]) && data[i-1] != '\\'
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

var quantityType = reflect.TypeFor[resource.Quantity]()

// typeOf is the type that a value points to.
func typeOf(into any) reflect.Type {
	t := reflect.TypeOf(into)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// errNoJSON ends a walk: the text is no JSON, or ends too early, which the decoder will say. A
// walk that went on would never end, because what follows is there for ever.
var errNoJSON = errors.New("no JSON")

// A walk goes through a text and the type that it is for, side by side.
type walk struct {
	json   *json.Decoder
	shapes map[reflect.Type]*shape // of the types that it has met
}

// A shape is what a walk knows of a type.
type shape struct {
	opaque bool                    // it reads itself, and has no members
	fields map[string]reflect.Type // a struct's, by their folded names
}

func (w *walk) shape(t reflect.Type) *shape {
	if known, ok := w.shapes[t]; ok {
		return known
	}
	s := &shape{opaque: t != quantityType && reflect.PointerTo(t).Implements(unmarshaler)}
	if t.Kind() == reflect.Struct && !s.opaque {
		s.fields = map[string]reflect.Type{}
		members(t, s.fields)
	}
	if w.shapes == nil {
		w.shapes = map[reflect.Type]*shape{}
	}
	w.shapes[t] = s
	return s
}

// value reads one value. A type of nil has no quantities.
func (w *walk) value(t reflect.Type) error {
	tok, err := w.json.Token()
	if err != nil {
		return errNoJSON
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == rawExtension {
		t = reflect.TypeFor[template]()
	}
	switch tok := tok.(type) {
	case json.Delim:
		for w.json.More() {
			inside := t
			if tok == '{' {
				key, err := w.json.Token()
				name, ok := key.(string)
				if err != nil || !ok {
					return errNoJSON
				}
				inside = w.member(t, name)
			} else if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
				inside = t.Elem()
			}
			if err := w.value(inside); err != nil {
				return err
			}
		}
		if _, err := w.json.Token(); err != nil {
			return errNoJSON
		}
	case json.Number:
		if len(tok) > MaxNumber {
			return fmt.Errorf("number %.20s… has %d characters, at most %d are read", tok, len(tok), MaxNumber)
		}
		if t == quantityType {
			return QuantityText(tok.String())
		}
	case string:
		if t == quantityType {
			return QuantityText(tok)
		}
	}
	return nil
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// member is the type of what stands under a name in an object.
func (w *walk) member(t reflect.Type, name string) reflect.Type {
	if t == nil {
		return nil
	}
	switch s := w.shape(t); {
	case s.opaque:
		return nil
	case t.Kind() == reflect.Map:
		return t.Elem()
	default:
		return s.fields[fold(name)]
	}
}

func members(t reflect.Type, into map[string]reflect.Type) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous {
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				members(inner, into)
				continue
			}
		}
		if name == "" {
			name = f.Name
		}
		into[fold(name)] = f.Type
	}
}

// fold makes names alike that a decoder may take for one.
func fold(name string) string { return strings.ToUpper(strings.ToLower(name)) }

var errDeep = fmt.Errorf("it is nested deeper than %d", Depth)

// errAliases is of YAML that is small only as long as nobody reads it.
var errAliases = errors.New("its aliases make it bigger than is read: write the values out")
