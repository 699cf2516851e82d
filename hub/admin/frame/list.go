package frame

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"flotilla.dev/hub/state"
)

// InSentence is a title as it stands within a sentence; an abbreviation stays one.
func InSentence(title string) string {
	if strings.ToUpper(title) == title {
		return title
	}
	return strings.ToLower(title)
}

// ---- sorting

// unsorted is what lists are sorted by when nobody asks: trouble first, and then by name.
const unsorted = "status"

// A Sorter is a column that a list may be sorted by; without less it is by name, as
// the fleet is kept.
type Sorter[T any] struct {
	Name, Title string
	By          func(a *Request) func(x, y T) int
}

// A Column is the head of one, with the address that sorts by it.
type Column struct {
	Title, Href string
	Sorted      string // ascending, descending, or "": not by this one
	All         bool   // it has the box that ticks all rows that are shown
}

// Sort sorts a list as the query says: by a column, or with "-" before its name the other way.
func Sort[T any](a *Request, list []T, by []Sorter[T]) {
	name, down := strings.CutPrefix(cmp.Or(a.Query("sort"), unsorted), "-")
	if !slices.ContainsFunc(by, func(s Sorter[T]) bool { return s.Name != "" && s.Name == name }) {
		name = unsorted
	}
	for _, s := range by {
		if s.Name == "" || s.Name != name {
			continue
		}
		if s.By != nil {
			slices.SortStableFunc(list, s.By(a))
		}
		if down {
			slices.Reverse(list)
		}
	}
}

// SortLinks are the heads of the columns of a list, each with the address that sorts by it.
func SortLinks[T any](a *Request, filter url.Values, by []Sorter[T]) (columns []Column) {
	now, down := strings.CutPrefix(cmp.Or(a.Query("sort"), unsorted), "-")
	for _, s := range by {
		c := Column{Title: s.Title}
		if s.Name == "" {
			columns = append(columns, c)
			continue
		}
		q := url.Values{}
		for k, v := range filter {
			if v[0] != "" && k != "sort" {
				q[k] = v
			}
		}
		sort := s.Name
		if s.Name == now {
			c.Sorted = "ascending"
			if down {
				c.Sorted = "descending"
			} else {
				sort = "-" + s.Name
			}
		}
		if sort != unsorted {
			q.Set("sort", sort)
		}
		c.Href = a.Path
		if len(q) > 0 {
			c.Href += "?" + q.Encode()
		}
		columns = append(columns, c)
	}
	return columns
}

// PerPage is how many rows a page of a list has.
const PerPage = 100

// A Pager leads through a list.
type Pager struct {
	From, To, Total int // From and To count from 1
	Prev, Next      string
	Pages           []pageLink // the first, those around this one, and the last
}

// A pageLink leads to a page of a list; without Href it is the one that is shown, without Number
// it stands for those that are left out.
type pageLink struct {
	Number int
	Href   string
}

// PageOf cuts the page that is asked for out of n rows.
func PageOf(a *Request, n int, filter url.Values) (from, to int, p Pager) {
	return pageAt(a, pageNumber(a), n, filter)
}

// pageNumber is the page that is asked for, from 1.
func pageNumber(a *Request) int {
	number, err := strconv.Atoi(a.Query("page"))
	if err != nil || number < 1 {
		return 1
	}
	return number
}

// pageAt cuts a page out of n rows, the last one where there are not so many.
func pageAt(a *Request, number, n int, filter url.Values) (from, to int, p Pager) {
	last := max((n+PerPage-1)/PerPage, 1)
	number = min(number, last)
	from, to = (number-1)*PerPage, min(number*PerPage, n)
	p = Pager{From: min(from+1, n), To: to, Total: n}
	link := func(number int) string {
		v := url.Values{}
		for k, vs := range filter {
			if vs[0] != "" {
				v[k] = vs
			}
		}
		v.Set("page", strconv.Itoa(number))
		return a.Path + "?" + v.Encode()
	}
	if number > 1 {
		p.Prev = link(number - 1)
	}
	if number < last {
		p.Next = link(number + 1)
	}
	const around = 2
	for i := 1; last > 1 && i <= last; i++ {
		switch {
		case i == number:
			p.Pages = append(p.Pages, pageLink{Number: i})
		case i == 1 || i == last || i >= number-around && i <= number+around:
			p.Pages = append(p.Pages, pageLink{i, link(i)})
		case i == 2 || i == last-1:
			p.Pages = append(p.Pages, pageLink{})
		}
	}
	return from, to, p
}

// An Option is a choice of a filter.
type Option struct {
	Value, Text string
	Chosen      bool
}

// Options are the choices of a filter, each its value and its text.
func Options(chosen string, pairs ...[2]string) (o []Option) {
	for _, p := range pairs {
		o = append(o, Option{p[0], p[1], p[0] == chosen})
	}
	return o
}

// ByRank compares by a pill's kind, the worst first, which is found once for each.
func ByRank[T comparable](kind func(T) string) func(x, y T) int {
	ranks := map[T]int{}
	of := func(x T) int {
		r, ok := ranks[x]
		if !ok {
			r = Rank(kind(x))
			ranks[x] = r
		}
		return r
	}
	return func(x, y T) int { return cmp.Compare(of(x), of(y)) }
}

// SiteOptions are the sites that a list can be filtered by.
func SiteOptions(a *Request, chosen string) []Option {
	o := []Option{{"", "All sites", chosen == ""}}
	for name, c := range a.Counts() {
		o = append(o, Option{name, fmt.Sprintf("%s (%d)", name, c.Nodes), name == chosen})
	}
	return WithChosen(o, chosen)
}

// WithChosen are options with the one that is chosen, which may be of nothing any more: a
// menu without it would choose another one.
func WithChosen(o []Option, chosen string) []Option {
	if !slices.ContainsFunc(o, func(x Option) bool { return x.Chosen }) {
		o = append(o, Option{chosen, chosen, true})
	}
	return o
}

// NamespaceOptions are the namespaces that a list can be filtered by.
func NamespaceOptions(a *Request, chosen string) []Option {
	o := []Option{{"", "All namespaces", chosen == ""}}
	for ns := range a.All(state.Namespaces, "") {
		o = append(o, Option{ns.GetName(), ns.GetName(), ns.GetName() == chosen})
	}
	return o
}

// ---- sorting where the heads of columns are not shown

// SortOptions are the orders of a list, each also the other way.
func SortOptions[T any](a *Request, by []Sorter[T]) (o []Option) {
	now := a.Query("sort")
	for _, s := range by {
		if s.Name == "" {
			continue
		}
		value := s.Name
		if s.Name == unsorted {
			value = ""
		}
		o = append(o, Option{value, "Sort by " + InSentence(s.Title), now == value || now == s.Name},
			Option{"-" + s.Name, "… " + InSentence(s.Title) + ", last first", now == "-"+s.Name})
	}
	return o
}
