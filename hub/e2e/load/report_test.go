package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyASuccessfulMeasurementChangesThePage(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	const before = "# Page\n\n<!-- fleet: begin -->\nold\n<!-- fleet: end -->\n\nrest <!-- broker: begin -->\n"
	if err := os.WriteFile(page, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	measured := false
	measure := func(err error) func(io.Writer) error {
		return func(out io.Writer) error { measured = true; fmt.Fprintln(out, "| new |"); return err }
	}
	read := func() string { text, _ := os.ReadFile(page); return string(text) }

	if err := report(page, "fleet", measure(errors.New("a device failed"))); err == nil || read() != before {
		t.Errorf("failed measurement: %v, page %q", err, read())
	}
	for range 2 { // the second result must replace the first
		if err := report(page, "fleet", measure(nil)); err != nil {
			t.Fatal(err)
		}
		if got := read(); strings.Contains(got, "old") || strings.Count(got, "| new |") != 1 ||
			!strings.HasPrefix(got, "# Page\n") || !strings.HasSuffix(got, "rest <!-- broker: begin -->\n") {
			t.Errorf("the page is %q, want only the new table between the same text", got)
		}
	}
	measured = false
	if err := report(page, "broker", measure(nil)); err == nil || measured {
		t.Errorf("page without an end marker: %v, measured %v; want an error before measuring", err, measured)
	}
}

func TestTheReportFitsTheManual(t *testing.T) {
	for name, file := range map[string]string{"fleet": "../../../web/manual/scale.md",
		"return": "../../../web/manual/scale.md", "broker": "README.md"} {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := between(string(page), file, name, ""); err != nil {
			t.Error(err)
		}
	}
}
