package wire

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/json"

	"flotilla.dev/shared/bound"
)

// A payload is bytes to parse, with their name for errors.
type payload struct {
	name string
	data []byte
	max  int // bytes
}

// bytesPerValue limits objects and lists: a payload of maximal length may have one for each 32
// bytes. Hubs and devices send at least 50 bytes for each.
const bytesPerValue = 32

// decode parses a payload as Kubernetes does: field names are case sensitive, unknown fields are
// ignored, repeated fields are refused. Size, encoding and nesting are checked before any
// allocation.
func decode(p payload, into any) error {
	if len(p.data) > p.max {
		return fmt.Errorf("%s: payload has %d bytes, at most %d are read", p.name, len(p.data), p.max)
	}
	apart := false // pods are parsed one by one, because the device runs the valid ones
	switch into.(type) {
	case *rawDesired, *corev1.Pod, *corev1.ConfigMap, *corev1.Secret:
		apart = true
	}
	t, tames := into.(sanitizer)
	err := scan(p.data, apart || tames)
	if err == nil {
		err = bound.JSON(p.data, into)
	}
	if most := p.max / bytesPerValue; err == nil && bound.CountJSON(p.data).Objects > most {
		err = fmt.Errorf("it has more than %d objects and lists", most)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	strict, err := json.UnmarshalStrict(p.data, into, json.DisallowDuplicateFields)
	if err == nil && len(strict) > 0 {
		err = strict[0]
	}
	if err != nil {
		return fmt.Errorf("%s: %s", p.name, plainWords(err))
	}
	if tames {
		t.sanitize()
	}
	if apart {
		return nil
	}
	if err := bound.Object(into); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

// A sanitizer is a payload that may contain too much data or hidden characters. It is shortened
// instead of refused. bound.Object refuses a remaining NUL.
type sanitizer interface{ sanitize() }

var nulEscape = []byte(`\u0000`)

// scan refuses input that a JSON decoder accepts: invalid UTF-8, which it replaces silently; NUL in
// strings, unless the caller allows it; and values other than an object.
func scan(data []byte, nul bool) error {
	if !utf8.Valid(data) {
		return errors.New("payload is not valid UTF-8")
	}
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return errors.New("payload is not a JSON object")
	}
	if !nul && hasNUL(data) {
		return errors.New("payload has a NUL character in a string")
	}
	return nil
}

// hasNUL reports whether a JSON string has a NUL character.
func hasNUL(data []byte) bool {
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		if bytes.HasPrefix(data[i:], nulEscape) {
			return true
		}
		i++ // a backslash occurs only in strings
	}
	return false
}

// plainWords rewrites a decoder's error with JSON's types instead of Go's.
func plainWords(err error) string {
	text := strings.TrimPrefix(err.Error(), "json: ")
	rest, ok := strings.CutPrefix(text, "cannot unmarshal ")
	if !ok {
		return clip(text)
	}
	got, where, ok := strings.Cut(rest, " into Go ")
	if !ok {
		return clip(text)
	}
	field := "the payload"
	if s, found := strings.CutPrefix(where, "struct field "); found {
		where = s
		if name, _, found := strings.Cut(s, " of type "); found {
			_, field, _ = strings.Cut(name, ".")
		}
	}
	goType := where[strings.LastIndexByte(where, ' ')+1:]
	want := "an object"
	switch {
	case strings.HasPrefix(goType, "uint") && goType != "[]uint8":
		want = "a whole number from 0 that fits " + strings.TrimLeft(goType, "uint") + " bits"
	case strings.HasPrefix(goType, "int"):
		want = "a whole number that fits " + strings.TrimLeft(goType, "int") + " bits"
	case goType == "bool":
		want = "true or false"
	case goType == "[]uint8":
		want = "base64 in a string"
	case strings.HasPrefix(goType, "[]"):
		want = "a list"
	case goType == "string", strings.Contains(goType, "types."), strings.HasPrefix(goType, "v1."):
		want = "a string"
		if strings.HasSuffix(goType, "Status") || strings.HasSuffix(goType, "Spec") {
			want = "an object"
		}
	}
	article := "a"
	if got == "array" || got == "object" {
		article = "an"
	}
	return clip(fmt.Sprintf("%s is %s %s, but must be %s", field, article, got, want))
}

// clip shortens an error to one line. The error may quote the payload.
func clip(s string) string {
	const most = 300
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
