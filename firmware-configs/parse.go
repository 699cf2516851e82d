package firmwareconfigs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"flotilla.dev/shared/fleet"
)

// MaxSize is the largest profile, in bytes.
const MaxSize = 64 << 10

// A shape is the format of one place in a profile. At most one field is set, except number with
// values; the zero shape is a string.
type shape struct {
	keys   map[string]shape // a mapping with these keys
	each   *shape           // a mapping with free keys, each to this shape
	values bool             // a mapping of free keys to strings, or with number to whole numbers
	items  *shape           // a list
	number bool             // a whole number, or with values whole numbers
	yes    bool             // true or false
}

var (
	texts  = shape{items: &shape{}}
	free   = shape{values: true}
	soft   = shape{each: &shape{keys: map[string]shape{"value": {}, "for": {}}}}
	taints = shape{items: &shape{keys: map[string]shape{"key": {}, "value": {}, "effect": {}}}}
	format = shape{keys: map[string]shape{
		"apiVersion": {},
		"kind":       {},
		"metadata":   {keys: map[string]shape{"name": {}, "labels": free, "annotations": free}},
		"spec": {keys: map[string]shape{
			"title": {},
			"match": {keys: map[string]shape{
				"compatible": texts,
				"arch":       texts,
				"memoryMiB":  {keys: map[string]shape{"min": {number: true}, "max": {number: true}}},
			}},
			"platforms": texts,
			"resources": {keys: map[string]shape{"systemReserved": free, "agentReserved": free, "evictionHard": free,
				"evictionSoft": soft, "evictionMaxPodGracePeriod": {number: true}, "sharing": {values: true, number: true}}},
			"labels": free,
			"taints": taints,

			"peripherals": {items: &shape{keys: map[string]shape{
				"name": {}, "type": {}, "byID": {}, "bus": {number: true}, "address": {number: true}, "family": {}, "line": {},
				"pull": {},
			}}},
			"extends": texts,
			"boot": {keys: map[string]shape{
				"backend": {}, "trial": {}, "config": settings, "cmdline": cmdline,
			}},
			"watchdog": {keys: map[string]shape{"hardware": {yes: true}, "runtimeSec": {number: true},
				"rebootSec": {number: true}}},
			"health": {keys: map[string]shape{"deadline": {}, "stableFor": {}, "checks": texts}},
		}},
	}}

	settings = shape{keys: map[string]shape{"all": free, "dtparam": texts, "dtoverlay": texts}}
	cmdline  = shape{keys: map[string]shape{"add": texts, "remove": texts}}

	// overlay is the format of an overlay, which cannot extend other overlays.
	overlay = shape{keys: map[string]shape{
		"apiVersion": {}, "kind": {}, "metadata": {keys: map[string]shape{"name": {}}},
		"spec": {keys: map[string]shape{
			"title": {}, "labels": free, "taints": taints,
			"resources": {keys: map[string]shape{"systemReserved": free, "agentReserved": free, "evictionHard": free,
				"evictionSoft": soft}},
			"boot": {keys: map[string]shape{"config": settings, "cmdline": cmdline}},
		}},
	}}
)

// Parse parses a profile, in YAML or JSON, of at most MaxSize. The error lists every mistake with
// its place, one per line. Unknown and repeated keys are mistakes.
func Parse(data []byte) (*fleet.BoardProfile, error) {
	p, err := parse(data, format)
	if err != nil {
		return nil, err
	}
	var wrong []error
	for _, err := range Validate(p) {
		wrong = append(wrong, err)
	}
	return p, errors.Join(wrong...)
}

// parse parses one document of the given format.
func parse(data []byte, format shape) (*fleet.BoardProfile, error) {
	if len(data) > MaxSize {
		return nil, fmt.Errorf("the profile has %d bytes: at most %d are allowed", len(data), MaxSize)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("the profile is empty: start with apiVersion, kind, metadata and spec")
	} else if err != nil {
		return nil, fmt.Errorf("read the profile's YAML: %w", err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("the file has more than one document: write one profile per file")
	}
	var r reader
	tree := r.read(doc.Content[0], format, "")
	if r.errs != nil {
		return nil, errors.Join(r.errs...)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, fmt.Errorf("convert the profile to JSON: %w", err)
	}
	p := new(fleet.BoardProfile)
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("read the profile: %w", err)
	}
	return p, nil
}

// A reader converts YAML to the values of a shape, and collects mistakes.
type reader struct{ errs []error }

func (r *reader) wrong(n *yaml.Node, path, format string, args ...any) {
	if path == "" {
		path = "the profile"
	}
	r.errs = append(r.errs, fmt.Errorf("%s (line %d): %s", path, n.Line, fmt.Sprintf(format, args...)))
}

func (r *reader) read(n *yaml.Node, s shape, path string) any {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		r.wrong(n, path, "anchors and aliases are not allowed: write the value out")
	case n.Tag == "!!null":
		r.wrong(n, path, "has no value: give it a value or omit the key")
	case s.keys != nil || s.values || s.each != nil:
		return r.mapping(n, s, path)
	case s.items != nil:
		return r.list(n, *s.items, path)
	case n.Kind != yaml.ScalarNode:
		r.wrong(n, path, "must be a single value, not a list or mapping")
	case s.yes:
		v, err := strconv.ParseBool(n.Value)
		if err != nil || n.Tag != "!!bool" {
			r.wrong(n, path, "is %q: write true or false", n.Value)
		}
		return v
	case s.number:
		v, err := strconv.ParseInt(n.Value, 0, 64) // parses 0x76 too
		if err != nil || n.Tag != "!!int" {
			r.wrong(n, path, "is %q: write a whole number", n.Value)
		}
		return v
	case n.Tag != "!!str":
		r.wrong(n, path, "%s is not a text in YAML: write it in quotes, %q", n.Value, n.Value)
	default:
		return n.Value
	}
	return nil
}

func (r *reader) list(n *yaml.Node, item shape, path string) any {
	if n.Kind != yaml.SequenceNode {
		r.wrong(n, path, "must be a list")
		return nil
	}
	list := make([]any, 0, len(n.Content))
	for i, c := range n.Content {
		list = append(list, r.read(c, item, fmt.Sprintf("%s[%d]", path, i)))
	}
	return list
}

func (r *reader) mapping(n *yaml.Node, s shape, path string) any {
	if n.Kind != yaml.MappingNode {
		r.wrong(n, path, "must be a mapping of keys to values")
		return nil
	}
	m := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		want, ok := s.keys[key.Value]
		if s.values {
			want = shape{number: s.number}
		} else if s.each != nil {
			want = *s.each
		}
		_, twice := m[key.Value]
		switch {
		case !ok && !s.values && s.each == nil:
			r.wrong(key, at, "unknown key: use one of %s", keysOf(s))
		case twice:
			r.wrong(key, at, "appears twice: remove one")
		default:
			m[key.Value] = r.read(value, want, at)
		}
	}
	return m
}

func keysOf(s shape) string {
	var keys []string
	for k := range s.keys {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}
