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

// JSON checks that decoding JSON into a value of into's type has a bounded cost: nesting, numbers,
// and quantities where the type has them. into may be nil for a type without quantities. Invalid
// JSON passes; the decoder reports it.
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

// nesting checks the depth of nesting without recursion.
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

// suspicious reports whether a text may have a number that is too large, also after unescaping.
// part reports whether an exponent is part of a word and does not count; nil: every exponent
// counts. It must be fast, because a starting hub calls it for every stored byte.
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

// exponential reports whether two or more digits follow the letter of an exponent.
func exponential(data []byte, letter int) bool {
	at := letter + 1
	for at < len(data) && (data[at] == '+' || data[at] == '-') {
		at++
	}
	return at+1 < len(data) && class[data[at]] == digit && class[data[at+1]] == digit
}

// Classes of bytes in numbers.
const (
	plain = iota
	digit
	exponent // the letter of an exponent
	escape
)

// class is the class of each byte.
var class = func() (of [256]uint8) {
	for _, c := range "0123456789._" {
		of[c] = digit
	}
	of['e'], of['E'], of['\\'] = exponent, exponent, escape
	return of
}()

// inWord reports whether a letter is before the number of an exponent, or a letter or dash after
// it. Uids and digests have many such exponents, and no decoder reads them as numbers. The letter
// of an escape sequence does not count.
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

// typeOf returns the type that a value points to.
func typeOf(into any) reflect.Type {
	t := reflect.TypeOf(into)
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// errNoJSON ends a walk through invalid or incomplete JSON, which the decoder reports later.
// Without it the walk could loop for ever.
var errNoJSON = errors.New("no JSON")

// A walk goes through a text and its target type together.
type walk struct {
	json   *json.Decoder
	shapes map[reflect.Type]*shape // cache of types
}

// A shape is what a walk needs to know about a type.
type shape struct {
	opaque bool                    // the type decodes itself and has no members
	fields map[string]reflect.Type // fields of a struct, by folded names
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

// value checks one value. With a nil type it has no quantities.
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

// member returns the type of an object's member.
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

// fold maps names that a decoder may treat as equal to the same text.
func fold(name string) string { return strings.ToUpper(strings.ToLower(name)) }

var errDeep = fmt.Errorf("it is nested deeper than %d", Depth)

// errAliases refuses YAML that is small only because of its aliases.
var errAliases = errors.New("its aliases expand beyond the limit: write the values out")
