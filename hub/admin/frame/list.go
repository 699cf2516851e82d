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

// InSentence writes a column's title in lower case, except an abbreviation.
func InSentence(title string) string {
	if strings.ToUpper(title) == title {
		return title
	}
	return strings.ToLower(title)
}

// ---- sorting

// unsorted is the order of a list without a choice: trouble first, then by name.
const unsorted = "status"

// A Sorter is a column that a list can be sorted by. Without By it is the name, which is the order
// of the snapshot.
type Sorter[T any] struct {
	Name, Title string
	By          func(a *Request) func(x, y T) int
}

// SortNames are the columns by which a list can be sorted.
func SortNames[T any](by []Sorter[T]) (names []string) {
	for _, s := range by {
		if s.Name != "" {
			names = append(names, s.Name)
		}
	}
	return names
}

// A Column is the head of a column, with the address that sorts by it.
type Column struct {
	Title, Href string
	Sorted      string // ascending, descending, or "": the list is sorted by another column
	All         bool   // it is the box that ticks all rows of the page
}

// Sort sorts a list by the query's column; "-" before its name reverses the order.
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

// SortLinks are the heads of a list's columns.
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

// PerPage is the number of rows on a page of a list.
const PerPage = 100

// A Pager links the pages of a list.
type Pager struct {
	From, To, Total int // From and To count from 1
	Prev, Next      string
	Pages           []pageLink // the first, those around this page, and the last
}

// A pageLink links a page of a list. Without Href it is the page that is shown; without Number it
// stands for the pages left out.
type pageLink struct {
	Number int
	Href   string
}

// PageOf returns the rows, of n, on the query's page.
func PageOf(a *Request, n int, filter url.Values) (from, to int, p Pager) {
	return pageAt(a, pageNumber(a), n, filter)
}

// pageNumber is the query's page, from 1.
func pageNumber(a *Request) int {
	number, err := strconv.Atoi(a.Query("page"))
	if err != nil || number < 1 {
		return 1
	}
	return number
}

// pageAt returns the rows on a page. Beyond the last page it is the last one.
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

// An Option is a choice of a menu.
type Option struct {
	Value, Text string
	Chosen      bool
}

// Options are the choices of a menu, from pairs of value and text.
func Options(chosen string, pairs ...[2]string) (o []Option) {
	for _, p := range pairs {
		o = append(o, Option{p[0], p[1], p[0] == chosen})
	}
	return o
}

// ByRank compares by a pill's kind, the worst first. It calls kind once for each object.
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

// SiteOptions are the choices of a filter by site.
func SiteOptions(a *Request, chosen string) []Option {
	o := []Option{{"", "All sites", chosen == ""}}
	for name, c := range a.Counts() {
		o = append(o, Option{name, fmt.Sprintf("%s (%d)", name, c.Nodes), name == chosen})
	}
	return WithChosen(o, chosen)
}

// WithChosen adds the chosen value to the options if it is missing, such as a site without nodes.
func WithChosen(o []Option, chosen string) []Option {
	if !slices.ContainsFunc(o, func(x Option) bool { return x.Chosen }) {
		o = append(o, Option{chosen, chosen, true})
	}
	return o
}

// NamespaceOptions are the choices of a filter by namespace.
func NamespaceOptions(a *Request, chosen string) []Option {
	o := []Option{{"", "All namespaces", chosen == ""}}
	for ns := range a.All(state.Namespaces, "") {
		o = append(o, Option{ns.GetName(), ns.GetName(), ns.GetName() == chosen})
	}
	return o
}

// ---- sorting where column heads are not shown

// SortOptions are the orders of a list, each in both directions.
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
