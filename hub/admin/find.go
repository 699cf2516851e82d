package admin

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	"flotilla.dev/web/manual"
)

// A find is a place on the page that a question may mean.
type find struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Where string `json:"where,omitempty"`
	Href  string `json:"href"`
	score int
}

// finds keeps the best matches.
type finds struct{ list []find }

func (f *finds) add(one find) {
	if one.score <= 0 {
		return
	}
	n, worst := 0, -1
	for i := range f.list {
		if f.list[i].Kind == one.Kind {
			n++
			if worst < 0 || before(f.list[worst], f.list[i]) {
				worst = i
			}
		}
	}
	if n >= mostOfOne {
		if before(one, f.list[worst]) {
			f.list[worst] = one
		}
		return
	}
	f.list = append(f.list, one)
}

// before orders finds: the better match first, then by name.
func before(x, y find) bool {
	return cmp.Or(cmp.Compare(y.score, x.score), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Where, y.Where)) < 0
}

func (f *finds) best() []find {
	sort.SliceStable(f.list, func(i, j int) bool { return before(f.list[i], f.list[j]) })
	return f.list[:min(len(f.list), mostFinds)]
}

// scored returns how well a name, its kind and further words match all words of a question; 0: a word
// of the question does not match.
func scored(words []string, kind, name string, more ...string) (sum int) {
	name = strings.ToLower(name)
	for _, w := range words {
		switch {
		case name == w:
			sum += 100
		case strings.HasPrefix(name, w):
			sum += 60
		case manual.Begins(name, w) > 0:
			sum += 45
		case strings.HasPrefix(kind, w):
			sum += 25
		case slices.ContainsFunc(more, func(s string) bool { return manual.Begins(s, w) > 0 }):
			sum += 5
		default:
			return 0
		}
	}
	return sum
}

// weigh ranks kinds that match equally well.
func weigh(score, kind int) int {
	if score == 0 {
		return 0
	}
	return score*10 + kind
}
