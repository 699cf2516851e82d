package serve

import (
	"bytes"
	"encoding/binary"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A text is a row, of which all before i is read.
type text struct {
	b      []byte
	i      int
	failed bool
	k      *reader
}

// other reads a field that few have, or that is large, by JSON's rules.
func (t *text) other(name []byte, of any) {
	value := t.value()
	if t.failed {
		return
	}
	field := append(append(append(append(t.k.field[:0], `{"`...), name...), `":`...), value...)
	t.k.field = append(field, '}')
	if json.Unmarshal(t.k.field, of, t.k.options) != nil {
		t.fail()
	}
}

// over tells whether all was read.
func (t *text) over() bool { return !t.failed && t.i == len(t.b) }

func (t *text) fail() { t.failed, t.i = true, len(t.b) }

// take takes a byte if it is the next.
func (t *text) take(c byte) bool {
	if t.i == len(t.b) || t.b[t.i] != c {
		return false
	}
	t.i++
	return true
}

func (t *text) must(c byte) {
	if !t.take(c) {
		t.fail()
	}
}

// literal takes a text if it is what comes next.
func (t *text) literal(text string) bool {
	if !bytes.HasPrefix(t.b[t.i:], []byte(text)) {
		return false
	}
	t.i += len(text)
	return true
}

// object calls each with the name of each field, whose value it is to take.
func (t *text) object(each func(name []byte)) {
	if t.must('{'); t.take('}') {
		return
	}
	for more := true; more && !t.failed; more = t.take(',') {
		name := t.plain()
		t.must(':')
		each(name)
	}
	t.must('}')
}

// list calls each for each element, which it is to take. One that is there twice, or has no
// elements, is written by somebody else.
func (t *text) list(known bool, each func()) {
	if t.must('['); known || t.take(']') {
		t.fail()
	}
	for more := true; more && !t.failed; more = t.take(',') {
		each()
	}
	t.must(']')
}

// number takes one of those that are the same as any integer.
func (t *text) number() (n int64) {
	const digits = 9
	begin := t.i
	for t.i < len(t.b) && t.b[t.i]-'0' < 10 && t.i-begin < digits {
		n = 10*n + int64(t.b[t.i]-'0')
		t.i++
	}
	if d := t.i - begin; d == 0 || d > 1 && t.b[begin] == '0' {
		t.fail()
	}
	return n
}

// quoted takes a string, with its quotes; plain tells whether it says what is between them.
func (t *text) quoted() (b []byte, plain bool) {
	begin := t.i
	t.must('"')
	plain = true
	ascii := true
	for ; t.i+8 <= len(t.b); t.i += 8 { // over what is a character like others, in all of eight bytes
		const each = 0x0101010101010101
		w := binary.LittleEndian.Uint64(t.b[t.i:])
		if ((w-each*' ')|((w^each*'"')-each)|((w^each*'\\')-each)|w)&(each<<7) != 0 {
			break
		}
	}
	for ; t.i < len(t.b); t.i++ {
		switch c := t.b[t.i]; {
		case c == '"':
			t.i++
			if b = t.b[begin:t.i]; !ascii && !utf8.Valid(b) {
				t.fail()
			}
			return b, plain
		case c == '\\':
			plain = false
			t.i++
		case c < ' ':
			t.fail()
			return nil, false
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	t.fail()
	return nil, false
}

// plain takes a string that says what is between its quotes.
func (t *text) plain() []byte {
	b, plain := t.quoted()
	if !plain || t.failed {
		t.fail()
		return nil
	}
	return b[1 : len(b)-1]
}

func (t *text) unquoted() []byte {
	b, plain := t.quoted()
	switch {
	case t.failed:
		return nil
	case plain:
		return b[1 : len(b)-1]
	}
	b, err := jsontext.AppendUnquote(nil, b)
	if err != nil {
		t.fail()
	}
	return b
}

func (t *text) string() string { return string(t.unquoted()) }

// word takes a string that many nodes have in common.
func (t *text) word() string { return t.k.sharer.Word(t.unquoted()) }

// words takes what many nodes have in common, but for what is its own of the one that is called so.
func (t *text) words(m *map[string]string, own string) {
	if *m != nil {
		t.fail() // it is there twice
	}
	pairs := t.k.pairs[:0]
	t.object(func(name []byte) {
		key, value := t.k.sharer.Word(name), t.unquoted()
		if string(value) == own {
			pairs = append(pairs, [2]string{key, own})
		} else {
			pairs = append(pairs, [2]string{key, t.k.sharer.Word(value)})
		}
	})
	*m = make(map[string]string, len(pairs))
	for _, p := range pairs {
		(*m)[p[0]] = p[1]
	}
	t.k.pairs = pairs
}

func (t *text) time() (at metav1.Time) {
	if t.null() {
		return at
	}
	b, _ := t.quoted()
	if t.failed {
		return at
	}
	at, err := t.k.moment(b)
	if err != nil {
		t.fail()
	}
	return at
}

func (t *text) micro() (at metav1.MicroTime) {
	b, _ := t.quoted()
	if t.failed {
		return at
	}
	var err error
	if at.Time, err = momentOf(b, metav1.RFC3339Micro); err != nil {
		t.fail()
	}
	return at
}

func (t *text) null() bool { return t.literal("null") }

func (t *text) true() bool {
	if !t.literal("true") {
		t.fail()
	}
	return true
}

// value takes any value.
func (t *text) value() []byte {
	begin, depth := t.i, 0
	for t.i < len(t.b) {
		switch t.b[t.i] {
		case '"':
			t.quoted()
		case '{', '[':
			depth++
			t.i++
		case '}', ']', ',':
			if depth == 0 {
				return t.b[begin:t.i]
			}
			if t.b[t.i] != ',' {
				depth--
			}
			t.i++
		default:
			t.i++
		}
	}
	t.fail()
	return nil
}
