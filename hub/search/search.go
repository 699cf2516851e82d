// Package search is the language of the page's filters: words and terms such as
// site:oslo, all of which a thing must have; a minus before one means that it must not.
// Quotes keep what has spaces or colons together.
//
// It reads the text and compares values. It knows no object of the fleet: package admin
// tells what a node or a pod has, and which values exist.
package search

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"
)

// Bounds of a search.
const (
	MaxText  = 500 // bytes
	MaxTerms = 20
)

// A Term is one part of a search.
type Term struct {
	Not   bool
	Key   string // "": a word
	Value string // without quotes, in small letters
	how   How
	block netip.Prefix // of an address; not valid: how one begins
}

// A Query is what people search for. The zero Query finds everything.
type Query struct {
	Terms []Term
	// Wrong says of the first part that is not understood what it is and what to do.
	// The other parts are good.
	Wrong string
}

// Known tells whether a value of a key exists, and if not, some that do; ok of a key whose
// values are not known.
type Known func(key, value string) (ok bool, have []string)

// Parse reads the search of a list. What it does not understand it leaves out, and says so.
func Parse(list, text string, known Known) (q Query) {
	wrong := func(format string, args ...any) {
		if q.Wrong == "" {
			q.Wrong = fmt.Sprintf(format, args...)
		}
	}
	if len(text) > MaxText {
		wrong("This is longer than %d letters: search for less.", MaxText)
		return q
	}
	tokens := split(strings.ToValidUTF8(text, "\ufffd"))
	if len(tokens) > MaxTerms {
		wrong("These are more than %d terms: search for fewer.", MaxTerms)
		return q
	}
	for _, t := range tokens {
		term, why := t.term(list)
		if why == "" && known != nil && term.Key != "" && !strings.Contains(term.Value, "*") {
			if ok, have := known(term.Key, term.Value); !ok {
				why = unknown(term, have)
			}
		}
		switch {
		case why != "":
			wrong("%s", why)
		case term.Key == "" && term.Value == "":
		default:
			q.Terms = append(q.Terms, term)
		}
	}
	return q
}

func unknown(t Term, have []string) string {
	say := fmt.Sprintf("There is no %s “%s” here", t.Key, t.Value)
	if len(have) > 0 {
		say += "; there is " + strings.Join(have, ", ")
	}
	return say + "."
}

// A token is a part of a text between spaces, quotes and all.
type token struct {
	raw   string
	start int  // where it begins in the text
	open  bool // its last quote is not closed
}

func split(text string) (tokens []token) {
	begin, quoted := -1, false
	for i, r := range text {
		switch {
		case unicode.IsSpace(r) && !quoted:
			if begin >= 0 {
				tokens = append(tokens, token{raw: text[begin:i], start: begin})
			}
			begin = -1
			continue
		case r == '"':
			quoted = !quoted
		}
		if begin < 0 {
			begin = i
		}
	}
	if begin >= 0 {
		tokens = append(tokens, token{text[begin:], begin, quoted})
	}
	return tokens
}

// cut parts a token into its minus, its key and its value, as they are written.
func (t token) cut() (not bool, key, value string) {
	raw := t.raw
	if len(raw) > 1 && raw[0] == '-' {
		not, raw = true, raw[1:]
	}
	for i := range len(raw) {
		switch {
		case raw[i] == '"':
			return not, "", raw
		case raw[i] == ':', raw[i] == '=' && strings.EqualFold(raw[:i], "label"):
			return not, strings.ToLower(raw[:i]), raw[i+1:]
		}
	}
	return not, "", raw
}

func (t token) term(list string) (term Term, why string) {
	not, key, value := t.cut()
	if t.open {
		return term, "The quote in " + t.raw + " is not closed."
	}
	term = Term{Not: not, Key: key, Value: strings.ToLower(strings.ReplaceAll(value, `"`, ""))}
	if key == "" {
		return term, ""
	}
	k := KeyNamed(key)
	switch {
	case k == nil:
		return term, fmt.Sprintf(
			"Unknown key “%s:”; use %s. For a label write label:%s, and for a word with a colon put it in quotes.",
			key, told(list), strings.Trim(key+"="+term.Value, "="))
	case !slices.Contains(k.Lists, list):
		return term, fmt.Sprintf("The list of %s does not know “%s:”; it knows %s.", list, key, told(list))
	case term.Value == "":
		return term, fmt.Sprintf("“%s:” wants a value: %s, as in %s.", key, k.Value, k.Example)
	}
	term.how = k.How
	switch k.How {
	case Address:
		return term, term.address()
	case Label:
		if name, _, _ := strings.Cut(term.Value, "="); name == "" || strings.HasSuffix(name, "!") {
			return term, "“" + t.raw + "” names no label: write label:key or label:key=value, with a minus before it for " +
				"what has it not."
		}
	}
	return term, ""
}

