package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// longText matches a string that cannot be split well: YAML, a regular expression, a command.
var longText = regexp.MustCompile("`[^`]*$|`[^`]{60,}`|\"[^\"]{80,}\"|^[^\"`]*`")

// Code has at most 120 columns, so that two files fit side by side. Long strings and the lines of
// tests may be wider, because a case of a test is one line.
func TestLinesHaveAtMost120Columns(t *testing.T) {
	err := fs.WalkDir(os.DirFS(".."), ".", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && file != "." ||
			file == "data" || file == "bin") {
			return fs.SkipDir
		}
		if path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "hub/e2e/") {
			return nil
		}
		text, err := os.ReadFile("../" + file)
		if err != nil {
			return err
		}
		raw := false // inside a raw string of several lines
		for i, line := range strings.Split(string(text), "\n") {
			odd := strings.Count(line, "`")%2 == 1
			if n := utf8.RuneCountInString(line); n > 120 && !raw && !longText.MatchString(line) {
				t.Errorf("%s:%d has %d columns, at most 120: break the line", file, i+1, n)
			}
			raw = raw != odd
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
