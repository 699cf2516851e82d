package main

import (
	"fmt"
	"os"
	"strings"
)

// Verdicts on a row.
const (
	yes  = "yes"
	part = "in part" // a test was skipped; the table has the reason
	no   = "NO"
	none = "–" // no test of the row ran here
)

// A result is the verdict on a row, with the outcomes of its tests in order.
type result struct {
	row      row
	outcomes []*outcome
}

// result returns the verdict on a row whose tests have run.
func (b *bench) result(r row) result {
	res := result{row: r}
	for _, t := range r.tests {
		res.outcomes = append(res.outcomes, b.known[t])
	}
	return res
}

func (r result) held() string {
	skipped, held := 0, yes
	for _, o := range r.outcomes {
		switch o.state {
		case "pass":
		case "part":
			held = part
		case "skip":
			skipped, held = skipped+1, part
		default:
			return no
		}
	}
	if skipped == len(r.outcomes) {
		return none
	}
	return held
}

// seen returns the tests' figures, the skipped and failed tests, and the row's gap.
func (r result) seen() string {
	var out []string
	passed := 0
	for i, o := range r.outcomes {
		if o.state == "pass" || o.state == "part" {
			passed++
		}
		if o.state != "pass" {
			out = append(out, fmt.Sprintf("%s: %s: %s", r.row.tests[i].name, o.state, o.why))
		}
		out = append(out, o.seen...)
	}
	if len(r.outcomes) > 0 {
		out = append(out, fmt.Sprintf("%d of %d tests", passed, len(r.outcomes)))
	}
	if r.row.gap != "" {
		out = append(out, "not tested: "+r.row.gap)
	}
	return strings.Join(out, "; ")
}

// table returns the output of make faults.
func table(results []result) string {
	var b strings.Builder
	b.WriteString("| Row | Fault | What has to hold | Seen | Held |\n|---|---|---|---|---|\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.row.id, r.row.fault, r.row.criterion, r.seen(), r.held())
	}
	return b.String()
}

// readme has the table of the rows; the path is relative to the repository's root.
const readme = "hub/e2e/faults/README.md"

const begin, end = "<!-- faults: begin -->\n", "<!-- faults: end -->"

// contents returns the README's table of the rows.
func contents() string {
	var b strings.Builder
	b.WriteString("| Row | Fault | What has to hold |\n|---|---|---|\n")
	for _, r := range rows {
		holds := r.criterion
		if r.gap != "" {
			holds += ". Not tested: " + r.gap + "."
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.id, r.fault, holds)
	}
	return b.String()
}

// renewed returns a page with the current table.
func renewed(page string) (string, error) {
	head, rest, ok := strings.Cut(page, begin)
	_, tail, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return "", fmt.Errorf("%s has no lines %q and %q", readme, strings.TrimSpace(begin), end)
	}
	return head + begin + "\n" + contents() + "\n" + end + tail, nil
}

// rewrite updates the table in the README.
func rewrite() error {
	page, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	text, err := renewed(string(page))
	if err != nil {
		return err
	}
	return os.WriteFile(readme, []byte(text), 0o644)
}
