package main

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	// unclear matches wordings that a reader reads twice, such as "is no time" for "is not a time".
	unclear = regexp.MustCompile(`(?i)\b(there )?is no [a-z]+|\bwhoever\b|\bnobody who\b`)
	// plain lists clear texts that unclear matches, each with the reason.
	plain = map[string]string{
		"is no longer": "the usual words for a state that has ended",
	}
	scriptComment = regexp.MustCompile(`(?m)(^|\s)//.*$`)
)

// TestTextsAreClear searches the programs' strings and the pages' text.
func TestTextsAreClear(t *testing.T) {
	used := map[string]bool{}
	check := func(where, text string) {
		for _, found := range unclear.FindAllString(text, -1) {
			if strings.EqualFold(found[:min(6, len(found))], "there ") { // "there is no route" is plain
				continue
			}
			if plain[found] != "" {
				used[found] = true
			} else {
				t.Errorf("%s: %q: write \"is not a …\", \"unknown …\" or \"… not found\", or name the person", where, found)
			}
		}
	}
	walkSources(t, func(_ string, f *ast.File, at func(ast.Node) string) {
		for n := range ast.Preorder(f) {
			if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
				value, _ := strconv.Unquote(text.Value)
				check(at(text), value)
			}
		}
	})
	for _, pattern := range []string{"web/templates/*.html", "web/static/*.js"} {
		for _, file := range glob(t, pattern) {
			check(file, scriptComment.ReplaceAllString(read(t, file), ""))
		}
	}
	for text := range plain {
		if !used[text] || len(plain) > 10 {
			t.Errorf("plain has %d texts, at most 10 are allowed; does a source still have %q?", len(plain), text)
		}
	}
}

// TestMarkdownIsWrapped checks that prose has at most 110 columns. Tables, code, links and pictures
// cannot be wrapped.
func TestMarkdownIsWrapped(t *testing.T) {
	for _, pattern := range []string{"*.md", "*/*.md", "*/*/*.md", "*/*/*/*.md", "hub/*/*/*/*/*.md"} {
		for _, file := range glob(t, pattern) {
			inCode := false
			for i, line := range strings.Split(read(t, file), "\n") {
				inCode = inCode != strings.HasPrefix(line, "```")
				n := utf8.RuneCountInString(line)
				if n > 110 && !inCode && !strings.HasPrefix(line, "|") && !strings.Contains(line, "](") {
					t.Errorf("%s:%d has %d columns, at most 110: wrap the line", file, i+1, n)
				}
			}
		}
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := fs.Glob(os.DirFS(".."), pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no files: %v", pattern, err)
	}
	return files
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile("../" + file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
