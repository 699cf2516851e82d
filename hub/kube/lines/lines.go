// Package lines finds the line of a field in a YAML text.
//
// Errors name an object's field by its path, such as spec.template.spec.containers[0].image, but
// users look for a line. The package decides nothing, and returns nothing for a field that it
// cannot find. Packages body and admin/manifest use it.
package lines

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"flotilla.dev/shared/bound"
)

// An Object is one object of a text.
type Object struct{ node *yaml.Node }

// Objects returns the objects of all documents of a text. It splits lists, skips empty documents,
// and stops at invalid YAML.
func Objects(text []byte) (all []Object) {
	if bound.LimitYAML(text) != nil {
		return nil
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		if d.Decode(&doc) != nil {
			return all
		}
		if len(doc.Content) == 0 || doc.Content[0].Kind == yaml.ScalarNode && doc.Content[0].Tag == "!!null" {
			continue
		}
		root := doc.Content[0]
		kind, _ := child(root, "kind")
		items, _ := child(root, "items")
		if kind == nil || items == nil || items.Kind != yaml.SequenceNode || !strings.HasSuffix(kind.Value, "List") {
			all = append(all, Object{root})
			continue
		}
		for _, item := range items.Content {
			all = append(all, Object{item})
		}
	}
}

// Of returns the line of a field, counted from 1, or 0 if not found. For a missing field it returns
// the line of the field that should contain it.
func (o Object) Of(path string) int {
	if o.node == nil || path == "" {
		return 0
	}
	at, line := o.node, 0
	for path != "" {
		for at.Kind == yaml.AliasNode {
			at = at.Alias
		}
		next, key, rest := step(at, path)
		if next == nil {
			return line
		}
		at, line, path = next, key.Line, rest
	}
	return line
}

// step splits the first part off a path. It uses the longest matching key, because keys such as
// labels may contain dots.
func step(at *yaml.Node, path string) (next, key *yaml.Node, rest string) {
	if inner, ok := strings.CutPrefix(path, "["); ok {
		name, rest, ok := strings.Cut(inner, "]")
		if !ok {
			return nil, nil, ""
		}
		rest = strings.TrimPrefix(rest, ".")
		if at.Kind == yaml.MappingNode {
			next, key = child(at, strings.Trim(name, `"`))
			return next, key, rest
		}
		var i int
		if _, err := fmt.Sscanf(name, "%d", &i); err != nil || at.Kind != yaml.SequenceNode || i < 0 || i >= len(at.Content) {
			return nil, nil, ""
		}
		return at.Content[i], at.Content[i], rest
	}
	if at.Kind != yaml.MappingNode {
		return nil, nil, ""
	}
	var cuts []int
	for i := range path {
		if path[i] == '.' || path[i] == '[' {
			cuts = append(cuts, i)
		}
	}
	cuts = append(cuts, len(path))
	for _, i := range slices.Backward(cuts) {
		if next, key := child(at, path[:i]); next != nil {
			return next, key, strings.TrimPrefix(path[i:], ".")
		}
	}
	return nil, nil, ""
}

func child(at *yaml.Node, name string) (value, key *yaml.Node) {
	if at.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(at.Content); i += 2 {
		if at.Content[i].Value == name {
			return at.Content[i+1], at.Content[i]
		}
	}
	return nil, nil
}

// Syntax describes the first syntax error of a text with its line; "" means valid YAML. The
// parser's own message does not mention tabs, and names the beginning of a wrongly indented block.
func Syntax(text []byte) string {
	if bound.LimitYAML(text) != nil || parses(text) == nil {
		return ""
	}
	var all [][]byte
	for line := range bytes.Lines(text) {
		all = append(all, line)
		if indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]; bytes.IndexByte(indent, '\t') >= 0 &&
			len(bytes.TrimSpace(line)) > 0 {
			return fmt.Sprintf("line %d is indented with a tab: YAML allows only spaces", len(all))
		}
	}
	good := func(n int) bool { return parses(bytes.Join(all[:n], nil)) == nil }
	n := len(all) - 1
	if n <= few {
		for n > 0 && !good(n) {
			n--
		}
	} else { // a value of several lines may mislead the search
		n = sort.Search(n, func(i int) bool { return !good(i + 1) })
	}
	return fmt.Sprintf("line %d does not fit the lines above it: check indentation, quotes and brackets", n+1)
}

// few is the number of lines below which the last good line is searched one by one.
const few = 200

func parses(text []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var doc yaml.Node
		switch err := d.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}
