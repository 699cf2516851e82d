package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// A table is what became of the specs.
type table struct {
	rows   []row
	failed []*spec
}

// A row is a special interest group of Kubernetes, or the sum.
type row struct {
	sig                            string
	total, claimed, chosen, passed int
}

func (r *row) add(s *spec) {
	r.total++
	if s.reason == "" {
		r.claimed++
	}
	if s.chosen {
		r.chosen++
	}
	if s.chosen && s.state == "passed" {
		r.passed++
	}
}

// tally counts, by group in order of names, the sum last.
func tally(all []*spec) table {
	var t table
	sum := row{sig: "all"}
	for _, s := range all {
		i := slices.IndexFunc(t.rows, func(r row) bool { return r.sig == s.sig() })
		if i < 0 {
			i = len(t.rows)
			t.rows = append(t.rows, row{sig: s.sig()})
		}
		t.rows[i].add(s)
		sum.add(s)
		if s.chosen && s.state != "passed" {
			t.failed = append(t.failed, s)
		}
	}
	slices.SortFunc(t.rows, func(a, b row) int { return strings.Compare(a.sig, b.sig) })
	t.rows = append(t.rows, sum)
	return t
}

// chosen is how many were to run.
func (t table) chosen() int { return t.rows[len(t.rows)-1].chosen }

// text is the table in Markdown, and a line for each failure.
func (t table) text() string {
	var b strings.Builder
	b.WriteString("| SIG | conformance specs | claimed | passed |\n|---|--:|--:|--:|\n")
	for _, r := range t.rows {
		passed := fmt.Sprint(r.passed)
		if r.chosen < r.claimed {
			passed = fmt.Sprintf("%d of %d that ran", r.passed, r.chosen)
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %s |\n", r.sig, r.total, r.claimed, passed)
	}
	if len(t.failed) > 0 {
		b.WriteString("\nClaimed, and not passed:\n\n")
	}
	for _, s := range t.failed {
		fmt.Fprintf(&b, "* %s: %s: %s\n", s.name, s.state, short(s.why))
	}
	return b.String()
}

// short is the beginning of a message, on one line.
func short(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > 200 {
		return string(r[:200]) + " …"
	}
	return text
}

// manual is where the table of each engine stands, from the repository's root.
const manual = "hub/conformance/README.md"

// rewrite puts the table of an engine into the manual, and what is not claimed.
func rewrite(engine, text string) error {
	b, err := os.ReadFile(manual)
	if err != nil {
		return err
	}
	doc, err := replace(string(b), engine, text)
	if err == nil {
		doc, err = replace(doc, "unclaimed", reasons(unclaimed))
	}
	if err != nil {
		return err
	}
	return os.WriteFile(manual, []byte(doc), 0o644)
}

// replace puts a text between the two marks of a name.
func replace(doc, name, text string) (string, error) {
	begin, end := fmt.Sprintf("<!-- %s: begin -->\n", name), fmt.Sprintf("<!-- %s: end -->", name)
	head, rest, ok := strings.Cut(doc, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("%s has no lines %q and %q", manual, strings.TrimSpace(begin), end)
	}
	return head + begin + "\n" + text + "\n" + end + tail, nil
}

// reasons says why how many lines of specs are not claimed, in order of the file.
func reasons(unclaimed string) string {
	var order []string
	names := map[string][]string{}
	for _, line := range lines(unclaimed) {
		name, reason, _ := strings.Cut(line, "\t")
		if names[reason] == nil {
			order = append(order, reason)
		}
		names[reason] = append(names[reason], "`"+name+"`")
	}
	var b strings.Builder
	for _, reason := range order {
		fmt.Fprintf(&b, "* %s: %s\n", reason, strings.Join(names[reason], ", "))
	}
	return b.String()
}
