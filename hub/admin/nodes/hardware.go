package nodes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
)

// A section is one part of a device's hardware report.
type section struct {
	Title string
	Facts []frame.Fact
}

// maxFacts bounds each section, because a device's report is untrusted input.
const maxFacts = 64

// hardware shows a device's report, including fields that this hub does not know.
func hardware(raw json.RawMessage) (sections []section) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var report map[string]any
	if d.Decode(&report) != nil {
		return nil
	}
	rest := section{Title: "Other"}
	for _, key := range slices.Sorted(maps.Keys(report)) {
		switch v := report[key].(type) {
		case map[string]any, []any:
			s := section{Title: words(key)}
			s.flatten("", v)
			if len(s.Facts) > 0 {
				sections = append(sections, s)
			}
		default:
			rest.add(key, v)
		}
	}
	if len(rest.Facts) > 0 {
		sections = append(sections, rest)
	}
	return sections
}

// flatten adds all values below v.
func (s *section) flatten(name string, v any) {
	switch v := v.(type) {
	case map[string]any:
		if own, ok := v["name"].(string); ok && name != "" { // an element of a list
			rest := maps.Clone(v)
			delete(rest, "name")
			s.add(own, line(rest))
			return
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			s.flatten(strings.TrimSpace(name+" "+key), v[key])
		}
	case []any:
		plain := true
		for _, e := range v {
			switch e.(type) {
			case map[string]any, []any:
				plain = false
			}
		}
		if plain {
			s.add(name, line(v))
			return
		}
		for i, e := range v {
			s.flatten(strings.TrimSpace(name+" "+strconv.Itoa(i+1)), e)
		}
	default:
		s.add(name, v)
	}
}

func (s *section) add(name string, v any) {
	text := value(name, v)
	if len(s.Facts) < maxFacts && text != "" {
		s.Facts = append(s.Facts, frame.Fact{Name: words(name), Value: text})
	}
}

// line writes a small value on one line.
func line(v any) string {
	var parts []string
	switch v := v.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if text := value(key, v[key]); text != "" {
				parts = append(parts, words(key)+" "+text)
			}
		}
	case []any:
		for _, e := range v {
			parts = append(parts, value("", e))
		}
	}
	return strings.Join(parts, ", ")
}

// inBytes are the names of amounts in bytes.
var inBytes = []string{"memory", "ephemeral", "swap", "bytes", "written"}

func value(name string, v any) string {
	last := name[strings.LastIndexByte(name, ' ')+1:]
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return map[bool]string{true: "yes", false: "no"}[v]
	case json.Number:
		if n, err := v.Int64(); err == nil && slices.Contains(inBytes, last) {
			return format.Bytes(n)
		}
		if last == "celsius" {
			return v.String() + " °C"
		}
		return v.String()
	case nil:
		return ""
	case map[string]any, []any:
		return line(v)
	}
	return fmt.Sprint(v)
}

// words turns memoryMiB into "Memory MiB".
func words(key string) string {
	var b strings.Builder
	before := ' '
	for _, r := range key {
		if unicode.IsUpper(r) && unicode.IsLower(before) {
			b.WriteByte(' ')
		}
		b.WriteRune(r)
		before = r
	}
	text := strings.ReplaceAll(b.String(), "Mi B", "MiB")
	switch text {
	case "":
		return ""
	case "cpu", "cpus", "os":
		return strings.Replace(strings.ToUpper(text), "CPUS", "CPUs", 1)
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
