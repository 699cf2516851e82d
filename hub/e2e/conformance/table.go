package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A table has the results of the specs.
type table struct {
	rows   []row
	failed []*spec
}

// A row has the results of one of Kubernetes' special interest groups, or their sum.
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

// tally counts the results by group. The groups are sorted by name; the sum is last.
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

// chosen returns the number of chosen specs.
func (t table) chosen() int { return t.rows[len(t.rows)-1].chosen }

// text returns the table in Markdown, with a line for each failure.
func (t table) text() string {
	var b strings.Builder
	b.WriteString("| SIG | conformance specs | claimed | passed |\n|---|--:|--:|--:|\n")
	for _, r := range t.rows {
		passed := fmt.Sprint(r.passed)
		if r.chosen == 0 && r.claimed > 0 {
			passed = "–"
		} else if r.chosen < r.claimed {
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

// short returns the beginning of a message on one line.
func short(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > 200 {
		return string(r[:200]) + " …"
	}
	return text
}

// manual is the page with each engine's table.
const manual = "hub/e2e/conformance/README.md"

// rewrite writes an engine's table and the unclaimed specs into the page.
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
	if err := os.WriteFile(manual, []byte(doc), 0o644); err != nil {
		return err
	}
	behind, err := tellers(".", doc)
	for file, text := range behind {
		err = errors.Join(err, os.WriteFile(file, []byte(text), 0o644))
	}
	return err
}

// tellers returns the other files below root that have an outdated number of specs passed with
// Docker, each with its new text.
func tellers(root, doc string) (behind map[string]string, err error) {
	_, row, _ := strings.Cut(doc, "\n| all |")
	var total, claimed, passed int
	if _, err := fmt.Sscanf(row, "%d | %d | %d", &total, &claimed, &passed); err != nil {
		return nil, fmt.Errorf("%s has no row of all specs: %w", manual, err)
	}
	behind = map[string]string{}
	for name, says := range map[string]string{
		"README.md": fmt.Sprintf(
			"It passes %d of Kubernetes' %d conformance tests ([why not all](hub/e2e/conformance/README.md)).\n", passed, total),
		"web/manual/conformance.md": fmt.Sprintf("It passes %d of Kubernetes' %d conformance tests; %d are claimed.\n",
			passed, total, claimed),
	} {
		file := filepath.Join(root, name)
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		text, err := replaceIn(name, string(b), "conformance", says)
		if err != nil {
			return nil, err
		}
		if text != string(b) {
			behind[file] = text
		}
	}
	return behind, nil
}

// replace replaces the text between the two markers with this name.
func replace(doc, name, text string) (string, error) {
	return replaceIn(manual, doc, name, "\n"+text+"\n")
}

func replaceIn(file, doc, name, text string) (string, error) {
	begin, end := fmt.Sprintf("<!-- %s: begin -->\n", name), fmt.Sprintf("<!-- %s: end -->", name)
	head, rest, ok := strings.Cut(doc, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("%s has no lines %q and %q", file, strings.TrimSpace(begin), end)
	}
	return head + begin + text + end + tail, nil
}

// reasons lists the reasons of unclaimed specs in the order of the file.
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
	b.WriteString("| Reason | Specs |\n|---|---|\n")
	for _, reason := range order {
		fmt.Fprintf(&b, "| %s | %s |\n", reason, strings.Join(names[reason], ", "))
	}
	return b.String()
}