func told(list string) string { return strings.Join(KeysOf(list), ":, ") + ":" }

// mapped is how many bits stand before an IPv4 address that is written as one of IPv6.
const mapped = 96

// address reads an address, a block, or how an address begins.
func (t *Term) address() (why string) {
	if p, err := netip.ParsePrefix(t.Value); err == nil {
		if bits := p.Bits() - mapped; p.Addr().Is4In6() && bits >= 0 {
			p = netip.PrefixFrom(p.Addr().Unmap(), bits)
		}
		t.block = p.Masked()
		return ""
	}
	if a, err := netip.ParseAddr(t.Value); err == nil {
		t.block = netip.PrefixFrom(a.Unmap().WithZone(""), a.Unmap().BitLen())
		return ""
	}
	if strings.Trim(t.Value, "0123456789abcdef.:") != "" {
		return "“" + t.Value + "” is not an address, the beginning of one, or a block such as 10.42.0.0/16."
	}
	return ""
}

// Is tells whether a value is the one that the term is about. It says nothing of the minus.
func (t Term) Is(value string) bool {
	switch t.how {
	case Part:
		return like("*"+t.Value+"*", value)
	case Address:
		if !t.block.IsValid() {
			return strings.HasPrefix(strings.ToLower(value), t.Value)
		}
		a, err := netip.ParseAddr(value)
		return err == nil && t.block.Contains(a.Unmap().WithZone(""))
	}
	return like(t.Value, value)
}

// Has tells whether labels have the one that the term is about, by its whole key or by
// what stands behind the slash.
func (t Term) Has(labels map[string]string) bool {
	key, want, valued := strings.Cut(t.Value, "=")
	for k, v := range labels {
		_, short, ok := strings.Cut(k, "/")
		if (strings.EqualFold(k, key) || ok && strings.EqualFold(short, key)) && (!valued || like(want, v)) {
			return true
		}
	}
	return false
}

// In tells whether one of the texts has the word that the term is.
func (t Term) In(texts ...string) bool {
	return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(strings.ToLower(s), t.Value) })
}

// like compares a value with a pattern in small letters in which a * is any text.
func like(pattern, value string) bool {
	if !strings.Contains(pattern, "*") {
		return strings.EqualFold(pattern, value)
	}
	value = strings.ToLower(value)
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(value) < len(first)+len(last) || !strings.HasPrefix(value, first) || !strings.HasSuffix(value, last) {
		return false
	}
	value = value[len(first) : len(value)-len(last)]
	for _, p := range parts[1 : len(parts)-1] {
		i := strings.Index(value, p)
		if i < 0 {
			return false
		}
		value = value[i+len(p):]
	}
	return true
}

// Exact returns the value that whatever is found has under a key, "" where there is none:
// an index by that key has it all.
func (q Query) Exact(key string) string {
	for _, t := range q.Terms {
		if t.Key == key && !t.Not && t.how == Whole && !strings.Contains(t.Value, "*") {
			return t.Value
		}
	}
	return ""
}

// String writes a term as Parse reads it.
func (t Term) String() string {
	s := t.Value
	if t.Key != "" {
		s = t.Key + ":" + quoted(s)
	} else if strings.ContainsAny(s, ":=") || strings.HasPrefix(s, "-") {
		s = `"` + s + `"`
	} else {
		s = quoted(s)
	}
	if t.Not {
		return "-" + s
	}
	return s
}

func quoted(s string) string {
	if strings.ContainsFunc(s, unicode.IsSpace) || s == "" {
		return `"` + s + `"`
	}
	return s
}

// String writes a search as Parse reads it.
func (q Query) String() string {
	parts := make([]string, 0, len(q.Terms))
	for _, t := range q.Terms {
		parts = append(parts, t.String())
	}
	return strings.Join(parts, " ")
}

// A Spot is the term at the end of a text, which is being written.
type Spot struct {
	Head  string // the text before it
	Not   bool
	Key   string // "": a word, or the beginning of a key
	Value string // as far as it is written, without quotes, in small letters
}

// Last returns what is being written at the end of a text.
func Last(text string) Spot {
	text = strings.ToValidUTF8(text[:min(len(text), MaxText)], "\ufffd")
	tokens := split(text)
	if len(tokens) == 0 {
		return Spot{Head: text}
	}
	t := tokens[len(tokens)-1]
	if !t.open && strings.TrimRightFunc(text, unicode.IsSpace) != text {
		return Spot{Head: text}
	}
	s := Spot{Head: text[:t.start]}
	s.Not, s.Key, s.Value = t.cut()
	s.Value = strings.ToLower(strings.ReplaceAll(s.Value, `"`, ""))
	return s
}

// With is the term that a spot becomes with a value.
func (s Spot) With(value string) string { return Term{Not: s.Not, Key: s.Key, Value: value}.String() }
