package manual

import (
	"sort"
	"strings"
	"unicode/utf8"
)

// A section is the text below one heading, or of one row of a table of entries.
type section struct {
	page  *Page
	title string
	ids   []string // empty for the page's beginning
	text  string
	entry bool
}

func (s *section) add(text string) {
	if s.text != "" && text != "" {
		s.text += " "
	}
	s.text += text
}

// Bounds of a search.
const (
	MaxQuery = 100 // bytes; longer queries are cut
	maxWords = 8
	excerpt  = 200 // bytes
	manyIDs  = 4   // a row with more entries is listed by the name of the matching one
)

// A Found is a section that matches all words of a query.
type Found struct {
	Page, Title, Href string
	Text              []Piece
	score             int
}

// A Piece is a part of an excerpt; a hit matches the query.
type Piece struct {
	Text string
	Hit  bool
}

// Find returns up to most sections that contain all words of the question. Matching titles come
// first; a repeated title comes last.
func (m *Manual) Find(question string, most int) (found []Found) {
	question = question[:min(len(question), MaxQuery)]
	words := strings.Fields(strings.ToLower(strings.ToValidUTF8(question, "")))
	words = words[:min(len(words), maxWords)]
	if len(words) == 0 {
		return nil
	}
	for _, p := range m.order {
		for _, s := range p.sections {
			if n := s.score(words); n > 0 {
				f := Found{Page: p.Title, Title: s.title, Href: Root + "/" + p.Name, Text: s.excerptAround(words), score: n}
				if id := s.anchor(words); id != "" {
					f.Href += "#" + id
					if len(s.ids) > manyIDs {
						f.Title = id[strings.LastIndexByte(id, '.')+1:]
					}
				}
				found = append(found, f)
			}
		}
	}
	sort.SliceStable(found, func(i, j int) bool { return found[i].score > found[j].score })
	found = repeatsLast(found)
	return found[:min(len(found), most)]
}

// anchor returns the section's first anchor that contains one of the words, else its first, else
// "".
func (s section) anchor(words []string) string {
	for _, id := range s.ids {
		for _, w := range words {
			if Begins(id, w) > 0 {
				return id
			}
		}
	}
	if len(s.ids) > 0 {
		return s.ids[0]
	}
	return ""
}

// repeatsLast moves repeated titles to the end, so that a flag of many commands leaves room for
// other results.
func repeatsLast(found []Found) (all []Found) {
	seen := map[[2]string]bool{}
	var repeats []Found
	for _, f := range found {
		if at := [2]string{f.Page, f.Title}; seen[at] {
			repeats = append(repeats, f)
		} else {
			seen[at] = true
			all = append(all, f)
		}
	}
	return append(all, repeats...)
}

// Begins counts how often a lower-case word occurs at the beginning of a word of the text: "till"
// does not match "flotilla". Words also begin inside FailedMount, pi3 and node-0042.
func Begins(text, word string) (n int) {
	lower := strings.ToLower(text)
	if len(lower) != len(text) { // a letter whose lower case has another length
		text = lower
	}
	for at := 0; word != ""; at++ {
		i := strings.Index(lower[at:], word)
		if i < 0 {
			break
		}
		if at += i; at == 0 || begins(text[at-1], text[at]) {
			n++
		}
	}
	return n
}

func begins(before, c byte) bool {
	small := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= 0x80 }
	large := func(c byte) bool { return c >= 'A' && c <= 'Z' }
	digit := func(c byte) bool { return c >= '0' && c <= '9' }
	switch {
	case digit(before) && digit(c):
		return before == '0'
	case large(before):
		return !large(c) && !small(c)
	case small(before):
		return !small(c)
	}
	return true
}

// score is 0 unless the section contains every word.
func (s section) score(words []string) (sum int) {
	title := strings.ToLower(s.title)
	for _, w := range words {
		n := min(Begins(s.text, w), 3)
		switch {
		case title == w || strings.TrimLeft(title, "-") == w:
			n += 100
		case Begins(s.title, w) > 0:
			n += 20
		}
		if Begins(s.page.Title, w) > 0 {
			n += 5
		}
		if n == 0 {
			return 0
		}
		sum += n
	}
	return sum
}

// excerptAround returns the part of the text around the first match.
func (s section) excerptAround(words []string) []Piece {
	lower := strings.ToLower(s.text)
	if len(lower) != len(s.text) { // a letter whose lower case has another length
		lower = s.text
	}
	at := len(lower)
	for _, w := range words {
		if i := strings.Index(lower, w); i >= 0 {
			at = min(at, i)
		}
	}
	if at == len(lower) {
		at = 0
	}
	from := wordStart(s.text, max(0, at-excerpt/4))
	to := wordStart(s.text, min(len(s.text), from+excerpt))
	var out []Piece
	if from > 0 {
		out = append(out, Piece{Text: "… "})
	}
	out = append(out, splitHits(s.text[from:to], lower[from:to], words)...)
	if to < len(s.text) {
		out = append(out, Piece{Text: " …"})
	}
	return out
}

// wordStart moves an index back to the start of a letter, and of a word if one is near.
func wordStart(text string, at int) int {
	for at > 0 && at < len(text) && !utf8.RuneStart(text[at]) {
		at--
	}
	if at == 0 || at == len(text) {
		return at
	}
	if i := strings.LastIndexByte(text[max(0, at-20):at], ' '); i >= 0 {
		return max(0, at-20) + i + 1
	}
	return at
}

func splitHits(text, lower string, words []string) (out []Piece) {
	begin := 0
	for at := 0; at < len(text); {
		hit := 0
		for _, w := range words {
			if strings.HasPrefix(lower[at:], w) {
				hit = max(hit, len(w))
			}
		}
		if hit == 0 {
			at++
			continue
		}
		if at > begin {
			out = append(out, Piece{Text: text[begin:at]})
		}
		out = append(out, Piece{text[at : at+hit], true})
		at += hit
		begin = at
	}
	if begin < len(text) {
		out = append(out, Piece{Text: text[begin:]})
	}
	return out
}
