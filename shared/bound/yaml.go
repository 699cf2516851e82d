package bound

import (
	"bytes"
	"encoding/json"

	yamlnode "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// YAML checks that decoding YAML (or JSON) into a value of into's type has a bounded cost, see
// JSON. An alias counts as its target.
func YAML(data []byte, into any) error {
	if t := bytes.TrimLeft(data, " \t\r\n"); len(t) > 0 && t[0] == '{' && json.Valid(data) {
		return JSON(data, into)
	}
	if err := Document(data); err != nil || into == nil {
		return err
	}
	text, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil // the decoder reports it later
	}
	return JSON(text, into)
}

// Document checks YAML for any type. It needs no second YAML decoder, for which a device has no
// space.
func Document(data []byte) error {
	aliases := bytes.IndexByte(data, '&') >= 0 && bytes.IndexByte(data, '*') >= 0
	if aliases || bytes.Count(data, []byte{'['})+bytes.Count(data, []byte{'{'}) > Depth {
		var doc yamlnode.Node
		if yamlnode.Unmarshal(data, &doc) != nil {
			return nil // the decoder reports it later
		}
		if aliases && expanded(&doc, map[*yamlnode.Node]int{}) > MaxExpanded {
			return errAliases
		}
		if deep(&doc, Depth+1) {
			return errDeep
		}
	}
	return nil
}

// expanded returns the size of a node with its aliases expanded, or MaxExpanded+1 if it is larger.
func expanded(n *yamlnode.Node, known map[*yamlnode.Node]int) int {
	if n == nil {
		return 0
	}
	if size, ok := known[n]; ok {
		return size
	}
	known[n] = MaxExpanded + 1 // a node that contains itself is infinite
	size := len(n.Value) + MaxExpanded/MaxValues
	if n.Kind == yamlnode.AliasNode {
		size = expanded(n.Alias, known)
	}
	for _, c := range n.Content {
		size = min(size+expanded(c, known), MaxExpanded+1)
	}
	known[n] = size
	return size
}

// deep reports whether a node without cycles has more than `most` levels.
func deep(n *yamlnode.Node, most int) bool {
	if n == nil || most < 0 {
		return n != nil
	}
	if n.Kind == yamlnode.AliasNode {
		return deep(n.Alias, most-1)
	}
	for _, c := range n.Content {
		if deep(c, most-1) {
			return true
		}
	}
	return false
}
