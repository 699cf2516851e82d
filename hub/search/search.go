// Package search parses the page's filters: words and terms such as site:oslo, all of which must
// match. A minus before a term negates it. Quotes keep spaces and colons in a value.
//
// It only parses text and compares values. Package admin passes it the properties of nodes and
// pods, and the existing values.
package search

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Limits of a search.
const (
	MaxText  = 500 // bytes
	MaxTerms = 20
)

// A Term is one word, or one key with a value.
type Term struct {
	Not   bool
	Key   string // "" for a word
	Value string // without quotes, in lower case
	how   How
	block netip.Prefix  // of an Address; invalid if the value is a prefix such as 10.0.
	from  time.Duration // of a Clock: after midnight
	until time.Duration // of a Clock: after midnight
}

// A Query is a parsed search. The zero Query matches everything.
type Query struct {
	Terms []Term
	// Wrong describes the first invalid part and how to correct it. All other parts are valid.
	Wrong string
}

// Known reports whether a value of a key exists; if not, it returns some existing values. ok is
// true for a key whose values cannot be listed.
type Known func(key, value string) (ok bool, have []string)

// Parse parses the search of a list. It skips an invalid part and describes it in Wrong.
func Parse(list, text string, known Known) (q Query) {
	wrong := func(format string, args ...any) {
		if q.Wrong == "" {
			q.Wrong = fmt.Sprintf(format, args...)
		}
	}
	if len(text) > MaxText {
		wrong("The search has more than %d characters; shorten it.", MaxText)
		return q
	}
	tokens := split(strings.ToValidUTF8(text, "\ufffd"))
	if len(tokens) > MaxTerms {
		wrong("The search has more than %d terms; remove some.", MaxTerms)
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
	say := fmt.Sprintf("Unknown %s “%s”", t.Key, t.Value)
	if len(have) > 0 {
		say += "; use " + strings.Join(have, ", ")
	}
	return say + "."
}

// A token is the text between two spaces, with its quotes.
type token struct {
	raw   string
	start int  // offset in the text
	open  bool // the last quote is not closed
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

// cut splits a token into minus, key and value, with their quotes.
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
			key, keyList(list), strings.Trim(key+"="+term.Value, "="))
	case !slices.Contains(k.Lists, list):
		return term, fmt.Sprintf("The list of %s has no key “%s:”; use %s.", list, key, keyList(list))
	case term.Value == "":
		return term, fmt.Sprintf("“%s:” needs a value: %s, for example %s.", key, k.Value, k.Example)
	}
	term.how = k.How
	switch k.How {
	case Address:
		return term, term.address()
	case Clock:
		return term, term.clock()
	case Label:
		if name, _, _ := strings.Cut(term.Value, "="); name == "" || strings.HasSuffix(name, "!") {
			return term, "“" + t.raw + "” is not a label; write label:key or label:key=value, with a minus before it for " +
				"objects without it."
		}
	}
	return term, ""
}

func keyList(list string) string { return strings.Join(KeysOf(list), ":, ") + ":" }

const day = 24 * time.Hour

// mapped is the number of bits before the IPv4 address in an IPv4-mapped IPv6 address.
const mapped = 96

// address parses an address, a block, or the beginning of an address.
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

// clock parses two times of the day.
func (t *Term) clock() (why string) {
	from, until, _ := strings.Cut(t.Value, "-")
	var ok [2]bool
	t.from, ok[0] = timeOfDay(from)
	t.until, ok[1] = timeOfDay(until)
	if !ok[0] || !ok[1] || t.from == t.until {
		return "“" + t.Value + "” is not two times; write for example time:01:00-02:30 or time:23-4, in UTC."
	}
	return ""
}

// timeOfDay parses 7, 07 or 07:30.
func timeOfDay(text string) (d time.Duration, ok bool) {
	for _, layout := range []string{"15", "15:04"} {
		if at, err := time.Parse(layout, text); err == nil {
			return time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute, true
		}
	}
	return 0, false
}

// Between returns the times of a Clock term: from is the latest one that has passed, until the next
// one after from.
func (t Term) Between(now time.Time) (from, until time.Time) {
	midnight := now.UTC().Truncate(day)
	from, until = midnight.Add(t.from), midnight.Add(t.until)
	if from.After(now) {
		from, until = from.Add(-day), until.Add(-day)
	}
	if until.Before(from) {
		until = until.Add(day)
	}
	return from, until
}

// Is reports whether a value matches the term, regardless of its minus.
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

// Has reports whether labels match the term, by the whole key or the part after the slash.
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

// In reports whether one of the texts contains the word.
func (t Term) In(texts ...string) bool {
	return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(strings.ToLower(s), t.Value) })
}

// like compares a value with a lower-case pattern in which * is any text.
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

// Exact returns the value that every match must have under a key, "" if there is none. Callers use
// it to look up an index.
func (q Query) Exact(key string) string {
	for _, t := range q.Terms {
		if t.Key == key && !t.Not && t.how == Whole && !strings.Contains(t.Value, "*") {
			return t.Value
		}
	}
	return ""
}

// String formats a term for Parse.
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

// String formats a search for Parse.
func (q Query) String() string {
	parts := make([]string, 0, len(q.Terms))
	for _, t := range q.Terms {
		parts = append(parts, t.String())
	}
	return strings.Join(parts, " ")
}

// A Spot is the unfinished term at the end of a text.
type Spot struct {
	Head  string // the text before it
	Not   bool
	Key   string // "" for a word or an unfinished key
	Value string // as far as it is typed, without quotes, in lower case
}

// Last returns the unfinished term at the end of a text.
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

// With returns the term of a spot, completed with a value.
func (s Spot) With(value string) string { return Term{Not: s.Not, Key: s.Key, Value: value}.String() }
