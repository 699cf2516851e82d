// Package lines finds where in a text of YAML a field stands.
//
// What is wrong with an object is said by its field's path, such as
// spec.template.spec.containers[0].image, whoever finds it; people look for a line. The
// package decides nothing, and what it cannot find it leaves out.
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

// Objects are those of all documents of a text, lists taken apart and empty ones left out.
// It ends where the text is no YAML.
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

// Of returns the line of a field, counted from 1; 0: it is not there. Of a field that is
// missing it is the line of what it is missing in.
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

// step takes the first part off a path. A key may have dots itself, as labels do: the
// longest that is there counts.
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

// Syntax says what makes a text no YAML, with the line; "": nothing does. Of a tab the
// parser does not say that it is one, and of a wrong indentation only where the block begins.
func Syntax(text []byte) string {
	if bound.LimitYAML(text) != nil || parses(text) == nil {
		return ""
	}
	var all [][]byte
	for line := range bytes.Lines(text) {
		all = append(all, line)
		if indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]; bytes.IndexByte(indent, '\t') >= 0 &&
			len(bytes.TrimSpace(line)) > 0 {
			return fmt.Sprintf("line %d is indented with a tab: YAML takes spaces only", len(all))
		}
	}
	good := func(n int) bool { return parses(bytes.Join(all[:n], nil)) == nil }
	n := len(all) - 1
	if n <= few {
		for n > 0 && !good(n) {
			n--
		}
	} else { // what goes over several lines may mislead it
		n = sort.Search(n, func(i int) bool { return !good(i + 1) })
	}
	return fmt.Sprintf("line %d does not fit to what is above it: look at its indentation, quotes and brackets", n+1)
}

// few is in how many lines the last good one is looked for one by one.
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
