package bound

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// Limits of the values of a request body, whatever its size: an empty object of two bytes may
// become a value of a thousand bytes.
const (
	MaxObjects = 16384 // objects and lists
	MaxValues  = 65536 // objects, lists, names, and list entries
)

// A Count is the number of objects and values that a decoder makes of a text. It is counted in the
// bytes before decoding, and is never too small.
type Count struct{ Objects, Values int }

// Bounded returns an error if the count exceeds the limits.
func (c Count) Bounded() error {
	if c.Objects > MaxObjects || c.Values > MaxValues {
		return fmt.Errorf(
			"it has more than %d objects and lists, or more than %d names and values: that many are not read at once",
			MaxObjects, MaxValues)
	}
	return nil
}

// CountJSON counts the objects and values of JSON.
func CountJSON(data []byte) (c Count) {
	inString := false
	for i := 0; i < len(data); i++ {
		switch b := data[i]; {
		case inString && b == '\\':
			i++
		case b == '"':
			inString = !inString
		case inString:
		case b == '{' || b == '[':
			c.Objects++
			c.Values++
		case b == ',' || b == ':':
			c.Values++
		}
	}
	return c
}

// CountProto counts the objects and values of Kubernetes' protobuf for a value of into's type.
func CountProto(data []byte, into any) (c Count, err error) {
	data, _ = bytes.CutPrefix(data, protoMagic)
	p := protoWalk{fields: map[reflect.Type]map[protowire.Number]reflect.Type{}, count: &c}
	err = each(data, func(num protowire.Number, body []byte) error {
		if num == 2 {
			return p.message(body, typeOf(into))
		}
		return nil
	})
	return c, err
}

// errEncoding is returned because CountYAML cannot count marks in another encoding.
var errEncoding = errors.New("it is not UTF-8: save it as UTF-8")

// CountYAML counts the objects and values of YAML by its marks, such as "-", ":" and ",": each
// value except the first follows a mark. Marks inside strings count too, which is safe. Marks in a
// block text (key: |) do not count, because files in a ConfigMap have many. A block text is
// recognized only if every line before it is simple: otherwise its beginning could be inside a
// string.
func CountYAML(data []byte) (c Count, err error) {
	if !utf8.Valid(data) {
		return c, errEncoding
	}
	// YAML also ends lines at these characters.
	usual := !bytes.ContainsAny(data, "\u0085\u2028\u2029") &&
		bytes.Count(data, []byte("\r")) == bytes.Count(data, []byte("\r\n"))
	for len(data) > 0 {
		var line []byte
		line, data, _ = bytes.Cut(data, []byte("\n"))
		c.marks(line)
		var block bool
		column := 0
		if usual {
			column, block, usual = lineOf(strings.TrimRight(string(line), "\r "))
		}
		if block {
			data = afterBlock(data, column)
		}
	}
	return c, nil
}

// LimitYAML returns an error if YAML or JSON exceeds the limits.
func LimitYAML(text []byte) error {
	c, err := CountYAML(text)
	switch {
	case err != nil:
		return err
	case c.Bounded() != nil && json.Valid(text):
		c = CountJSON(text)
	}
	return c.Bounded()
}

// marks counts the marks of a line. A block mapping has no mark except those of its keys.
func (c *Count) marks(line []byte) {
	for i, b := range line {
		switch b {
		case '{', '[':
			c.Objects++
			c.Values++
		case '-':
			if i+1 == len(line) || strings.IndexByte(" \t\r-", line[i+1]) >= 0 {
				c.Objects++
				c.Values++
			}
		case ',', ':', '?':
			c.Values++
		}
	}
}

// afterBlock returns the text after a block whose parent is in the given column.
func afterBlock(data []byte, column int) []byte {
	indent, begun := column+1, false // the first line sets the indentation
	for len(data) > 0 {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		spaces := len(line) - len(bytes.TrimLeft(line, " "))
		empty := len(bytes.TrimRight(line, "\r ")) == 0
		if !empty && spaces < indent {
			break
		}
		if !begun {
			indent, begun = max(indent, spaces), !empty
		}
		data = rest
	}
	return data
}

// lineOf parses a simple line of YAML: list dashes, a key, and a value that ends on this line or
// begins a block. column is the column of the key, or of the last dash. usual is false for other
// lines, which may begin a quoted string or a list of several lines.
func lineOf(line string) (column int, block, usual bool) {
	value := strings.TrimLeft(line, " ")
	if strings.Contains(line, "\t") {
		return 0, false, false
	}
	if value == "" || value[0] == '#' || value == "---" {
		return 0, false, true
	}
	column = len(line) - len(value)
	entry := column
	for strings.HasPrefix(value, "- ") {
		entry = len(line) - len(value)
		value = strings.TrimLeft(value[1:], " ")
	}
	column = entry
	if n := strings.IndexFunc(value, func(r rune) bool {
		return !nameRune(r)
	}); n > 0 && value[n] == ':' && (n+1 == len(value) || value[n+1] == ' ') {
		column = len(line) - len(value)
		value = strings.TrimLeft(value[n+1:], " ")
	}
	switch {
	case value == "" || value == "-" || value == "{}" || value == "[]" || value[0] == '#':
		return column, false, true
	case value[0] == '|' || value[0] == '>':
		block = strings.TrimLeft(value[1:], "+-") == ""
		return column, block, block
	case value[0] == '"':
		end := strings.IndexByte(value[1:], '"')
		return column, false, end >= 0 && end+2 == len(value) && !strings.Contains(value, `\`)
	case value[0] == '\'':
		end := strings.IndexByte(value[1:], '\'')
		return column, false, end >= 0 && end+2 == len(value)
	}
	return column, false, nameRune(rune(value[0])) && !strings.Contains(value, ": ") && !strings.HasSuffix(value, ":")
}

// nameRune reports whether a character has no special meaning in YAML.
func nameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.' || r == '/' ||
		r == '-'
}
